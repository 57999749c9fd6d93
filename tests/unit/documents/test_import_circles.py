"""No file of the product imports a file that imports it, directly or through other files; and a class name exists once.

Files in a circle can only be read, tested and moved together. Imports under TYPE_CHECKING count. Private classes may share a name.
"""

from __future__ import annotations

from copy import deepcopy

import pytest

from tests.unit.documents.figures import ProductTree


@pytest.fixture(scope="module")
def tree() -> ProductTree:
    return ProductTree()


@pytest.mark.slow
def test_no_files_of_the_product_import_each_other(tree: ProductTree) -> None:
    circles = tree.circles()
    assert not circles, "\n".join(", ".join(circle) for circle in circles)


@pytest.mark.slow
def test_a_file_that_imports_its_importer_closes_a_circle(tree: ProductTree) -> None:
    imported = "appliance.base.errors"
    importer = next(module for module, imports in tree.imports.items() if imported in imports)
    changed = deepcopy(tree)
    changed.imports[imported].add(importer)
    [circle] = changed.circles()
    assert {imported, importer} <= set(circle)


@pytest.mark.slow
def test_a_class_name_exists_once(tree: ProductTree) -> None:
    assert {name: modules for name, modules in tree.classes.items() if len(modules) > 1} == {}
