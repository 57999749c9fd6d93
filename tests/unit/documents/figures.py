"""Print the figures of the code base that say how hard it is to enter: `.venv/bin/python -m tests.unit.documents.figures [--lists]`.

`--lists` adds the files below 60 lines with one importer, the class names that exist twice, and the circles of imports.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
from collections import Counter, defaultdict
from pathlib import Path

from tests.unit.documents.allow_list import ROOT
from tests.unit.documents.plain_language import PRODUCT, found_hits

GENERATED = {"loadtest/RESULTS.md", "loadtest/BESIDE_KAFKA.md", "loadtest/MODEL.md", "docs/metrics.md", "docs/settings.md"}
MARKED = re.compile(r"^<!-- (\w+) -->\n.*?^<!-- /\1 -->\n", re.DOTALL | re.MULTILINE)
"""A part of a page that a program writes; tests or the program itself keep it so."""
SMALL = 60
PARAMETERS_MAX = 6


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


class ProductTree:
    """The product's modules with their lines, imports, classes and functions."""

    def __init__(self) -> None:
        self.paths = {module_of(path): path for top in PRODUCT for path in sorted((ROOT / top).rglob("*.py"))}
        self.lines = {module: path.read_text().count("\n") for module, path in self.paths.items()}
        self.imports: dict[str, set[str]] = defaultdict(set)
        self.classes: dict[str, list[str]] = defaultdict(list)
        self.wide_functions = 0
        for module, path in self.paths.items():
            for node in ast.walk(ast.parse(path.read_text())):
                self._take(module, node)
        self.importers = Counter(imported for found in self.imports.values() for imported in found)

    def _take(self, module: str, node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            self.imports[module] |= {alias.name for alias in node.names} & self.paths.keys()
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
            self.imports[module] |= names & self.paths.keys()
        elif isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            self.classes[node.name].append(module)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            self.wide_functions += len(names) - (names[:1] in (["self"], ["cls"])) > PARAMETERS_MAX

    def circles(self) -> list[list[str]]:
        """Return the groups of modules that import each other, by Tarjan's algorithm; packages do not count."""
        order: dict[str, int] = {}
        low: dict[str, int] = {}
        stack: list[str] = []
        found: list[list[str]] = []

        def visit(module: str) -> None:
            order[module] = low[module] = len(order)
            stack.append(module)
            for imported in self.imports[module] - {module}:
                if self.paths[imported].name == "__init__.py":
                    continue
                if imported not in order:
                    visit(imported)
                    low[module] = min(low[module], low[imported])
                elif imported in stack:
                    low[module] = min(low[module], order[imported])
            if low[module] == order[module]:
                group = stack[stack.index(module) :]
                del stack[-len(group) :]
                if len(group) > 1:
                    found.append(sorted(group))

        for module in self.paths:
            if module not in order:
                visit(module)
        return found


def markdown_bytes() -> tuple[int, int]:
    """Return the bytes of the Markdown that persons write, and of the pages and marked parts that programs write."""
    hidden = {".venv", ".git", ".pytest_cache", "node_modules"}
    pages = {str(path.relative_to(ROOT)): path.read_text() for path in ROOT.rglob("*.md") if not hidden & set(path.parts)}
    parts = [text if name in GENERATED else "".join(match.group() for match in MARKED.finditer(text)) for name, text in pages.items()]
    total, generated = (sum(len(text.encode()) for text in texts) for texts in (pages.values(), parts))
    return total - generated, generated


def main(arguments: list[str]) -> int:
    tree = ProductTree()
    filled = [count for module, count in tree.lines.items() if count and tree.paths[module].name != "__init__.py"]
    alone = [module for module, count in tree.importers.items() if count == 1]
    twice = {name: modules for name, modules in sorted(tree.classes.items()) if len(modules) > 1}
    circles = tree.circles()
    written, generated = markdown_bytes()
    print(f"product files                          {len(tree.paths):>8,}")
    print(f"product lines                          {sum(tree.lines.values()):>8,}")
    print(f"lines of the median file               {statistics.median(filled):>8,.0f}")
    print(f"files with one importer                {len(alone):>8,}")
    print(f"functions with more than {PARAMETERS_MAX} parameters  {tree.wide_functions:>8,}")
    print(f"class names that exist twice           {len(twice):>8,}")
    print(f"circles of imports                     {len(circles):>8,}")
    print(f"retired words                          {sum(map(len, found_hits().values())):>8,}")
    print(f"Markdown, written (KB)                 {written / 1000:>8,.0f}")
    print(f"Markdown, generated (KB)               {generated / 1000:>8,.0f}")
    if arguments == ["--lists"]:
        print("\nbelow 60 lines, with one importer:")
        for module in sorted(module for module in alone if tree.lines[module] < SMALL):
            importer = next(each for each, imported in tree.imports.items() if module in imported)
            print(f"  {module} ({tree.lines[module]}) in {importer}")
        print("\nclass names that exist twice:")
        for name, modules in twice.items():
            print(f"  {name}: {', '.join(modules)}")
        print("\ncircles of imports:")
        for circle in circles:
            print(f"  {', '.join(circle)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
