"""Keeps connections and samples for each user of the console; a user is a token of the queue, with its rights.

All visitors with the same token are one user; without --login, all visitors are. Each token has its own connections, so
no page shows what only another token may see.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from beanstalk_client.console.failures import Failures
from beanstalk_client.observe.reader import Connect, Reader

MAX_USERS: Final = 50
"""Maximum number of users; beyond it, the one whose last visit is the oldest is evicted."""


class User(Reader):
    """A user.

    Attributes:
        failures: what has failed, in the tubes that this user may see.
    """

    def __init__(self, connect: Connect, token: str = "", users: Callable[[], int] = lambda: 1) -> None:
        super().__init__(connect, token, users)
        self.failures: Failures = Failures(self)


class Users:
    """All users, by their tokens.

    Args:
        connect: makes a client with a token.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._users: dict[str, User] = {}

    def __len__(self) -> int:
        return len(self._users)

    def of(self, token: str) -> User:
        """The user of a token; "" is that of the console itself."""
        user = self._users.pop(token, None)
        if user is None:
            user = User(self._connect, token, self._active)
        self._users[token] = user
        return user

    def _active(self) -> int:
        """The number of users with viewers."""
        return sum(user.sampler.is_looked_at for user in self._users.values())

    async def keep(self, tokens: set[str]) -> None:
        """Forget the users whose tokens are not among these, and those who are too many."""
        gone = [token for token in self._users if token and token not in tokens]
        gone += [token for token in self._users if token not in gone][
            : max(len(self._users) - len(gone) - MAX_USERS, 0)
        ]
        for token in gone:
            user = self._users.pop(token, None)
            if user is not None:
                await user.close()

    async def close(self) -> None:
        users, self._users = list(self._users.values()), {}
        for user in users:
            await user.close()
