"""A circular doubly linked list whose links are the members themselves.

Append, take the first and unlink are O(1), keep order and allocate nothing: a job is a link, so a slot of the
timing wheel with a million jobs costs two references for each of them, and the buried jobs of a tube, which have no
deadline, use the same two. Must never know what its members are.

    ring.after --> first --> ... --> last --> ring          (and `before` the other way round)
"""

from __future__ import annotations


class Link:
    """A member of at most one ring; `before` and `after` are UNLINKED while it is in none."""

    __slots__ = ("after", "before")

    before: Link
    after: Link

    def is_linked(self) -> bool:
        return self.after is not UNLINKED

    def unlink(self) -> None:
        """Leave the ring. The link must be in one."""
        before = self.before
        after = self.after
        before.after = after
        after.before = before
        self.before = self.after = UNLINKED


class Ring(Link):
    """The head of a ring; an empty ring is linked to itself."""

    __slots__ = ()

    def __init__(self) -> None:
        self.before = self.after = self

    def is_empty(self) -> bool:
        return self.after is self

    def dissolve(self) -> None:
        """An empty ring is not needed any more. It refers to itself, and so would not be freed at once."""
        self.before = self.after = UNLINKED

    def append(self, link: Link) -> None:
        """Make an unlinked link the last one."""
        last = self.before
        link.before = last
        link.after = self
        last.after = link
        self.before = link

    def take_all_of(self, other: Ring) -> None:
        """Append every link of another ring, in its order, in O(1); the other is empty afterwards."""
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
        before: Link = self
        while link is not self:
            assert link.before is before, "a link's `before` is not the link before it"
            assert link is not UNLINKED, "a ring runs into UNLINKED"
            before = link
            link = link.after
            count += 1
        assert self.before is before, "the ring's `before` is not its last link"
        return count


UNLINKED = Ring()
"""Where the references of an unlinked link point: a ring of its own, so that they need not be optional."""
