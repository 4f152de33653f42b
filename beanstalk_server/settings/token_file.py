"""Reads a token file: the hashes of tokens of users who may do everything.

A line is the SHA-256 of a token in hexadecimal digits, optionally followed by a name for the log. Empty lines and lines
that begin with `#` are ignored.
"""

from __future__ import annotations

from dataclasses import replace

from beanstalk_server.settings import kinds
from beanstalk_server.settings.declaration import ConfigError, Mistake
from beanstalk_server.settings.files import LARGEST_FILE, TOO_LONG, read_file
from beanstalk_server.settings.options import Config, option
from beanstalk_server.settings.sections import UserConfig, of_users
from beanstalk_server.tube_names import ALL_TUBES


def users_of(config: Config) -> tuple[UserConfig, ...]:
    """The `[[user]]` sections, and the users of the token file, which is read now.

    Raises:
        ConfigError: the token file cannot be read, or is bad.
    """
    if not config.token_file:
        return config.users
    users = config.users + read(config.token_file, config.place("token_file"))
    mistakes = of_users(users)
    if mistakes:
        raise ConfigError(*mistakes)
    return users


def read(path: str, place: str = "") -> tuple[UserConfig, ...]:
    """The users of a token file: one for each name, and one for each token without a name.

    Args:
        place: the source of the path, for messages; the flag by default.

    Raises:
        ConfigError: the file cannot be read, or lines of it are bad.
    """
    wrong = []
    tokens: dict[str, list[str]] = {}
    try:
        content = read_file(path)
    except (OSError, ValueError) as error:
        content = b""
        wrong.append(f" cannot be read: {getattr(error, 'strerror', error)}")
    if len(content) > LARGEST_FILE:
        content = b""
        wrong.append(f" is {TOO_LONG}")
    for number, line in enumerate(content.decode(errors="replace").removeprefix("\ufeff").split("\n"), 1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        digest = words[0].lower()
        name = words[1].strip() if len(words) > 1 else f"token-{digest[:8]}"
        said = kinds.TOKEN_HASH.mistakes(digest)
        if not said and ("\ufffd" in name or kinds.NAME.mistakes(name)):
            said = [f"bad name: must be {kinds.NAME.wanted}"]
        wrong += [f", line {number}: {each}" for each in said]
        tokens.setdefault(name, []).append(digest)
    if not (tokens or wrong):
        wrong = [" is empty: must have a line with the SHA-256 of a token"]
    if wrong:
        raise ConfigError(*[Mistake(place or option("token_file"), f"{path!r}{said}") for said in wrong])
    all_tubes = (ALL_TUBES,)
    rights = UserConfig(name="any", produce=all_tubes, consume=all_tubes, inspect=all_tubes, admin=all_tubes)
    return tuple([replace(rights, name=name, token_sha256=tuple(hashes)) for name, hashes in tokens.items()])
