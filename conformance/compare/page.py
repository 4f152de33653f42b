"""Reports the outcome of runs: as a table, and as the page docs/compatibility.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from beanstalk_server.wire.commands import EXTENSIONS, PROTOCOL
from conformance.compare.differences import read_differences
from conformance.conversation import Conversation
from conformance.run import Run

COMMAND: Final = re.compile(r"(?:\{\d+ \* )?([a-z]+(?:-[a-z]+)*)(?= |\\|$)")
"""The beginning of a sent line that may be a command."""

REPLY: Final = re.compile(r"(?:\{\d+ \* )?([A-Z]+(?:_[A-Z]+)*)( .+?)?(?:\\r.*)?")
"""An expected line that may be a reply."""

COMMANDS: Final = [command.name for command in (*PROTOCOL, *EXTENSIONS)]
"""The commands that a table of the page lists."""

QUOTES: Final = "strings in statistics"
"""The intended difference that {"..."} in a text shows, even without `differs:`."""

HEAD: Final = """\
# Compatibility

This page has the results of `make compatibility`, which runs every conversation in
[conformance](../conformance/README.md) against {servers}.
Conversations expect beanstalkd's replies, unless they name an intended difference.

## Conversations

Each cell has the number of conversations that passed, of those that apply to the server. Conversations for one server
show an intended difference.
"""


def table(runs: Sequence[Run]) -> str:
    """For each theme, how many conversations passed, of those that apply to the server."""
    rows = [["", *(run.name for run in runs)], *_counts(runs), ["seconds", *(f"{run.seconds:.1f}" for run in runs)]]
    again = [sum(outcome.tries > 1 for outcome in run.outcomes) for run in runs]
    if any(again):
        rows.append(["run again", *map(str, again)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _counts(runs: Sequence[Run]) -> list[list[str]]:
    themes = list(dict.fromkeys(outcome.conversation.theme for outcome in runs[0].outcomes))
    return [[theme, *(_count(run, theme) for run in runs)] for theme in themes] + [
        ["all", *(_count(run, None) for run in runs)]
    ]


def _count(run: Run, theme: str | None) -> str:
    outcomes = [outcome for outcome in run.outcomes if theme is None or outcome.conversation.theme == theme]
    passed = sum(outcome.status == "passed" for outcome in outcomes)
    return f"{passed} of {sum(outcome.status != 'skipped' for outcome in outcomes)}"


def commands(conversation: Conversation) -> set[str]:
    """The commands that are sent in a conversation, if a line begins with them."""
    found = (COMMAND.match(_said(step.source, ">")) for step in conversation.steps if step.action == ">")
    return {match[1] for match in found if match}


def replies(conversation: Conversation) -> set[str]:
    """The replies that are expected in a conversation: the word, and " ..." if something follows."""
    found = (REPLY.fullmatch(_said(step.source, "<")) for step in conversation.steps if step.action == "<")
    return {match[1] + (" ..." if match[2] else "") for match in found if match}


def _said(source: str, mark: str) -> str:
    return source.partition(mark)[2].removeprefix(" ")


def page(runs: Sequence[Run]) -> str:
    """The text of docs/compatibility.md."""
    conversations = [outcome.conversation for outcome in runs[0].outcomes]
    parts = [HEAD.format(servers=" and ".join(_server_name(run) for run in runs))]
    parts.append(_markdown(["theme", *(_server_name(run) for run in runs)], _counts(runs)))
    sent = Counter(command for conversation in conversations for command in commands(conversation))
    parts.append("\n## Commands\n\nNumber of conversations that send each command.\n")
    parts.append(_markdown(["command", "conversations"], [[f"`{name}`", str(sent[name])] for name in COMMANDS]))
    shown = Counter(conversation.differs for conversation in conversations)
    shown[QUOTES] += sum(any('{"' in step.source for step in conversation.steps) for conversation in conversations)
    parts.append(
        "\n## Intended differences\n\nThe rows of [differences.md](differences.md), and the number of conversations"
        " that show each.\n"
    )
    rows = [row for table in read_differences().values() for row in table if shown[row.name]]
    parts.append(_markdown(["difference", "conversations"], [[row.name, str(shown[row.name])] for row in rows]))
    return "\n".join(parts)


def _server_name(run: Run) -> str:
    return "this server" if run.name == "ours" else run.name


def _markdown(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)
