"""Reads a token file: the tokens of those who may do everything, each by its hash.

A line is the SHA-256 of a token in hexadecimal digits, and then, if you like, a name for the log. Empty lines do not
count, nor what follows a `#` at the beginning of a line.
"""

from __future__ import annotations

from beanstalk_server.settings import kinds
from beanstalk_server.settings.config import Config, option
from beanstalk_server.settings.files import LARGEST_FILE, TOO_LONG, read_file
from beanstalk_server.settings.option import ConfigError, Mistake
from beanstalk_server.settings.sections import UserConfig, of_users
from beanstalk_server.tube_names import ALL_TUBES


def users_of(config: Config) -> tuple[UserConfig, ...]:
    """The `[[user]]` sections, and the users of the token file, which is read now.

    Raises:
        ConfigError: the token file cannot be read, or is bad.
    """
    if not config.token_file:
        return config.users
    users = config.users + read(config.token_file)
    mistakes = of_users(users)
    if mistakes:
        raise ConfigError(*mistakes)
    return users


def read(path: str) -> tuple[UserConfig, ...]:
    """The users of a token file: one for each name, and one for each token that has none.

    Raises:
        ConfigError: the file cannot be read, or lines of it are bad.
    """
    try:
        content = read_file(path)
    except (OSError, ValueError) as error:
        raise ConfigError(_mistake(f"{path!r} cannot be read: {getattr(error, 'strerror', error)}")) from None
    if len(content) > LARGEST_FILE:
        raise ConfigError(_mistake(f"{path!r} is {TOO_LONG}"))
    tokens: dict[str, list[str]] = {}
    mistakes = []
    for number, line in enumerate(content.decode(errors="replace").removeprefix("\ufeff").split("\n"), 1):
        words = line.split(maxsplit=1)
        if not words or words[0].startswith("#"):
            continue
        digest = words[0].lower()
        name = words[1].strip() if len(words) > 1 else f"token-{digest[:8]}"
        wrong = kinds.TOKEN_HASH.mistakes(digest)
        if not wrong and ("\ufffd" in name or not kinds.NAME.fits(name)):
            wrong = [f"bad name: must be {kinds.NAME.wanted}"]
        mistakes += [_mistake(f"{path!r}, line {number}: {said}") for said in wrong]
        tokens.setdefault(name, []).append(digest)
    if not tokens:
        mistakes.append(_mistake(f"{path!r} is empty: must have a token's SHA-256 on a line"))
    if mistakes:
        raise ConfigError(*mistakes)
    everything = (ALL_TUBES,)
    return tuple(
        [
            UserConfig(
                name=name,
                token_sha256=tuple(hashes),
                produce=everything,
                consume=everything,
                inspect=everything,
                admin=everything,
            )
            for name, hashes in tokens.items()
        ]
    )


def _mistake(said: str) -> Mistake:
    return Mistake(option("token_file"), said)
