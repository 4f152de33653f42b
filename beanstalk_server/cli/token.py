"""The command `beanstalk-server token`: makes a token, and prints it with its hash.

Must never know where tokens are kept: nothing here keeps one.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.cli.output import show
from beanstalk_server.settings.option import BAD_OPTION

HELP: Final = """\
Usage: beanstalk-server token

Makes a token of 256 random bits and prints it, with its SHA-256. The token is for a client, which says `auth` and the
token; it is shown here and nowhere else. The second line is for the server: paste it into a [[user]] of the config
file, or its 64 digits into a token file, as a line of their own with a name behind them, if you like."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments after `token` ask for; return the exit status."""
    if arguments:
        if arguments[0] in ("-h", "--help"):
            return show(HELP)
        print(f"beanstalk-server token: {arguments[0]}: no such option; it takes none", file=sys.stderr)
        return BAD_OPTION
    token = new_token()
    return show(f'token: {token}\ntoken-sha256 = ["{hash_of_token(token)}"]')
