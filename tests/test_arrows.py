"""Which room may import which: arrows point down, and files of different ideas are in no circle (docs/design.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

ROOMS = [
    ["queue", "tube_names", "version", "events"],
    ["settings"],
    ["access"],
    ["link", "storage", "wire"],
    ["admin"],
    ["server"],
    ["routing"],
    ["io_processes", "cluster"],
    ["servers"],
    ["cli", "__init__", "__main__"],
]
"""The rooms of the server from below, and files that are in none."""

CIRCLES = {
    "beanstalk_server": [
        "cluster.node cluster.shard",
        "queue.client queue.durations queue.fair_heap queue.groups queue.heap queue.job queue.policy "
        "queue.reserved_jobs queue.table queue.throttle queue.tube queue.wall_clock queue.weights",
        "routing.branch routing.local routing.operations routing.reserving routing.router",
        "routing.client routing.clients routing.place",
        "wire.authorization wire.commands wire.listings wire.server_info wire.session wire.yaml",
    ],
    "beanstalk_client": [],
}
"""All circles that there are, one idea each: files that import each other, also in a function or for types only."""

PACKAGES = {"beanstalk_server": ROOT / "beanstalk_server", "beanstalk_client": ROOT / "client" / "beanstalk_client"}


def imports_of(package):
    """The files of a package, by their names without it: the other files that each of them imports anywhere."""
    root = PACKAGES[package]
    paths = {".".join(path.relative_to(root).with_suffix("").parts): path for path in root.rglob("*.py")}
    files = {name.removesuffix(".__init__"): path for name, path in paths.items()}
    found = {}
    for name, path in files.items():
        asked = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(f"{package}."):
                module = node.module.removeprefix(package).lstrip(".")
                members = {f"{module}.{each.name}".lstrip(".") for each in node.names}
                asked |= (members & files.keys()) or {module or "__init__"}
        found[name] = asked & files.keys() - {name}
    return found


def circles_of(imports):
    """The largest sets of files in which each leads to all others."""
    reached = {}
    for name in imports:
        seen, left = set(), [name]
        while left:
            new = imports[left.pop()] - seen
            seen |= new
            left += new
        reached[name] = seen
    circles = {frozenset(each for each in reached[name] if name in reached[each]) for name in imports}
    return sorted(" ".join(sorted(circle)) for circle in circles if len(circle) > 1)


def test_arrows_point_down():
    level = {room: number for number, rooms in enumerate(ROOMS) for room in rooms}
    imports = imports_of("beanstalk_server")
    assert len(imports) > 100
    up = {
        (name, other)
        for name, others in imports.items()
        for other in others
        if level[name.split(".")[0]] < level[other.split(".")[0]]
    }
    assert not up


def test_the_server_does_not_import_places():
    imports = imports_of("beanstalk_server")
    assert "wire.places" in imports["routing.clients"]
    assert not {name for name, others in imports.items() if name.startswith("server.") and "wire.places" in others}


@pytest.mark.parametrize("package", PACKAGES)
def test_files_of_different_ideas_are_in_no_circle(package):
    assert circles_of(imports_of(package)) == sorted(CIRCLES[package])
