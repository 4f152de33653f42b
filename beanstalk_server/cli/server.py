"""The command `beanstalk-server`: reads the options and starts the server, or calls the tools that come with it.

It imports each of them only when it is needed: the event loop takes longer to load than everything else.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from typing import Final

EARLY_SIGNALS: Final = {signal.SIGHUP, signal.SIGUSR1}
"""Signals that would end the process, and wait until the server has handlers for them."""

STOP_SIGNALS: Final = {signal.SIGTERM, signal.SIGINT}
"""They wait, too, in the first process of a container, because the kernel discards the unhandled signals of that."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "binlog":
        from beanstalk_server.cli import binlog

        return binlog.main(arguments[1:])
    if arguments and arguments[0] == "cluster":
        from beanstalk_server.cli import cluster

        return cluster.main(arguments[1:])
    if arguments and arguments[0] == "token":
        return _print_token(arguments[1:])
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, EARLY_SIGNALS | (STOP_SIGNALS if os.getpid() == 1 else set()))
    try:
        return _serve(arguments)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


TOKEN_HELP: Final = """\
Usage: beanstalk-server token

Prints a new token of 256 random bits and its SHA-256. Copy the token now, because it is not stored, and give it to a
client, which sends it with `auth`. Give the SHA-256 to the server: in a [[user]] section of the config file, or in a
token file, one hash per line, optionally followed by a name."""


def _print_token(arguments: Sequence[str]) -> int:
    """Make a token, and print it with its hash."""
    from beanstalk_server.access.accounts import hash_of_token, new_token
    from beanstalk_server.cli.output import show
    from beanstalk_server.settings.declaration import BAD_OPTION

    if not arguments:
        token = new_token()
        return show(f'token: {token}\ntoken-sha256 = ["{hash_of_token(token)}"]')
    if arguments[0] in ("-h", "--help"):
        return show(TOKEN_HELP)
    print(f"beanstalk-server token: {arguments[0]}: unexpected argument: the command takes none", file=sys.stderr)
    return BAD_OPTION


def _serve(arguments: Sequence[str]) -> int:
    """Run a server, or report the mistakes in its options."""
    import gc

    from beanstalk_server.cli.command_line import asks_for_json, parse
    from beanstalk_server.settings.declaration import BAD_OPTION, ConfigError
    from beanstalk_server.settings.options import Config

    try:
        config = parse(arguments, os.environ)
    except ConfigError as error:
        if asks_for_json(arguments, os.environ):
            from beanstalk_server.cli.logs import log_start_failure, start_log

            start_log("json", "info")
            log_start_failure(map(str, error.mistakes), BAD_OPTION, "json")
        else:
            for mistake in error.mistakes:
                print(f"beanstalk-server: {mistake}", file=sys.stderr)
        return BAD_OPTION
    if isinstance(config, str):
        from beanstalk_server.cli.output import show

        return show(config)
    # A server creates no reference cycles, and a search for cycles among a million jobs takes a second.
    gc.disable()
    from beanstalk_server.cli.process import run

    def read_config() -> Config:
        again = parse(arguments, os.environ)
        assert isinstance(again, Config), "the same arguments ask for a server again"
        return again

    return run(config, read_config, EARLY_SIGNALS)
