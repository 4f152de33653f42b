"""Finds users by what clients prove: a token, the name in a certificate, or the uid of a socket's peer.

Of tokens, only hashes are known here. A token has 256 random bits, so its SHA-256 is as hard to invert as the token is
to guess, and a slow hash would add nothing. Must never know how a client has proved what it says, or what it may do.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from beanstalk_server.access.user import User

if TYPE_CHECKING:
    from beanstalk_server.config import UserConfig

TOKEN_BYTES: Final = 32
"""Random bytes in a new token: 43 characters."""

LONGEST_TOKEN: Final = 200
"""Characters. A longer token is nobody's, and is not hashed; a command line has no room for it anyway."""


class Accounts:
    """The users of a server.

    Args:
        users: no two of them with the same name, token or uid.
    """

    def __init__(self, users: Sequence[UserConfig]) -> None:
        self._by_name: dict[str, User] = {}
        self._by_uid: dict[int, User] = {}
        self._by_digest: dict[bytes, tuple[bytes, User]] = {}
        for each in users:
            user = User(each.name, produce=each.produce, consume=each.consume, inspect=each.inspect, admin=each.admin)
            self._by_name[each.name] = user
            self._by_uid |= dict.fromkeys(each.uid, user)
            for text in each.token_sha256:
                digest = bytes.fromhex(text)
                self._by_digest[digest] = (digest, user)

    def __repr__(self) -> str:
        return f"Accounts({len(self._by_name)} users)"

    def by_token(self, token: str) -> User | None:
        """The user with this token; None if there is none.

        How long this takes tells nothing about the tokens. What is looked up is the SHA-256 of what was presented: who
        measured how far it agrees with a stored one would learn a part of a hash, from which no token follows, and
        cannot choose what to present so that the hash agrees further. The table's own order is by a hash with a key of
        this process, and the last comparison, of all bytes, takes the same time wherever they differ.
        """
        if not token.isascii() or len(token) > LONGEST_TOKEN:
            return None
        digest = hashlib.sha256(token.encode()).digest()
        stored, user = self._by_digest.get(digest, (b"", None))
        return user if hmac.compare_digest(stored, digest) else None

    def by_name(self, name: str) -> User | None:
        """The user of this name; None if there is none."""
        return self._by_name.get(name)

    def by_uid(self, uid: int) -> User | None:
        """The user that has this user id of the system; None if there is none."""
        return self._by_uid.get(uid)


def new_token() -> str:
    """A token that nobody has: 43 characters of A-Z a-z 0-9 - _, from the system's source of randomness."""
    import secrets  # only a new token needs it

    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of_token(token: str) -> str:
    """The SHA-256 of a token, as 64 hexadecimal digits: how a config file and a token file name it."""
    return hashlib.sha256(token.encode()).hexdigest()
