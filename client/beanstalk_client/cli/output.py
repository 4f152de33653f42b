"""Prints the results of commands: tables on a terminal, plain columns into a pipe, or JSON. Defines exit statuses.

Into a pipe, a table is its rows with tabs between the columns, and a header. Text that comes from a server is shown on
a terminal with its control characters escaped: a job must not be able to control the terminal of its reader.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TextIO

CONTROL: Final = {code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if chr(code) not in "\t\n"}
DIRECTION: Final = (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
"""Characters that have what follows them shown in another direction or line than it is written in."""
ESCAPES: Final = CONTROL | {code: f"\\u{code:04x}" for code in DIRECTION}
JSON_ESCAPES: Final = {code: f"\\u{code:04x}" for code in (*range(127, 160), *DIRECTION)}
"""What json.dumps leaves as it is, though a terminal obeys it: U+009B is Escape and a bracket."""


WIDEST: Final = 10_000
"""Maximum width of a table on a terminal, in characters: the terminal breaks long lines instead of cutting them."""


REFUSED: Final = 1
"""The exit status when the server has refused, or there is no such job or tube."""

USAGE: Final = 2
"""The exit status when the command line is wrong."""

UNAVAILABLE: Final = 69
"""The exit status when there is no server, or it is lost (EX_UNAVAILABLE of sysexits.h)."""

OUTPUT_CLOSED: Final = 141
"""The exit status when the reader has gone, which is 128 + SIGPIPE, as in a shell."""

OUTPUT_FAILED: Final = 74
"""The exit status when the output cannot be written for another reason (EX_IOERR of sysexits.h)."""


class OperatorError(Exception):
    """What a command ends with.

    Attributes:
        status: the exit status.
    """

    def __init__(self, message: str, status: int = REFUSED) -> None:
        super().__init__(message)
        self.status = status


class OutputError(Exception):
    """Standard output cannot be written to; the cause is the OSError that says why. It is not the server's fault."""


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Write to standard output while there is a server: what fails is not the connection."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        raise OutputError from error


def on_terminal() -> bool:
    """Whether a person looks at standard output."""
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def asks_a_person() -> bool:
    """Whether standard input is a terminal, and not a file, a pipe, or closed."""
    return sys.stdin is not None and sys.stdin.isatty()


def show_json(document: object) -> None:
    """Print one JSON document on one line."""
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(document, ensure_ascii=not unicode).translate(JSON_ESCAPES), flush=True)


def safe(text: str) -> str:
    """A text as a terminal may get it."""
    return text.translate(ESCAPES)


def show_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], striking: Mapping[str, str] | None = None
) -> None:
    """Print a table: aligned on a terminal, else its rows with tabs between the columns.

    Args:
        striking: the colours of columns whose values strike the eye on a terminal when they are not 0.
    """
    if not on_terminal():
        print(*columns, sep="\t")
        for row in rows:
            print(*row, sep="\t")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    cells = [list(row) for row in rows]
    for index, column in enumerate(columns):
        numbers = all(isinstance(row[index], (int, float)) for row in cells)
        table.add_column(Text(column), justify="right" if numbers and cells else "left", no_wrap=True)
    styles = [(striking or {}).get(column, "") for column in columns]
    for row in cells:
        shown = zip(row, styles, strict=True)
        table.add_row(*(Text(safe(str(cell)), style="dim" if cell == 0 else style) for cell, style in shown))
    console = Console(highlight=False, width=WIDEST)
    console.print(table, width=console.measure(table).maximum)  # a line that is too long is broken by the terminal


def show_pairs(pairs: Mapping[str, Any]) -> None:
    """Print names and values, one pair a line."""
    if on_terminal():
        width = max(map(len, pairs), default=0)
        for name, value in pairs.items():
            print(f"{safe(name):<{width}}  {safe(str(value))}")
    else:
        for name, value in pairs.items():
            print(f"{name}\t{value}")


def abandon_output() -> int:
    """Keep the interpreter from writing what is left at its exit; return the exit status."""
    _abandon(sys.stdout)
    return OUTPUT_CLOSED


def settle_errors() -> None:
    """Write what is left for standard error, or leave it: the interpreter would fail at its exit, with status 120."""
    try:
        sys.stderr.flush()
    except OSError:
        _abandon(sys.stderr)


def _abandon(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
