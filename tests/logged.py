"""The calls of the log in the sources: what they name, at which level, with which fields and texts."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
LEVELS = {"debug", "info", "warning", "error", "exception", "critical", "log"}
LOGS = {"log", "_log", "logger", "_logger"}
PAGE = ROOT / "docs" / "observability.md"
BEGINNING, END = "<!-- events -->\n", "<!-- end of events -->\n"


class Call(NamedTuple):
    """One call of the log."""

    place: str
    level: str
    name: str
    """Of its event; "" if it has none."""
    fields: frozenset
    texts: frozenset
    """Its templates: several, if it chooses."""


def calls(root=ROOT / "beanstalk_server"):
    """All of them, in the order of the files."""
    found = []
    for path in sorted(root.rglob("*.py")):
        tree = ast.parse(path.read_text())
        values = {
            node.targets[0].id: node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
        }
        called = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
        for node in ast.walk(tree):
            if is_of_log(node) and node not in called:
                place = f"{path.relative_to(root)}:{node.lineno}"
                found.append(Call(place, node.attr, "", frozenset(), frozenset()))
            elif isinstance(node, ast.Call) and is_of_log(node.func):
                place = f"{path.relative_to(root)}:{node.lineno}"
                texts = templates(node.args[0], values)
                last = node.args[-1]
                is_named = isinstance(last, ast.Call) and ast.unparse(last.func) == "event" and len(node.args) == 2
                name = last.args[0].value if is_named else ""
                fields = frozenset(each.arg for each in last.keywords) if is_named else frozenset()
                found.append(Call(place, node.func.attr.replace("exception", "error"), name, fields, texts))
    return found


def is_of_log(function):
    if not isinstance(function, ast.Attribute) or function.attr not in LEVELS:
        return False
    taker = function.value
    return (taker.id if isinstance(taker, ast.Name) else getattr(taker, "attr", "")) in LOGS


def templates(node, values):
    """The texts that an expression may be; a name stands for what its module has assigned to it."""
    if isinstance(node, ast.IfExp):
        return templates(node.body, values) | templates(node.orelse, values)
    if isinstance(node, ast.Name):
        return templates(values[node.id], values)
    assert isinstance(node, ast.Constant), f"a text of the log that is made as the program runs: {ast.unparse(node)}"
    return frozenset([node.value])


def shown_fields(text):
    return set(re.findall(r"%\((\w+)\)", text))


def table():
    """The table of docs/observability.md."""
    events = {}
    for call in calls():
        level, fields, texts = events.setdefault(call.name, (set(), set(), set()))
        level.add(call.level)
        fields |= call.fields
        texts |= call.texts
    rows = ["| event | level | message | fields besides |", "|---|---|---|---|"]
    for name, (levels, fields, texts) in sorted(events.items()):
        shown = "<br>".join(re.sub(r"%\((\w+)\)[^a-z%]*[a-z]", r"`\1`", text) for text in sorted(texts, key=len))
        besides = ", ".join(f"`{each}`" for each in sorted(fields - set().union(*map(shown_fields, texts))))
        rows.append(f"| `{name}` | {', '.join(sorted(levels))} | {shown} | {besides} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    before, _, rest = PAGE.read_text().partition(BEGINNING)
    PAGE.write_text(before + BEGINNING + table() + END + rest.partition(END)[2])
