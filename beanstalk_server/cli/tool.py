"""Runs `beanstalk-server binlog` and `cluster`: prints one line for each failure, and returns an exit status."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

from beanstalk_server.cli.logs import printable
from beanstalk_server.cli.output import abandon_output
from beanstalk_server.settings.declaration import BAD_OPTION, ConfigError
from beanstalk_server.storage.errors import UNUSABLE, StorageError

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C, which is 128 + SIGINT, as in a shell."""


class ToolParser(argparse.ArgumentParser):
    """Reads the arguments of a tool; raises ConfigError if they are bad."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def run_tool(parser: ToolParser, arguments: Sequence[str], unusable: tuple[type[Exception], ...] = ()) -> int:
    """Run the tool that the arguments name, which is the `run` of its options; return the exit status.

    Args:
        unusable: errors that mean that an engine or directory cannot be used, as some StorageErrors do.
    """
    try:
        options = parser.parse_args(arguments)
        status: int = options.run(options)
        sys.stdout.flush()
    except ConfigError as error:
        return _fail(parser, error, BAD_OPTION)
    except StorageError as error:
        return _fail(parser, error, error.status)
    except unusable as error:
        return _fail(parser, error, UNUSABLE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return abandon_output()
    except OSError as error:
        return _fail(parser, f"cannot write to standard output: {error.strerror}", UNUSABLE)
    return status


def _fail(parser: ToolParser, error: object, status: int) -> int:
    lines = map(str, error.mistakes) if isinstance(error, ConfigError) else [str(error)]
    print(f"{parser.prog}: " + "\n".join(map(printable, lines)), file=sys.stderr)
    return status
