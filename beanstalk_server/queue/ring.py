"""A circular doubly linked list whose members are the links themselves.

Appending, taking the first and unlinking any member are O(1), keep the order and allocate nothing. A job is itself a
link: a slot of the timing wheel with a million jobs costs two references a job, and a buried job, which has no
deadline, uses the same two.

    ring.after --> first --> ... --> last --> ring          (`before` goes the other way round)
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.native import mypyc_attr


# Without the collector's 16 bytes, which each job would have. A subclass that is `acyclic` as well is never freed while
# it is in a cycle, as a linked job is with its ring. One that is not is collected as usual.
@mypyc_attr(acyclic=True, allow_interpreted_subclasses=True)
class RingNode:
    """A member of at most one ring. While it is in none, `before` and `after` are UNLINKED."""

    __slots__ = ("after", "before")

    before: RingNode
    after: RingNode

    def is_linked(self) -> bool:
        return self.after is not UNLINKED

    def unlink(self) -> None:
        before = self.before
        after = self.after
        before.after = after
        after.before = before
        self.before = self.after = UNLINKED


class Ring(RingNode):
    """The head of a ring. An empty ring is linked to itself."""

    def __init__(self) -> None:
        self.before = self.after = self

    def is_empty(self) -> bool:
        return self.after is self

    def dissolve(self) -> None:
        """Let an empty ring be freed: it refers to itself, and would stay in memory otherwise."""
        self.before = self.after = UNLINKED

    def append(self, link: RingNode) -> None:
        last = self.before
        link.before = last
        link.after = self
        last.after = link
        self.before = link

    def take_all_of(self, other: Ring) -> None:
        """Move all links of another ring to the end of this one, in their order, in O(1)."""
        if other.after is other:
            return
        last = self.before
        first = other.after
        last.after = first
        first.before = last
        self.before = other.before
        other.before.after = self
        other.before = other.after = other

    def check(self) -> int:
        """Verify the links in both directions; return how many there are."""
        count = 0
        link = self.after
        before: RingNode = self
        while link is not self:
            assert link.before is before, "the `before` of a link is not the link before it"
            assert link is not UNLINKED, "a ring runs into UNLINKED"
            before = link
            link = link.after
            count += 1
        assert self.before is before, "the ring's `before` is not its last link"
        return count


UNLINKED: Final = Ring()
"""The target of both references of an unlinked link, so that they need not be optional."""
