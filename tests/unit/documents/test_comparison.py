"""The table of docs/comparison.md: what is not "no" has a link to documentation of that product, or a command that exists.

Weak: whether a page on the network is still there no test here asks.
"""

from __future__ import annotations

import re

from appliance.command.main import build_parser
from tests.unit.documents.allow_list import ROOT

PAGE = (ROOT / "docs" / "comparison.md").read_text()
LINKS = dict(re.findall(r"^\[([a-z-]+)\]: (https://\S+)$", PAGE, re.MULTILINE))
HOSTS = {
    "Redpanda Console": r"docs\.redpanda\.com/.*/console/",
    "kafka-ui": r"github\.com/kafbat/kafka-ui",
    "rpk": r"docs\.redpanda\.com/.*/rpk",
    "Grafana, Loki": r"grafana\.com/docs/(grafana|loki)/latest/",
    "Graylog": r"github\.com/Graylog2/",
    "VictoriaLogs": r"docs\.victoriametrics\.com/victorialogs/",
}


def table() -> list[list[str]]:
    lines = PAGE.partition("| need |")[2].partition("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in [f"| need |{lines[0]}", *lines[2:]]]


def test_each_yes_of_another_product_links_to_its_documentation() -> None:
    products, *rows = table()
    used = set()
    for row in rows:
        assert len(row) == len(products)
        for product, cell in zip(products[1:-1], row[1:-1], strict=True):
            if cell != "no":
                found = re.fullmatch(r"\[[^\]]+\](?:\[([a-z-]+)\]|\((https://\S+)\))", cell)
                assert found is not None, f"{row[0]}, {product}: {cell}"
                used.update({found[1]} - {None})
                link = found[2] or LINKS[found[1]]
                assert re.match("https://" + HOSTS[product], link), f"{row[0]}, {product}: {link}"
    assert used == LINKS.keys(), "each link is used"


def test_each_yes_of_millrace_is_a_page_or_a_command() -> None:
    root = build_parser()
    for need, *_, cell in table()[1:]:
        commands, pages = re.findall(r"`millrace ([^`]+)`", cell), re.findall(r"\]\(([^)#]+)", cell)
        assert cell == "no" or commands or pages, need
        assert all((ROOT / "docs" / page).is_file() for page in pages)
        for command in commands:
            parser, words = root, command.split()
            while words and not words[0].startswith("-") and hasattr(parser, "commands"):
                parser = parser.commands[words.pop(0)]
            known = {spelling for each in parser.params for spelling in each.opts}
            assert {word for word in words if word.startswith("-")} <= known, command
