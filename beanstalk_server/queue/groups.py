"""Groups: jobs with a name in common, and the jobs that wait until none of them is left.

A group is open while it has members: jobs that have been put with its name, in any state, also buried. A job leaves its
group when it is done, cancelled, or expires, or when it goes to a dead tube; the group counts which. When the last one
has left, the group has ended, and the jobs that wait for it are let go. It is remembered for a time (`ttl`), so that
it can be told from one that never was. How many are remembered is bounded for each user, so that no user can make the
server forget the groups of another one.

    from        to       by
    ----------  -------  ---------------------------------------------------------------------
    (none)      awaited  put with `after` and `:wait`
    awaited     (none)   the last job that waits does so no longer
    (none)      open     put with `group`; a dead letter comes back
    awaited     open     the same
    open        ended    the last member leaves
    ended       open     as from (none): a new round, in which its counters go on
    ended       (none)   the end of its time to live; MOST_ENDED groups of its user have ended since

What a dead letter is a member of is decided by its tube: it is one again when it goes back to where it has come from.

The jobs that wait for a group are delayed, with the deadline NEVER: last in the heap of their tube, and in no slot of
the wheel, but in one of the group's (Waiting), from which the wheel removes them like any timer. When the group ends,
they go to `Groups.released` in O(1), in their order, and become ready in slices. The record of the last member's end
comes before theirs: a crash in between makes none ready early, and a restart finds that the group has ended.

It records nothing: membership.py tells the journal what becomes of groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.costs import LOOK_SHIFT
from beanstalk_server.queue.job import BURIED, DELAYED, NEVER, READY, RESERVED, Holder, Job
from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.ring import UNLINKED, Ring
from beanstalk_server.queue.table import IdTable, KeyTable
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.units import SECOND
from beanstalk_server.queue.wheel import OVERDUE, Slot, Timer

if TYPE_CHECKING:
    from beanstalk_server.queue.policy import Labels

# How a member has left its group.
END_DONE: Final = 0
END_CANCELLED: Final = 1
END_EXPIRED: Final = 2
END_DEAD: Final = 3
END_UNDONE: Final = 4
"""It is a member again: it has come back from a dead tube. This takes END_DEAD back."""

ENDS: Final = ("done", "cancelled", "expired", "dead", "undone")
"""These by number, in the words of the tools."""

GROUP_TTL: Final = 3600 * SECOND
"""How long a group is remembered after its end, in nanoseconds, unless another time is set."""

MOST_ENDED: Final = 100_000
"""How many groups of a user that have ended are remembered at most, the latest ones: 40 MB with short names."""

MOST_UNOWNED: Final = 1_000_000
"""The same for all groups whose users are not known, because they began before the last start."""

SHOWN_BURIED: Final = 100
"""How many of its buried jobs a group's statistics name at most."""

LOOK: Final = 4096
"""How many members are looked at in one slice, in a fifth of a millisecond."""

NO_TUBE: Final = Tube("", 0)
"""That of groups, which may have members in any."""


class Waiting(Slot):
    """The jobs that wait for a group, in the order in which they have come."""

    def __init__(self, group: Group) -> None:
        super().__init__(-1, 0)
        self.count = 0
        self.group: Group | None = group  # None when it has ended


