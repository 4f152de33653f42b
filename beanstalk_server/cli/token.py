"""The command `beanstalk-server token`: makes a token, and prints it with its hash."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

from beanstalk_server.access.accounts import hash_of_token, new_token
from beanstalk_server.cli.output import show
from beanstalk_server.settings.option import BAD_OPTION

HELP: Final = """\
Usage: beanstalk-server token

Prints a new token of 256 random bits and its SHA-256. Give the token to a client, which sends it with `auth`; it is
shown only here. Give the SHA-256 to the server: in a [[user]] section of the config file, or in a token file, one hash
a line, optionally followed by a name."""


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments after `token` ask for; return the exit status."""
    if arguments:
        if arguments[0] in ("-h", "--help"):
            return show(HELP)
        print(f"beanstalk-server token: {arguments[0]}: no such option; it takes none", file=sys.stderr)
        return BAD_OPTION
    token = new_token()
    return show(f'token: {token}\ntoken-sha256 = ["{hash_of_token(token)}"]')
