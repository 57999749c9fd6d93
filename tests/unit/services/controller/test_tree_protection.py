"""ACLs for a tree that has none: completely, again after every interruption, and without a write
where nothing differs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from appliance.base.zookeeper_access import ZooKeeperAccess, digest_id
from services.controller.zookeeper.operation import Operation, Pause, Together
from services.controller.zookeeper.requests import ALL, OPEN, READ, AclEntry, Request, SetAcl, ZooKeeperFailed, acl_of
from services.controller.zookeeper.tree_protection import forget_protection, marker_path, protect_tree, quotas, roots
from tests.support.memory_tree import MemoryTree

ACCESS = ZooKeeperAccess("millrace", "secret", True, True)
ELSEWHERE = ACCESS._replace(is_own=False)
OWN = AclEntry(ALL, "sasl", "millrace")
OWN_ELSEWHERE = AclEntry(ALL, "digest", digest_id("millrace", "secret"))
STEPS_MAX = 10_000


def make_tree() -> MemoryTree:
    tree = MemoryTree()
    for path in (
        *roots(),
        "/zookeeper/config",
        "/zookeeper/quota",
        "/cluster/id",
        "/foreign/node",
        "/consumers/g/offsets/t/0",
    ):
        tree.put(path)
    for topic in range(30):
        tree.put(f"/brokers/topics/t{topic}/partitions/0/state", b"{}")
        tree.put(f"/config/topics/t{topic}", b"{}")
    return tree


class Run:
    """Drives an operation step by step; `requests` are those that were carried out."""

    def __init__(self, tree: MemoryTree, operation: Operation[Any]) -> None:
        self.tree = tree
        self.requests: list[Request] = []
        self._operation = operation
        self._answer: Any = None

    def step(self) -> bool:
        """False when the operation has ended."""
        answer = self._answer
        try:
            step = self._operation.throw(answer) if isinstance(answer, ZooKeeperFailed) else self._operation.send(answer)
        except StopIteration as ended:
            self.result = ended.value
            return False
        if isinstance(step, Together):
            self._answer = [self._carry_out(each) for each in step.steps]  # type: ignore[arg-type]
        else:
            self._answer = None if isinstance(step, Pause) else self._carry_out(step)  # type: ignore[arg-type]
        return True

    def _carry_out(self, request: Request) -> Any:
        self.requests.append(request)
        try:
            return self.tree.carry_out(request)
        except ZooKeeperFailed as failure:
            return failure

    def end(self) -> Any:
        steps = 0
        while self.step():
            steps += 1
            assert steps < STEPS_MAX
        return self.result


def wrong(tree: MemoryTree, access: ZooKeeperAccess, counts: Callable[[str], bool] = lambda _: True) -> list[str]:
    """Nodes without the ACL that they should have."""
    return [path for path in ["", *tree.paths()] if counts(path) and tree[path].acl != acl_of(path or "/", access)]


def is_ours(path: str) -> bool:
    return path != "/zookeeper/config"


def test_every_node_of_an_own_server_gets_its_acl_and_configuration_is_left_to_the_server() -> None:
    tree = make_tree()
    changed = Run(tree, protect_tree(ACCESS, 1, 64)).end()
    created = (
        "/zookeeper/quota/",
        "/millrace/protected",
    )  # by this session, which gives them their ACL at once
    assert changed > 60 and wrong(tree, ACCESS, lambda path: is_ours(path) and not path.startswith(created)) == []
    assert tree["/zookeeper/config"].acl == OPEN


def test_a_tree_that_is_protected_costs_one_read() -> None:
    tree = make_tree()
    Run(tree, protect_tree(ACCESS, 1, 64)).end()
    again = Run(tree, protect_tree(ACCESS, 1, 64))
    assert again.end() is None and len(again.requests) == 1


def test_each_box_looks_for_itself_and_writes_only_what_differs() -> None:
    tree = make_tree()
    Run(tree, protect_tree(ACCESS, 1, 64)).end()
    tree.put("/config/topics/of-a-box-that-guards-nothing")
    for path in tree.paths():
        if path.startswith(("/zookeeper/quota/", "/millrace/protected")):
            tree.carry_out(SetAcl(path, acl_of(path, ACCESS)))
    other = Run(tree, protect_tree(ACCESS, 2, 64))
    assert other.end() == 1
    assert [request.path for request in other.requests if isinstance(request, SetAcl)] == ["/config/topics/of-a-box-that-guards-nothing"]


def test_after_a_death_at_any_step_the_next_incarnation_protects_the_whole_tree() -> None:
    whole = Run(make_tree(), protect_tree(ACCESS, 1, 64))
    steps = 0
    while whole.step():
        steps += 1
    assert steps > 10
    for cut in range(steps):
        tree = make_tree()
        first = Run(tree, protect_tree(ACCESS, 1, 64))
        for _ in range(cut):
            first.step()
        Run(tree, protect_tree(ACCESS, 1, 64)).end()
        assert (
            wrong(
                tree,
                ACCESS,
                lambda path: is_ours(path) and not path.startswith(("/zookeeper/quota/", "/millrace/protected")),
            )
            == []
        ), cut
        assert marker_path(1) in tree


def test_a_new_digest_replaces_the_old_one_everywhere_on_a_server_elsewhere() -> None:
    tree = make_tree()
    Run(tree, protect_tree(ELSEWHERE, 1, 64)).end()
    other = ELSEWHERE._replace(password="another")
    assert Run(tree, protect_tree(other, 1, 64)).end() > 60
    assert tree["/config/topics/t1"].acl == acl_of("/config/topics/t1", other) != acl_of("/config/topics/t1", ELSEWHERE)


def test_a_box_that_guards_nothing_for_a_while_has_the_tree_gone_through_again() -> None:
    tree = make_tree()
    Run(tree, protect_tree(ACCESS, 1, 64)).end()
    Run(tree, forget_protection(1)).end()
    Run(tree, forget_protection(1)).end()
    tree.put("/config/topics/made-meanwhile")
    assert Run(tree, protect_tree(ACCESS, 1, 64)).end() >= 1
    assert tree["/config/topics/made-meanwhile"].acl == acl_of("/config/topics/made-meanwhile", ACCESS)


def test_a_server_elsewhere_keeps_its_root_its_other_trees_and_what_was_stricter() -> None:
    tree = make_tree()
    stricter = (AclEntry(ALL, "digest", "admin:x"),)
    tree.carry_out(SetAcl("/consumers", stricter))
    Run(tree, protect_tree(ELSEWHERE, 1, 64)).end()
    assert tree[""].acl == tree["/foreign/node"].acl == OPEN
    assert tree["/consumers"].acl == stricter
    assert tree["/brokers/topics/t1"].acl == (OWN_ELSEWHERE, AclEntry(READ, "world", "anyone"))
    assert tree["/config/topics/t1"].acl == (OWN_ELSEWHERE,)
    assert not any(path.startswith("/zookeeper/quota/") for path in tree.paths())


@pytest.mark.parametrize(
    ("path", "others"),
    [
        ("/", ()),
        ("/config/topics/t", ()),
        ("/controller", ()),
        ("/consumersx", ()),
        ("/consumers/g/owners/t", (AclEntry(15, "sasl", "consumer"),)),
        ("/brokers/topics/t/partitions/0/state", (AclEntry(READ, "sasl", "consumer"),)),
    ],
)
def test_old_consumers_read_brokers_and_write_consumers_and_nothing_else(path: str, others: tuple[AclEntry, ...]) -> None:
    assert acl_of(path, ACCESS) == (OWN, *others)
    assert acl_of(path, None) == acl_of(path, ACCESS._replace(guards=False)) == OPEN


def test_what_clients_can_fill_is_bounded_by_a_part_of_the_heap() -> None:
    tree = make_tree()
    Run(tree, protect_tree(ACCESS, 1, 64)).end()
    [quota] = quotas(64)
    limits = tree[f"/zookeeper/quota{quota.path}/zookeeper_limits"].data
    assert limits == b"count=-1,bytes=-1=;byteHardLimit=%d;countHardLimit=%d" % (
        quota.bytes_max,
        quota.nodes_max,
    )
    assert quota.bytes_max + quota.nodes_max * 500 <= 64 << 18
