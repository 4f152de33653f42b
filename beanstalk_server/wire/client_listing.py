"""The answer to list-clients: those who are served at the moment, one a line, in slices because there may be many.

Who they are, only the owner of their sessions knows: it gives a Roll. Clients may go between two slices, and then are
not in the answer; those who come are not, either. Must never know sockets, or how a client is served.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.units import SECOND
from beanstalk_server.wire import replies
from beanstalk_server.wire.listing import Listing

if TYPE_CHECKING:
    from beanstalk_server.wire.session import Session

SLICE: Final = 16
"""The most clients of a slice: some 100 microseconds."""

CLIENT_COST: Final = 2
"""What an entry costs, in the unit of queue/costs.py."""

NOBODY: Final = b"---\n[]\n"


class ListedClient:
    """A client, as its owner sees it.

    Args:
        session: serves it.
        name: what the log calls it.
        since: when it connected, in nanoseconds.
        is_blocked: replies to it wait, for the journal or because it does not read them.
    """

    __slots__ = ("is_blocked", "name", "session", "since")

    def __init__(self, session: Session, name: str, since: int, is_blocked: bool) -> None:
        self.session = session
        self.name = name
        self.since = since
        self.is_blocked = is_blocked


@mypyc_attr(allow_interpreted_subclasses=True)
class Roll:
    """The clients who are served, from the moment at which it is made. This one has none."""

    __slots__ = ()

    def is_over(self) -> bool:
        """Whether `take` has nobody left."""
        return True

    def take(self, _count: int) -> list[ListedClient]:
        """The next ones, of so many who were there; those who have gone since are left out."""
        return []


class ClientListing(Listing):
    """A list of clients that is under way."""

    __slots__ = (
        "_entries",
        "_roll",
    )

    def __init__(self, roll: Roll) -> None:
        super().__init__(b"list-clients\r\n")
        self._roll = roll
        self._entries: list[bytes] = []

    def is_complete(self) -> bool:
        return self._roll.is_over()

    def go_on(self, now: int) -> int:
        found = self._roll.take(SLICE)
        self._entries.append("".join([entry(client, now) for client in found]).encode())
        return 1 + CLIENT_COST * len(found)

    def reply(self) -> bytes:
        return reply_of(self._entries)


def reply_of(entries: list[bytes]) -> bytes:
    """The reply, of entries in any pieces."""
    return replies.ok_list(entries) if any(entries) else replies.ok(NOBODY)


def entry(client: ListedClient, now: int) -> str:
    """A client as one line of YAML.

    Args:
        now: the present, in nanoseconds.
    """
    session = client.session
    user = session.user
    if client.is_blocked or session.output_paused or session.blocked:
        state = "blocked"
    else:
        state = "waiting" if session.waiting else "idle"
    return (
        f'- {{name: "{quoted(client.name)}", user: "{"" if user is None else quoted(user.name)}", state: "{state}", '
        f"producer: {int(session.producer)}, worker: {int(session.worker)}, "
        f'using: "{session.use.name if session.uses else ""}", watching: {len(session.watched)}, '
        f"reserved: {len(session.reserved)}, age: {max(now - client.since, 0) // SECOND}}}\n"
    )


def quoted(text: str) -> str:
    """Text as it stands between double quotes in YAML."""
    return text.replace("\\", "\\\\").replace('"', '\\"') if '"' in text or "\\" in text else text
