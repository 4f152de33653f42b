"""Long answers: list-tubes, list-clients, stats-group, and the pages of list-jobs and stats-tubes, found in slices.

A session asks for one slice after the other, in as many turns as it takes. Tubes, jobs and clients may come and go
between two slices. Of list-tubes, the answer is the list as it was when the command was given. A page of stats-tubes
goes on from a name, whether there is such a tube or not, so that a tube that stays is in the page. A client that goes
is not in the answer of list-clients, and neither is one that comes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from beanstalk_server.access.rights import ANY_RIGHT, INSPECT, User
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.groups import GroupSearch
from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.job_search import JobSearch
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.oldest import OldestSearch
from beanstalk_server.queue.units import SECOND
from beanstalk_server.wire import replies
from beanstalk_server.wire.grammar import write_cursor
from beanstalk_server.wire.yaml import job_entry, stats_group, stats_tube, tube_entry

if TYPE_CHECKING:
    from beanstalk_server.wire.session import Session

PAGE_ENTRIES: Final = 1000
"""The most entries of a page of list-jobs or stats-tubes."""

# The most of a slice, some 100 microseconds; and what an entry costs, in the unit of queue/costs.py.

LIST_TUBES_COST: Final = 64
"""Of a slice of list-tubes: an entry costs next to nothing."""

CLIENTS: Final = 16
CLIENT_COST: Final = 2

JOBS: Final = 32
JOB_COST: Final = 2

TUBES: Final = 16
TUBE_COST: Final = 3
MEASURED_COST: Final = 24
"""That of a tube whose durations are measured."""

SHOWN_TUBES: Final = 16
"""The most watched tubes of a client that list-clients names."""

NO_CLIENTS: Final = b"---\n[]\n"


class Listing(ABC):
    """A long answer.

    Args:
        line: the command, as another server is to get it.
        tells_of_jobs: it says what has become of single jobs.
    """

    def __init__(self, line: bytes, tells_of_jobs: bool = False) -> None:
        self.line = line
        self.tells_of_jobs = tells_of_jobs

    @abstractmethod
    def is_complete(self) -> bool:
        """Whether all of it has been found."""

    @abstractmethod
    def go_on(self, now: int) -> int:
        """Find the next slice; return what that has cost, in the unit of queue/costs.py.

        Args:
            now: the present, in nanoseconds.
        """

    @abstractmethod
    def reply(self) -> bytes:
        """The reply, when it is complete."""


def page(next_page: str, name: str, entries: list[bytes]) -> bytes:
    """The YAML of a page: where the next one begins, "" if there is none, and a list of this name, an entry a line."""
    if not entries:
        return f'---\nnext: "{next_page}"\n{name}: []\n'.encode("ascii")
    return b"".join([f'---\nnext: "{next_page}"\n{name}:\n'.encode("ascii"), *entries])


class TubeListing(Listing):
    """A list of tubes that is under way.

    Args:
        user: whose tubes are listed.
        pages: the lines of all tubes.
    """

    def __init__(self, user: User, pages: list[bytes]) -> None:
        super().__init__(b"list-tubes\r\n")
        self._user = user
        self._pages = pages[::-1]  # what is left of them, the next one last
        self._names: list[str] = []  # what is left of the page in hand
        self._lines: list[bytes] = []  # those of the tubes that have been found

    def is_complete(self) -> bool:
        return not self._pages and not self._names

    def go_on(self, now: int) -> int:
        if not self._names:
            page = self._pages.pop().decode("ascii")
            self._names = page[len("- ") : -len("\n")].split("\n- ")
        names = self._names
        weight = self._user.weight  # of one name: a unit is good for 64 of these
        bound = max(LIST_TUBES_COST * 64 // weight, 1)
        if len(names) > bound:
            self._names = names[bound:]
            names = names[:bound]
        else:
            self._names = []
        found = self._user.select(names, ANY_RIGHT)
        if found:
            self._lines.append(("- " + "\n- ".join(found) + "\n").encode("ascii"))
        return len(names) * weight >> 6

    def reply(self) -> bytes:
        return replies.ok_list(self._lines)


class ListedClient:
    """A client, as its owner sees it.

    Args:
        session: serves it.
        name: what the log calls it.
        since: when it connected, in nanoseconds.
        is_blocked: replies to it wait, for the journal or because it does not read them.
    """

    def __init__(self, session: Session, name: str, since: int, is_blocked: bool) -> None:
        self.session = session
        self.name = name
        self.since = since
        self.is_blocked = is_blocked


@mypyc_attr(allow_interpreted_subclasses=True)
class ClientList:
    """The clients who are served, from the moment at which it is made. This one has none."""

    def is_over(self) -> bool:
        """Whether `take` has no client left."""
        return True

    def take(self, _count: int) -> list[ListedClient]:
        """The next ones, of this many who were there; those who have gone since are left out."""
        return []


class ClientListing(Listing):
    """A list of clients that is under way."""

    def __init__(self, client_list: ClientList) -> None:
        super().__init__(b"list-clients\r\n")
        self._client_list = client_list
        self._entries: list[bytes] = []

    def is_complete(self) -> bool:
        return self._client_list.is_over()

    def go_on(self, now: int) -> int:
        found = self._client_list.take(CLIENTS)
        self._entries.append("".join([entry(client, now) for client in found]).encode())
        return 1 + CLIENT_COST * len(found)

    def reply(self) -> bytes:
        return reply_of(self._entries)


def reply_of(entries: list[bytes]) -> bytes:
    return replies.ok_list(entries) if any(entries) else replies.ok(NO_CLIENTS)


def entry(client: ListedClient, now: int) -> str:
    """A client as one line of YAML.

    Args:
        now: the present, in nanoseconds.
    """
    session = client.session
    user = session.user
    state = "blocked" if client.is_blocked or session.is_blocked else "waiting" if session.waiting else "idle"
    return (
        f'- {{name: "{quoted(client.name)}", user: "{"" if user is None else quoted(user.name)}", state: "{state}", '
        f"producer: {int(session.producer)}, worker: {int(session.worker)}, "
        f'using: "{session.use.name if session.uses else ""}", watching: {len(session.watched)}, '
        f"reserved: {len(session.reserved)}, age: {max(now - client.since, 0) // SECOND}, "
        f'client-name: "{session.client_name}", '
        f'tubes: "{" ".join([tube.name for tube in session.watched[:SHOWN_TUBES]])}"}}\n'
    )


def quoted(text: str) -> str:
    """Text as it stands between double quotes in YAML."""
    return text.replace("\\", "\\\\").replace('"', '\\"') if '"' in text or "\\" in text else text


class JobPage(Listing):
    """A page of list-jobs that is under way.

    Args:
        queue: where the jobs are.
        search: finds them.
        name, state, position, count: what is asked for.
    """

    def __init__(
        self, queue: Broker, search: JobSearch, name: str, state: int, position: list[int], count: int
    ) -> None:
        cursor = write_cursor(position)
        super().__init__(f"list-jobs {name} {STATES[state]} {cursor} {count}\r\n".encode("ascii"), tells_of_jobs=True)
        self._queue = queue
        self._search = search
        self._described = 0  # how many of the jobs that have been found
        self._entries: list[bytes] = []

    def is_complete(self) -> bool:
        return self._search.is_complete and self._described == len(self._search.found)

    def go_on(self, now: int) -> int:
        search = self._search
        if not search.is_complete:
            return search.go_on()
        found = search.found[self._described : self._described + JOBS]
        self._described += len(found)
        for entry in found:
            if search.is_here(entry):
                statistics = self._queue.job_statistics(entry[1], now)
                if statistics is not None:
                    self._entries.append(job_entry(statistics))
        return len(found) * JOB_COST

    def reply(self) -> bytes:
        position = self._search.next_position
        self._search.forget_found()
        return replies.ok(page(write_cursor(position) if position else "", "jobs", self._entries))


class GroupListing(Listing):
    """A stats-group that is under way: its members are counted in slices.

    Args:
        search: finds them.
        quote: the quotation mark around strings, or "".
    """

    def __init__(self, search: GroupSearch, quote: str) -> None:
        super().__init__(f"stats-group {search.group.key}\r\n".encode("ascii"), tells_of_jobs=True)
        self._search = search
        self._quote = quote
        self._age = 0

    def is_complete(self) -> bool:
        return self._search.is_complete

    def go_on(self, now: int) -> int:
        group = self._search.group
        self._age = max(now - group.created_at, 0) if group.has_begun else 0
        return self._search.go_on()

    def reply(self) -> bytes:
        return replies.ok(stats_group(self._search, self._age, self._quote))


class MeasuredTube(Listing):
    """A stats-tube of a tube that is measured: it waits for the search for the oldest ready job.

    Args:
        queue: where the tube is.
        search: the search.
        name: the name of the tube.
        quote: the quotation mark around strings, or "".
    """

    def __init__(self, queue: Broker, search: OldestSearch, name: str, quote: str) -> None:
        super().__init__(f"stats-tube {name}\r\n".encode("ascii"))
        self._queue = queue
        self._search = search
        self._name = name
        self._quote = quote
        self._now = 0

    def is_complete(self) -> bool:
        return self._now > 0 and self._search.is_complete()

    def go_on(self, now: int) -> int:
        self._now = now
        return 1 if self._search.is_complete() else self._search.go_on()

    def reply(self) -> bytes:
        tube = self._queue.tube_statistics(self._name, self._now, self._search.since)
        return replies.NOT_FOUND if tube is None else replies.ok(stats_tube(tube, self._quote))


class TubePage(Listing):
    """A page of stats-tubes that is under way.

    Args:
        queue: where the tubes are.
        user: lists those that it may inspect; None for all of them.
        first: the name from which on.
        count: the most tubes.
    """

    def __init__(self, queue: Broker, user: User | None, first: str, count: int) -> None:
        super().__init__(f"stats-tubes {first or '-'} {count}\r\n".encode("ascii"))
        self._queue = queue
        self._user = None if user is None or user.everywhere & INSPECT else user
        self._count = min(count, PAGE_ENTRIES)
        self._next = first  # the name from which on tubes have not been looked at
        self._is_complete = False
        self._search: OldestSearch | None = None  # for the oldest job of a tube that is measured
        self._searched = ""  # the name of that tube
        self._entries: list[bytes] = []

    def is_complete(self) -> bool:
        return self._is_complete

    def go_on(self, now: int) -> int:
        if self._search is not None and not self._search.is_complete():
            return self._search.go_on()
        names = self._queue.tube_names(self._next, TUBES + 1)
        cost = 1
        after = names.pop() if len(names) > TUBES else ""
        user = self._user
        if user is not None:
            cost += len(names) * user.weight >> 6
            names = user.select(names, INSPECT)
        for name in names:
            if len(self._entries) == self._count:
                self._next = name
                self._is_complete = True
                return cost
            if name != self._searched:
                self._searched = name
                self._search = self._queue.find_oldest(name)
                if self._search is not None and not self._search.is_complete():
                    self._next = name
                    return cost
            tube = self._queue.tube_statistics(name, now, 0 if self._search is None else self._search.since)
            if tube is not None:
                self._entries.append(tube_entry(tube))
                cost += TUBE_COST if tube.durations is None else MEASURED_COST
        self._next = after
        self._is_complete = not after
        return cost

    def reply(self) -> bytes:
        return replies.ok(page(self._next, "tubes", self._entries))