@mypyc_attr(acyclic=True)
class EndedGroups(Timer):
    """The groups of one user that have ended.

    As a timer, its deadline is when the first of them expires, or before; OVERDUE while they are too many.
    """

    def __init__(self, most: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.count = 0  # how many there are, also those whose end has not been noted
        self.most = most  # how many are remembered at most
        self.noted = Ring()  # those whose end has been noted, in the order of their ends

    def first(self) -> Group | None:
        """The group that is forgotten next."""
        group = self.noted.after
        return group if isinstance(group, Group) else None

    def next_due(self) -> int:
        """When the first group expires; -1 if never."""
        group = self.first()
        if group is None:
            return -1
        return OVERDUE if self.count > self.most else group.deadline

    def check(self) -> int:
        before = 0
        link = self.noted.after
        while isinstance(link, Group):
            assert link.owner is self and link.deadline >= before, "ended groups are not in the order of their ends"
            before = link.deadline
            link = link.after
        return self.noted.check()


@mypyc_attr(acyclic=True)
class Group(Holder):
    """One group. It has an id, as a job has, and a record in the journal, from its first member on; else its id is 0.

    As a timer, its deadline is when it is forgotten, while it is among those that have ended; it is in no slot of the
    wheel.
    """

    def __init__(self, name: str, created_at: int, id: int = 0) -> None:
        super().__init__(id, NO_TUBE, created_at)
        self._name = name
        self.has_begun = False  # it has, or has had, a member
        self.members: list[Job] = []  # in no order: each knows its index (`Labels.member`)
        # those of the user that has put the first member of this round; None: unowned
        self.owner: EndedGroups | None = None
        self.waiting: Waiting | None = None  # None, or the jobs that wait for it
        self.done = 0
        self.cancelled = 0  # how many members have left it so; likewise the next three
        self.expired = 0
        self.dead = 0

    @property
    def key(self) -> str:
        return self._name

    def count(self, end: int) -> None:
        """Count a member that leaves it in this way, one of ENDS."""
        if end == END_DONE:
            self.done += 1
        elif end == END_CANCELLED:
            self.cancelled += 1
        elif end == END_EXPIRED:
            self.expired += 1
        elif end == END_DEAD:
            self.dead += 1
        elif self.dead:
            self.dead -= 1

    def has_ended(self) -> bool:
        return self.has_begun and not self.members

    def detach(self, nowhere: Tube) -> None:
        super().detach(nowhere)
        self.members = []
        self.owner = None
        if self.waiting is not None:
            self.waiting.group = None
            self.waiting = None


class Groups(Timer):
    """All groups. As a timer, it is OVERDUE while groups have ended and something is left to do about that."""

    def __init__(self, stride: int, offset: int) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.by_id: IdTable[Group] = IdTable(stride, offset)  # those that have begun
        self.by_name = KeyTable()
        self.released = Slot(-1, 0)  # jobs whose groups have ended, and that wait for nothing but their turn
        self.ending = Ring()  # those whose end has not been noted
        self.ended_count = 0  # how many have ended and are remembered
        self.owners: dict[str, EndedGroups] = {}  # the ended groups of each user, by its name; "" without one
        self.unowned = EndedGroups(MOST_UNOWNED)  # the ended groups of users that are not known
        self.ttl = GROUP_TTL  # how long a group is remembered after its end

    def get(self, name: str) -> Group | None:
        found = self.by_name.get(name)
        return found if isinstance(found, Group) else None

    def owner(self, user: str) -> EndedGroups:
        """The ended groups of the user with this name; "" for clients without one."""
        found = self.owners.get(user)
        if found is None:
            found = self.owners[user] = EndedGroups(MOST_ENDED)
        return found

    def open_count(self) -> int:
        """How many there are, apart from those that have ended."""
        return len(self.by_name) - self.ended_count

    def add(self, group: Group) -> None:
        self.by_name.add(group)

    def begin(self, group: Group) -> None:
        """Add a group that has got its id, and has a record; its first member follows."""
        group.has_begun = True
        self.by_id.add(group)
        self.by_name.add(group)

    def add_unrecorded(self, name: str, created_at: int) -> Group:
        """Add a group that has no record. Its members follow; the next one that is put brings it a record, too."""
        group = Group(name, created_at)
        group.has_begun = True
        self.by_name.add(group)
        return group

    def undo_begin(self, group: Group) -> None:
        """Undo `begin`: the member does not follow."""
        self.by_id.remove(group.id)
        group.id = 0
        group.has_begun = bool(group.members) or group.is_linked()
        if not group.has_begun and group.waiting is None:
            self.by_name.remove(group)

    def join(self, group: Group, job: Job, labels: Labels) -> None:
        """Let a job be a member of a group that has begun."""
        labels.joined = group
        labels.group = group.key  # one object for all members
        labels.member = len(group.members)
        group.members.append(job)
        self._leave_ended(group)

    def replace(self, group: Group, old: Labels, job: Job, labels: Labels) -> None:
        """Let a job be a member in the place of another one."""
        old.joined = None
        labels.joined = group
        labels.group = group.key
        labels.member = old.member
        group.members[old.member] = job

    def leave(self, group: Group, labels: Labels) -> bool:
        """Let a job be a member no longer; return whether it was the last one."""
        members = group.members
        last = members.pop()
        moved = last.labels()
        assert moved is not None, "a member has labels"
        if moved is not labels:  # the last one takes its place
            members[labels.member] = last
            moved.member = labels.member
        labels.joined = None
        return not members

    def end(self, group: Group) -> None:
        """Note that a group has no member left, and let go what waits for it. Its timer is to be OVERDUE then."""
        self._leave_ended(group)
        self.ending.append(group)
        self.ended_count += 1
        if group.owner is None:
            group.owner = self.unowned
        group.owner.count += 1
        waiting = group.waiting
        if waiting is not None:
            self.released.take_all_of(waiting)
            waiting.dissolve()
            waiting.group = group.waiting = None

    def note_end(self, now: int) -> EndedGroups:
        """Remember the first group whose end has not been noted, for its time; return those of its user."""
        group = self.ending.after
        assert isinstance(group, Group), "only groups end"
        owner = group.owner
        assert owner is not None, "a group that has ended is among those of a user"
        group.unlink()
        group.deadline = now + self.ttl
        owner.noted.append(group)
        return owner

    def is_due(self) -> bool:
        """Whether there is something to do."""
        return not self.released.is_empty() or not self.ending.is_empty()

    def _leave_ended(self, group: Group) -> None:
        if group.is_linked():
            group.unlink()
            self.ended_count -= 1
            if group.owner is not None:
                group.owner.count -= 1

    def await_end(self, group: Group, job: Job, labels: Labels) -> None:
        """Let a job wait for the end of a group."""
        waiting = group.waiting
        if waiting is None:
            waiting = group.waiting = Waiting(group)
        waiting.append(job)
        waiting.count += 1
        labels.awaited = waiting
        labels.after = group.key

    def stop_awaiting(self, labels: Labels) -> Group | None:
        """Note that a job waits no longer, which is in no slot any more; return the group if it may not be needed."""
        waiting = labels.awaited
        if waiting is None:
            return None
        labels.awaited = None
        waiting.count -= 1
        group = waiting.group
        if group is None or waiting.count:
            return None
        waiting.dissolve()
        waiting.group = group.waiting = None
        return group

    def forget(self, group: Group) -> None:
        """Remove a group that has no members, and for which nothing waits."""
        self._leave_ended(group)
        if group.id:
            self.by_id.remove(group.id)
        self.by_name.remove(group)

    def detach(self) -> None:
        """Let the links be freed that refer to the groups of a broker which must not be used any more."""
        self.released = Slot(-1, 0)
        self.ending = Ring()
        for owner in [*self.owners.values(), self.unowned]:
            owner.noted = Ring()
        self.owners.clear()

    def values(self) -> list[Group]:
        return [group for group in self.by_name.values() if isinstance(group, Group)]

    def check(self) -> None:
        self.by_id.check()
        self.by_name.check()
        self.released.check()
        groups = self.values()
        assert len(self.by_id) == sum(group.id != 0 for group in groups)
        owners = [*self.owners.values(), self.unowned]
        ended = self.ending.check() + sum([owner.check() for owner in owners])
        assert self.ended_count == ended == sum(group.is_linked() for group in groups)
        for group in groups:
            self._check_group(group)
        for owner in owners:
            assert owner.count == sum(group.is_linked() and group.owner is owner for group in groups)
            due = owner.next_due()
            is_timed = owner.is_linked() and (owner.deadline <= due or not self.ending.is_empty())
            assert due < 0 or is_timed, "nothing will let groups be forgotten"

    def _check_group(self, group: Group) -> None:
        name = group.key
        assert group.is_linked() == group.has_ended(), f"group {name} is among those that have ended, and has not"
        assert group.has_begun or (group.waiting is not None and not group.members), f"nothing needs group {name}"
        assert not group.id or self.by_id.get(group.id) is group, f"group {name} cannot be found by its id"
        assert not group.id or group.has_begun, f"group {name} has a record, and has not begun"
        for index, job in enumerate(group.members):
            labels = job.labels()
            assert labels is not None and labels.joined is group and labels.member == index and labels.group == name
        waiting = group.waiting
        if waiting is None:
            return
        assert waiting.check() == waiting.count > 0, f"group {name} counts wrongly what waits for it"
        assert waiting.group is group and not group.has_ended(), f"jobs wait for group {name}, which has ended"
        link = waiting.after
        while isinstance(link, Job):
            labels = link.labels()
            assert labels is not None and labels.awaited is waiting and labels.after == name
            link = link.after


class GroupSearch:
    """A look at all members of a group, in slices: how many are in each state, and which ones are buried.

    Who comes or goes meanwhile may be counted or not, or twice.
    """

    def __init__(self, group: Group) -> None:
        self.group = group
        self._position = len(group.members)
        self.counts = {READY: 0, RESERVED: 0, DELAYED: 0, BURIED: 0}  # members by state
        self.buried: list[int] = []  # ids of buried members, in no order
        self.is_complete = False

    def go_on(self) -> int:
        """Look at some more of them; return what that has cost."""
        members = self.group.members
        end = min(self._position, len(members))
        begin = max(end - LOOK, 0)
        for job in members[begin:end]:
            if job.tube.is_cleared(job):
                continue
            state: int = job.state
            self.counts[state] += 1
            if state == BURIED and len(self.buried) < SHOWN_BURIED:
                self.buried.append(job.id)
        self._position = begin
        self.is_complete = not begin
        return 1 + (end - begin >> LOOK_SHIFT)


def waits(job: Job) -> bool:
    """Whether a job waits for a group, or has waited for one that has ended, until its turn comes."""
    return job.state == DELAYED and job.deadline == NEVER
