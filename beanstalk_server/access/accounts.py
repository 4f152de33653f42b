"""Finds users by their credentials: a token, the name in a certificate, or the uid of a socket's peer.

Of tokens, only hashes are known here. A token has 256 random bits, so its SHA-256 is as hard to invert as the token is
to guess, and a slow hash would add nothing.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from beanstalk_server.access.rights import User

if TYPE_CHECKING:
    from beanstalk_server.settings.sections import UserConfig

TOKEN_BYTES: Final = 32
"""Random bytes in a new token: 43 characters."""

LONGEST_TOKEN: Final = 200
"""Characters. No user has a longer token, so it is not hashed; a command line has no room for it anyway."""


class Accounts:
    """The users of a server.

    Args:
        users: no two of them with the same name, token or uid.
    """

    def __init__(self, users: Sequence[UserConfig]) -> None:
        self._configs = {each.name: each for each in users}
        self._users: dict[str, User] = {}  # those that have been found: most of a user's cost is its patterns
        self._by_uid = {uid: each.name for each in users for uid in each.uid}
        digests = [(bytes.fromhex(text), each.name) for each in users for text in each.token_sha256]
        self._by_digest = {digest: (digest, name) for digest, name in digests}

    @property
    def configs(self) -> list[UserConfig]:
        """The users as they are in the settings."""
        return list(self._configs.values())

    def __repr__(self) -> str:
        return f"Accounts({len(self._configs)} users)"

    def by_token(self, token: str) -> User | None:
        """The user with this token; None if there is none.

        The time that this takes reveals nothing about the tokens. The table is searched for the SHA-256 of the token
        that was presented. From the common prefix of two hashes, no token follows, and a client cannot choose a token
        whose hash agrees further. The table's own order is by a hash with a key of this process. The last comparison
        takes the same time wherever the bytes differ.
        """
        if not token.isascii() or len(token) > LONGEST_TOKEN:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        stored, name = self._by_digest.get(digest, (b"", ""))
        return self.by_name(name) if hmac.compare_digest(stored, digest) else None

    def by_name(self, name: str) -> User | None:
        """The user of this name, always the same one; None if there is none."""
        user = self._users.get(name)
        config = self._configs.get(name)
        if user is None and config is not None:
            user = self._users[name] = User(
                name, produce=config.produce, consume=config.consume, inspect=config.inspect, admin=config.admin
            )
        return user

    def by_uid(self, uid: int) -> User | None:
        """The user that has this user id of the system; None if there is none."""
        return self.by_name(self._by_uid.get(uid, ""))


def new_token() -> str:
    """A new token: 43 characters of A-Z a-z 0-9 - _, from the system's source of randomness."""
    import secrets  # only a new token needs it

    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of_token(token: str) -> str:
    """The SHA-256 of a token, as 64 hexadecimal digits, for a config file or a token file."""
    return hashlib.sha256(token.encode()).hexdigest()
