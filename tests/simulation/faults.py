"""What goes wrong in a run, and when: drawn from the seed.

The promise that is tested: an acknowledged record (acks=all) stays, and an offset below a high watermark keeps its meaning, whatever the network, the clocks of
sessions, ZooKeeper and any number of killed processes and boxes do. Power cuts and lost disks take what was not synced: of those one box at a time, and only
while every other member of the in-sync set is whole, and up and heard by ZooKeeper until that knows that the hurt box is gone (`README.md` says what that
leaves out).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from appliance.cluster.znodes import PartitionState
from tests.simulation.box import Box
from tests.simulation.invariants import Invariants
from tests.simulation.world import CLIENTS, MS, SECOND, ZOOKEEPER, World
from tests.simulation.zookeeper import ZooKeeper


class Faults:
    """`kinds`: names of the methods below, one of which is drawn each time; `aim`: how often it hits the leader."""

    def __init__(
        self,
        world: World,
        zookeeper: ZooKeeper,
        boxes: Sequence[Box],
        watched: Invariants,
        state: Callable[[], PartitionState],
        kinds: Sequence[str],
        every: int,
        aim: float,
    ) -> None:
        self._world, self._zookeeper, self._boxes, self._watched, self._state = world, zookeeper, boxes, watched, state
        self._kinds, self._every, self._aim = kinds, every, aim
        self.is_over = False
        self.count = 0
        self._hurt: Box | None = None
        world.after(int(world.chance.random() * every), self._next)

    def _next(self) -> None:
        if self.is_over:
            return
        if not self._is_any_box_hurt():
            kind = self._world.chance.choice(self._kinds)
            self.count += 1
            getattr(self, kind)(self._victim())
        self._world.after(int(self._world.chance.random() * 2 * self._every), self._next)

    def _victim(self) -> Box:
        leader = self._state().leader
        return self._boxes[leader - 1] if leader > 0 and self._world.chance.random() < self._aim else self._world.chance.choice(self._boxes)

    def _is_any_box_hurt(self) -> bool:
        """Whether a box that lost something is still taken for one that did not: until it has left the in-sync set nothing else goes wrong."""
        box = self._hurt
        if box is None:
            return False
        if box.is_up and not box.writer.needs_epoch_bump and box.writer.role and box.broker_id not in self._state().isr:
            self._hurt = None
        elif box.is_up and not box.writer.needs_epoch_bump and self._state().isr == (box.broker_id,):
            self._hurt = None
        return self._hurt is not None

    def end(self) -> None:
        """End all faults, and restart all boxes."""
        self.is_over = True
        self._world.note("everything heals")
        self._world.network.heal()
        self._zookeeper.is_down = False
        for box in self._boxes:
            if not box.is_up:
                box.start()

    # --- kinds of faults

    def kill_box(self, box: Box) -> None:
        if box.is_up:
            box.kill()
            self._world.after(self._while(), self._start, box)

    def kill_log_writer(self, box: Box) -> None:
        if box.is_up:
            box.restart_writer()

    def kill_controller(self, box: Box) -> None:
        if box.is_up:
            box.restart_controller()

    def cut_power(self, box: Box) -> None:
        if self._may_hurt(box):
            self._hurt = box
            self._watched.cuts.hurt.add(box.broker_id)
            box.cut_power()
            self._world.after(self._while(), self._start, box)

    def lose_disk(self, box: Box) -> None:
        if self._may_hurt(box):
            self._hurt = box
            self._watched.cuts.hurt.add(box.broker_id)
            box.lose_disk()
            self._world.after(self._while(), self._start, box)

    def lose_follower_and_leader(self, box: Box) -> None:
        """While a third box is out of sync, cut a follower's power and expire its session, then kill the leader's box.

        No replica leads then, and of the two in sync one has lost records.
        """
        leader = self._state().leader
        if self._may_hurt(box) and leader not in (-1, box.broker_id):
            self._hurt = box
            third = next(other for other in self._boxes if other.broker_id not in (leader, box.broker_id))
            third.kill()
            self._zookeeper.expire(third.controller.session.session_id)
            self._world.after(300 * MS, self._lose_both, box, self._boxes[leader - 1], third)

    def _lose_both(self, box: Box, leader: Box, third: Box) -> None:
        self._hurt = None
        if not self.is_over and set(self._state().isr) == {box.broker_id, leader.broker_id} and self._state().leader == leader.broker_id:
            self._hurt = box
            self._watched.cuts.hurt.add(box.broker_id)
            box.cut_power()
            leader.kill()
            for lost in (box, leader):
                self._zookeeper.expire(lost.controller.session.session_id)
                self._world.after(self._while(), self._start, lost)
        self._start(third)

    def cut_from_zookeeper(self, box: Box) -> None:
        self._cut(box.broker_id, ZOOKEEPER)

    def cut_from_another(self, box: Box) -> None:
        other = self._world.chance.choice(self._boxes)
        if other is not box:
            self._cut(box.broker_id, other.broker_id)

    def isolate(self, box: Box) -> None:
        """From all but clients, which stay connected."""
        self._isolate(box, (ZOOKEEPER, *(other.broker_id for other in self._boxes if other is not box)))

    def isolate_wholly(self, box: Box) -> None:
        self._isolate(box, (ZOOKEEPER, CLIENTS, *(other.broker_id for other in self._boxes if other is not box)))

    def expire_session(self, box: Box) -> None:
        """The box is well, and reaches ZooKeeper."""
        self._world.note(f"zookeeper: ends the session of box {box.broker_id}")
        self._zookeeper.expire(box.controller.session.session_id)
        ways = ((box.broker_id, ZOOKEEPER),)  # it is back before any box has noticed, or not
        self._world.network.cut.update(ways)
        self._world.after(int(self._world.chance.random() * 200 * MS), self._heal, ways)

    def expire_twice(self, box: Box) -> None:
        """And its followers."""
        self.expire_session(box)
        self._world.after(int(self._world.chance.random() * 100 * MS), self._expire_another)

    def _expire_another(self) -> None:
        if not self.is_over:
            self.expire_session(self._victim())

    def slow_box(self, box: Box) -> None:
        """Followers of it, or it as one, are behind."""
        self._world.network.slow_boxes.add(box.broker_id)
        self._world.after(self._while(), self._calm)

    def lose_zookeeper(self, _box: Box) -> None:
        self._world.note("zookeeper: serves no session")
        self._zookeeper.is_down = True
        self._world.after(self._while(), self._serve)

    def slow_network(self, _box: Box) -> None:
        self._world.network.slow, self._world.network.loss = 0.15, 0.03
        self._world.after(self._while(), self._calm)

    def slow_zookeeper(self, _box: Box) -> None:
        """Slow enough for states to be written long before their writers hear of it, and quick enough for sessions to live, mostly."""
        self._world.network.slow_zookeeper = 0.4
        self._world.after(self._while(), self._calm)

    def delete_records(self, box: Box) -> None:
        box.writer.delete_before(self._world.chance.randint(0, box.writer.high_watermark))

    # ---

    def _while(self) -> int:
        return int((0.05 + self._world.chance.random() * 2) * SECOND)

    def _may_hurt(self, box: Box) -> bool:
        """Only while another replica is in sync, and all boxes are up, healthy and connected."""
        network = self._world.network
        is_calm = not network.cut and network.is_calm and not self._zookeeper.is_down
        return is_calm and self._hurt is None and all(other.is_well for other in self._boxes) and bool(set(self._state().isr) - {box.broker_id})

    def _cut(self, one: int, other: int) -> None:
        ways = self._world.chance.choice((((one, other), (other, one)), ((one, other),), ((other, one),)))
        self._world.note(f"network: cut {ways}")
        self._world.network.cut.update(ways)
        self._world.after(self._while(), self._heal, ways)

    def _isolate(self, box: Box, nodes: tuple[int, ...]) -> None:
        ways = tuple((one, other) for node in nodes for one, other in ((box.broker_id, node), (node, box.broker_id)))
        self._world.note(f"box {box.broker_id}: cut from {nodes}")
        self._world.network.cut.update(ways)
        self._world.after(self._while(), self._heal, ways)

    def _heal(self, ways: tuple[tuple[int, int], ...]) -> None:
        self._world.note(f"network: healed {ways}")
        self._world.network.cut.difference_update(ways)

    def _calm(self) -> None:
        network = self._world.network
        network.calm()

    def _serve(self) -> None:
        if self._zookeeper.is_down:
            self._zookeeper.is_down = False
            self._zookeeper.forgive()

    def _start(self, box: Box) -> None:
        if not box.is_up:
            self._world.note(f"box {box.broker_id}: starts")
            box.start()


KINDS = (
    "kill_box",
    "kill_box",
    "kill_log_writer",
    "kill_controller",
    "cut_power",
    "lose_disk",
    "lose_follower_and_leader",
    "cut_from_zookeeper",
    "cut_from_another",
    "isolate",
    "isolate_wholly",
    "expire_session",
    "expire_twice",
    "slow_box",
    "lose_zookeeper",
    "slow_network",
    "slow_zookeeper",
    "delete_records",
)
