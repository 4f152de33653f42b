"""Repeats a read-only command (`beanstalk watch`).

Must never repeat a command that changes something.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time

from beanstalk_client.cli.output import USAGE, OperatorError, on_terminal
from beanstalk_client.cli.parser import COMMON, WATCHABLE, parse


def watch(options: argparse.Namespace) -> int:
    """Run a command until Ctrl-C, or as often as is wanted; return its last exit status."""
    if not options.command or options.command[0] not in WATCHABLE:
        raise OperatorError(f"cannot repeat this command: must be one of {', '.join(WATCHABLE)}", USAGE)
    inner = _with_our_options(parse(options.command), options)
    function = getattr(importlib.import_module(f"beanstalk_client.cli.{inner.module}"), inner.function)
    done = 0
    while True:
        if on_terminal():
            print(f"\033[H\033[Jevery {options.interval:g} s: {' '.join(options.command)}   {time.strftime('%X')}\n")
        try:
            status: int = function(inner)
        except OperatorError as error:
            if error.status == USAGE:
                raise
            print(f"beanstalk {inner.name}: {error}", file=sys.stderr)
            status = error.status
        sys.stdout.flush()
        done += 1
        if done == options.times:
            return status
        time.sleep(options.interval)


def _with_our_options(inner: argparse.Namespace, options: argparse.Namespace) -> argparse.Namespace:
    """The options of the inner command; those of the server that are not given there are ours."""
    for argument in COMMON:
        name = argument.flags[0].removeprefix("--").replace("-", "_")
        if getattr(inner, name) == argument.settings.get("default", False if name in ("tls", "json") else None):
            setattr(inner, name, getattr(options, name))
    return inner
