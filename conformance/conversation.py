r"""Reads conversations from files: who sends what, and what each must get. README.md describes the file format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from . import text
from .text import Text, TextError

DIRECTORY: Final = Path(__file__).parent / "conversations"

GROUPS: Final = ("protocol", "binlog", "extensions")
"""The directories of conversations: what beanstalkd does; what it keeps at a restart; docs/protocol-extensions.md."""

GUARDS: Final = ("ours", "beanstalkd", "before 1.13", "since 1.13")
"""The servers that a line or a conversation is meant for; this server counts as the version that it answers as."""

VERBS: Final = ("connects", "disconnects", "resets", "shuts down", "is closed", "is silent")
"""What a client may do besides sending, and what it may expect besides replies."""

TITLE: Final = re.compile(r"== (.+)")
FIELD: Final = re.compile(r"(differs|only|server|memory): (.+)")
LINE: Final = re.compile(r"(?:([a-z][a-z0-9]*) ?)?([<>|])(?: (.*))?")
VERB: Final = re.compile(rf"(?:([a-z][a-z0-9]*) )?({'|'.join(VERBS)})")
TIME: Final = re.compile(r"(wait|within) (\d+(?:\.\d+)?)")
SIGNAL: Final = re.compile(r"signal (USR1)")
GUARD: Final = re.compile(rf"\[({'|'.join(GUARDS)})\] (.*)")

NOTHING: Final = Text(())

CLIENT: Final = "client"
"""The name of a client that a conversation gives no name."""


class FormatError(ValueError):
    """A file cannot be read: the message names the file and the line."""


@dataclass(frozen=True)
class Step:
    """One line of a conversation.

    `action` is ">" (send), "<" and "|" (expect a line that ends in CR LF, in LF), one of VERBS, "wait", "within",
    "split", "restart" or "signal".
    """

    action: str
    source: str
    line: int
    client: str = CLIENT
    text: Text = NOTHING
    ends: bool = True
    seconds: float = 0.0
    guard: str = ""


@dataclass
class Conversation:
    """What is said under one title.

    Attributes:
        place: file name and line.
        theme: the file's name: a command, or what its conversations have in common.
        group: the file's directory, one of GROUPS; "" for a file elsewhere.
        differs: the intended difference that it shows, by name, or "".
        only: the servers that it is meant for (one of GUARDS), or "".
        options: of the server, which is then started for it alone; None if it can share a server.
        memory: how many MiB the server may take beyond those it takes at its start; 0: no limit.
    """

    title: str
    place: str
    theme: str
    group: str = ""
    differs: str = ""
    only: str = ""
    options: tuple[str, ...] | None = None
    memory: int = 0
    steps: list[Step] = field(default_factory=list)

    @property
    def waits(self) -> float:
        """Seconds of waiting in it."""
        return sum(step.seconds for step in self.steps if step.action == "wait")

    @property
    def restarts(self) -> bool:
        """Whether the server is restarted in it."""
        return any(step.action == "restart" for step in self.steps)

    @property
    def guards(self) -> set[str]:
        return {guard for guard in (self.only, *(step.guard for step in self.steps)) if guard}


def read_all(directory: Path = DIRECTORY) -> list[Conversation]:
    """The conversations of all groups, by file name and in the order of each file."""
    return [
        found for group in GROUPS for path in sorted((directory / group).glob("*.txt")) for found in read_file(path)
    ]


def read_file(path: Path) -> list[Conversation]:
    group = path.parent.name if path.parent.name in GROUPS else ""
    return list(read(path.read_text(), path.name, group))


def read(source: str, name: str, group: str = "") -> Iterator[Conversation]:
    """The conversations of one file.

    Raises:
        FormatError: a line cannot be read, nothing is expected, or a guard has no named difference.
    """
    conversation: Conversation | None = None
    for number, line in enumerate(source.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        try:
            if title := TITLE.fullmatch(line):
                if conversation:
                    yield _checked(conversation)
                conversation = Conversation(title[1], f"{name}:{number}", Path(name).stem, group)
            elif conversation is None:
                raise FormatError("a file must begin with a title line, such as: == TITLE")
            elif not conversation.steps and (found := FIELD.fullmatch(line)):
                _set(conversation, found[1], found[2])
            else:
                conversation.steps.append(_step(line, number))
        except (FormatError, TextError) as error:
            raise FormatError(f"{name}:{number}: {error}: {line}") from None
    if conversation:
        yield _checked(conversation)


def _set(conversation: Conversation, key: str, value: str) -> None:
    match key:
        case "differs":
            conversation.differs = value
        case "only":
            if value not in GUARDS:
                raise FormatError(f"only: must be one of {', '.join(GUARDS)}")
            conversation.only = value
        case "server":
            conversation.options = () if value == "fresh" else tuple(value.split())
        case "memory":
            conversation.memory = int(value)
            conversation.options = conversation.options or ()


def _step(line: str, number: int) -> Step:
    source = line
    guard = ""
    if found := GUARD.fullmatch(line):
        guard, line = found[1], found[2]
    if found := LINE.fullmatch(line):
        said, ends = text.read(found[3] or "")
        return Step(found[2], source, number, found[1] or CLIENT, said, ends, guard=guard)
    if found := VERB.fullmatch(line):
        return Step(found[2], source, number, found[1] or CLIENT, guard=guard)
    if found := TIME.fullmatch(line):
        return Step(found[1], source, number, seconds=float(found[2]), guard=guard)
    if SIGNAL.fullmatch(line):
        return Step("signal", source, number, guard=guard)
    if line in ("split", "restart"):
        return Step(line, source, number, guard=guard)
    raise FormatError("invalid line: must have >, < or | after the client's name, or be a step such as `wait 1`")


def _checked(conversation: Conversation) -> Conversation:
    """Check that a conversation can fail, and that it names the difference if it is not the same for all servers."""
    if bool(conversation.guards) != bool(conversation.differs):
        raise FormatError(f"{conversation.place}: `differs:` and guards ([ours], only: ...) require each other")
    if not any(step.action in ("<", "|", "is closed", "is silent") for step in conversation.steps):
        raise FormatError(
            f"{conversation.place}: the conversation expects nothing: add a step that can fail, such as `<`"
        )
    if any(step.action == "signal" for step in conversation.steps) and conversation.options is None:
        raise FormatError(f"{conversation.place}: a signal needs a server of its own (server: fresh)")
    if conversation.restarts and conversation.options is None:
        raise FormatError(f"{conversation.place}: a restart needs a server of its own (server: fresh)")
    return conversation
