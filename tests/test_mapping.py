"""Each module has its test where one looks for it, or a row in modules.toml. Each test has a subject and an assertion.

The tests of `x/y.py` are `tests/x/test_y.py` and `tests/x/test_y_*.py`. The client's are in one directory, and have the
names of packages in theirs: `client/beanstalk_client/x/y.py` has `tests/client/test_x_y.py`.
"""

import ast
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
ROOT = TESTS.parent
ROWS = tomllib.loads((TESTS / "modules.toml").read_text())
PRODUCT = ("beanstalk_server", "client/beanstalk_client")
HOUSES = (*PRODUCT, "bench", "conformance")
FILES = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}


def has_code(path):
    """Whether there is more in a file than a docstring."""
    return path.name != "__init__.py" or len(ast.parse(path.read_text()).body) > 1


def modules_of(house):
    return [path.relative_to(ROOT) for path in sorted((ROOT / house).rglob("*.py")) if has_code(path)]


def place(house, module):
    """Where the tests of a module are: a path without what follows the module's name."""
    names = module.relative_to(house).with_suffix("").parts
    if names[-1] == "__init__":
        names = names[:-1] or names
    if house == "client/beanstalk_client":
        return f"client/test_{'_'.join(names)}"
    return "/".join([*([] if house == "beanstalk_server" else [house]), *names[:-1], f"test_{names[-1]}"])


PLACES = {place(house, module): str(module) for house in HOUSES for module in modules_of(house)}


def owner(test):
    """The module that a test is of, if its name says so: test_a_b.py is of a_b.py; without one, of a.py."""
    name = test.removesuffix(".py")
    while name not in PLACES and "_" in name.rpartition("/test_")[2]:
        name = name.rpartition("_")[0]
    return PLACES.get(name)


FOUND = {owner(test) for test in FILES} - {None}


@pytest.mark.parametrize("house", PRODUCT)
def test_every_module_has_a_test(house):
    found = FOUND | ROWS["modules"].keys()
    assert [str(module) for module in modules_of(house) if str(module) not in found] == []


def test_every_test_is_of_something():
    named = {test for row in ROWS["modules"].values() for test in row.split()}
    assert sorted(test for test in FILES - named - ROWS["wholes"].keys() if owner(test) is None) == []


def test_every_row_is_needed_and_names_what_exists():
    modules, wholes = ROWS["modules"], ROWS["wholes"]
    assert [modules.keys() - set(PLACES.values()), modules.keys() & FOUND] == [set(), set()]
    assert [row for row in modules.values() if row != "declarations" and not FILES.issuperset(row.split())] == []
    named = {test for row in modules.values() for test in row.split()}
    assert [wholes.keys() - FILES, wholes.keys() & named, {test for test in wholes if owner(test)}] == [set()] * 3


@pytest.mark.parametrize("table", ROWS)
def test_rows_are_sorted(table):
    assert list(ROWS[table]) == sorted(ROWS[table])


def asserts(node):
    match node:
        case ast.Assert() | ast.Raise(exc=ast.Call(func=ast.Name("AssertionError"))):
            return True
        case ast.Call(
            func=ast.Attribute(ast.Name("pytest"), "raises" | "warns") | ast.Attribute(attr="assert_outcomes")
        ):
            return True
    return False


def functions():
    """The functions of the tests and their harness: file, name, whether it asserts itself, names of what it calls.

    Assertions in the teardown of a fixture do not count.
    """
    for path in [*TESTS.rglob("*.py"), *(ROOT / "harness").rglob("*.py")]:
        for function in ast.walk(ast.parse(path.read_text())):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                nodes = [node for part in function.body for node in ast.walk(part)]
                called = [node.func for node in nodes if isinstance(node, ast.Call)]
                names = {getattr(each, "attr", None) or getattr(each, "id", None) for each in called}
                is_fixture = any("pytest.fixture" in ast.unparse(each) for each in function.decorator_list)
                yield path, function.name, not is_fixture and any(map(asserts, nodes)), names


def test_every_test_asserts_something():
    """Itself, or in what it calls: a function of the same file, or of other files if all of that name assert."""
    found, places, asserting, before = defaultdict(list), defaultdict(set), set(), None
    for path, name, is_sure, names in functions():
        found[path, name].append((is_sure, names))
        places[name].add((path, name))

    def is_sure_of(path, name):
        called = {(path, name)} if (path, name) in found else places.get(name, set())
        return called and called <= asserting

    while asserting != before:
        before = asserting
        asserting = {
            (path, name)
            for (path, name), each in found.items()
            if all(is_sure or any(is_sure_of(path, called) for called in names) for is_sure, names in each)
        }
    tests = {(path, name) for path, name in found if path.name.startswith("test_") and name.startswith("test_")}
    assert sorted(f"{path.relative_to(ROOT)}::{name}" for path, name in tests - asserting) == []
