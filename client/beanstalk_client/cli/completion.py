"""Prints scripts that complete the command line of `beanstalk` in bash, zsh and fish, made from its parser."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Final

import shtab

from beanstalk_client.cli.parser import FILES, PROGRAM, TUBES, make_parser

_ASK: Final = f"{PROGRAM} tubes --names --answer-within 1 2>/dev/null"

# Producers choose names, and $(…) and ; are legal in them. So no name is expanded or evaluated:
# shtab.cmd does both, by `compgen -W` and by `($(…))`.
COMPLETERS: Final[dict[str, Any]] = {
    FILES: shtab.FILE,
    TUBES: {
        "bash": "_beanstalk_tubes",
        "zsh": "_beanstalk_tubes",
        "fish": f"({_ASK})",
        "preamble": {
            "bash": f"""\
# $1: what is typed, with its quoting
_beanstalk_tubes() {{
  local name
  {_ASK} | while IFS= read -r name; do
    printf -v name %q "$name"
    [[ $name == "$1"* ]] && printf '%s\\n' "$name"
  done
}}
""",
            "zsh": f"""\
_beanstalk_tubes() {{
  local -a names
  names=("${{(@f)$({_ASK})}}")
  compadd "$@" -a names
}}
""",
        },
    },
}
"""What completes an argument, in the words of shtab."""


def completion(options: argparse.Namespace) -> int:
    """Print the script for a shell."""
    print(script(options.shell))
    return 0


def script(shell: str) -> str:
    """The script for a shell."""
    parser = make_parser()
    for action in _actions(parser):
        mark = getattr(action, "complete", "")
        if mark:
            action.complete = COMPLETERS[mark]  # type: ignore[attr-defined]
        elif hasattr(action, "complete"):
            del action.complete
    return str(shtab.complete(parser, shell))


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                yield from _actions(one)
