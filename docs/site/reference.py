"""Makes the pages of the Python API from the docstrings of the client.

Each name of `__all__` has a section, with its signature and its docstring: arguments, errors, example. A class also has
its public methods, with those that it inherits. Must never import the client: some of its modules need other packages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import griffe

PAGES = {
    "client": ("Client API", ["beanstalk_client"], "docs/client.md"),
    "tasks": (
        "Tasks and schedules in Python",
        ["beanstalk_client.tasks", "beanstalk_client.schedules"],
        "docs/workers.md",
    ),
}
"""The title of each page, the modules that it is made of, and the page that explains them."""

KINDS = {"parameters": "Arguments", "attributes": "Attributes", "raises": "Errors", "returns": "Returns"}


def pages(sources: Path) -> Iterator[tuple[str, str]]:
    """The name and the text of each page.

    Args:
        sources: the directory of the package `beanstalk_client`.
    """
    loader = griffe.GriffeLoader(search_paths=[sources])
    loader.load("beanstalk_client")
    loader.resolve_aliases(external=False)
    for name, (title, modules, explained) in PAGES.items():
        parts = [
            f"# {title}\n",
            f"Made from the docstrings of the package. [{explained}](../{explained}) explains it.\n",
        ]
        described: dict[str, str] = {}
        for module in modules:
            found = loader.modules_collection[module]
            for exported in sorted(map(str, found.exports or ()), key=lambda each: (each.startswith("Async"), each)):
                parts += section(found[exported], described)
        yield name, "\n".join(parts)


def section(named: Any, described: dict[str, str], owner: str = "") -> Iterator[str]:
    """Describe a function, a class with its public members, or a value.

    Args:
        described: the owners of all members so far, by their paths: classes that inherit them only name the owner.
    """
    item = named.final_target if named.is_alias else named
    name = f"{owner}{named.name}"
    if item.docstring is None:
        return
    yield f"{'###' if owner else '##'} {name}\n"
    if item.is_function or item.is_class:
        yield f"```python\n{signature(item, name)}\n```\n"
    yield from text(item.docstring)
    if not item.is_class:
        return
    others = set()
    for member in item.all_members.values():
        if member.name.startswith("_") or not (member.is_function or "property" in member.labels):
            continue
        other = described.setdefault(member.canonical_path, name)
        if other == name:
            yield from section(member, described, f"{name}.")
        else:
            others.add(other)
    for other in sorted(others):
        yield f"It has the same members as `{other}`; those of an asynchronous class are coroutines.\n"


def signature(item: Any, name: str) -> str:
    parameters = [each for each in item.parameters if each.name not in ("self", "cls")]
    shown, is_named = [], False
    for each in parameters:
        if each.kind is griffe.ParameterKind.keyword_only and not is_named:
            shown.append("*")
        is_named = each.kind in (griffe.ParameterKind.keyword_only, griffe.ParameterKind.var_positional)
        star = {griffe.ParameterKind.var_positional: "*", griffe.ParameterKind.var_keyword: "**"}.get(each.kind, "")
        shown.append(f"{star}{each.name}" + ("" if each.default is None or star else f"={each.default}"))
    return f"{name}({', '.join(shown)})"


def text(docstring: Any) -> Iterator[str]:
    """A docstring in Markdown."""
    for part in docstring.parse("google", warnings=False):
        kind = part.kind.value
        if kind in KINDS:
            yield f"**{KINDS[kind]}**\n"
            yield from items(part.value)
        elif kind == "admonition":
            yield f"```python\n{part.value.description}\n```\n"
        else:
            yield f"{part.value}\n"


def items(listed: Iterable[Any]) -> Iterator[str]:
    for each in listed:
        name = getattr(each, "name", "") or str(each.annotation).strip("()")
        what = " ".join(each.description.split())
        yield f"- `{name}`: {what}" if name else f"- {what}"
    yield ""
