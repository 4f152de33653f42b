"""Stores the bodies of delayed jobs in pages of slots: a slab allocator for bytes.

A body of 100 bytes takes 144 as an object, and 101 in a page. All bodies of a page have the same size, so a slot needs
neither a length nor padding. The job has the page in place of its body, and the number of its slot.

    slot      0      1      2      3      4      5
           | body | body | end  | body | 2    |      |       first = 4, fresh = 5

The free slots that have been used before are a list: each has the number of the next one in its first byte. The slots
from `fresh` on have not been used yet. A page with a free slot is in the ring of its size. Only its jobs refer to a
full page, and an empty page is freed.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from beanstalk_server.queue.ring import UNLINKED, Ring, RingNode

if TYPE_CHECKING:
    from mypy_extensions import i16

LARGEST: Final = 479
"""Bytes of the largest body in a page. The object of a larger one is on the C heap, and takes little more than it."""

MOST_BYTES: Final = 16 << 10
"""The longest page. Beside its slots, a page takes about 160 bytes."""

MOST_SLOTS: Final = 255
NO_SLOT: Final = 255
"""Ends the list of free slots. The number of a slot fits into a byte."""

LEAST_SLOTS: Final = 8
GROWTH_SHIFT: Final = 3
"""A new page has slots for an eighth of the bodies of its size that there are: where these are few, pages are short."""


class BodyPage(RingNode):
    """Slots for bodies of one size. It is in the ring of that size while it has a free slot."""

    __slots__ = ("buffer", "count", "first", "fresh", "sized", "slots")

    def __init__(self, sized: SizedPages, slots: int) -> None:
        self.before = self.after = UNLINKED
        self.sized = sized
        self.buffer = bytearray(sized.size * slots)
        self.slots: i16 = slots
        self.count: i16 = 0  # of bodies
        self.first: i16 = NO_SLOT  # of the free slots that have been used before
        self.fresh: i16 = 0  # this slot and those behind it have not been used yet

    def add(self, body: bytes) -> int:
        """Store a body in a free slot; return the number of the slot."""
        size = self.sized.size
        slot: int = self.first
        if slot == NO_SLOT:
            slot = self.fresh
            self.fresh += 1
        else:
            self.first = self.buffer[slot * size]
        self.sized.write(self.buffer, slot * size, body)
        self.count += 1
        self.sized.count += 1
        if self.count == self.slots:
            self.unlink()
        return slot

    def read(self, slot: int) -> bytes:
        body: bytes = self.sized.read(self.buffer, slot * self.sized.size)[0]
        return body

    def take(self, slot: int) -> bytes:
        """Free a slot; return its body."""
        body = self.read(slot)
        sized = self.sized
        if self.count == self.slots:
            sized.append(self)
        self.buffer[slot * sized.size] = self.first
        self.first = slot
        self.count -= 1
        sized.count -= 1
        if not self.count:
            self.unlink()
        return body

    def check(self) -> None:
        """Verify a page that has a free slot."""
        assert 0 < self.count < self.slots, "a page in a ring is full or empty"
        free = self.slots - self.fresh
        slot: int = self.first
        while slot != NO_SLOT:
            assert slot < self.fresh, f"slot {slot} is free again, and has not been used"
            slot = self.buffer[slot * self.sized.size]
            free += 1
        assert self.count + free == self.slots, "a slot is lost"


class SizedPages(Ring):
    """The pages for bodies of one size that have a free slot.

    Args:
        size: bytes, 1 to LARGEST.
    """

    def __init__(self, size: int) -> None:
        super().__init__()
        layout = Struct(f"{size}s")  # its functions are faster than slices of a bytearray, which make objects
        self.write = layout.pack_into
        self.read = layout.unpack_from
        self.size = size
        self.count = 0  # of bodies, also in full pages

    def page(self) -> BodyPage:
        """A page with a free slot."""
        page = self.after
        if isinstance(page, BodyPage):
            return page
        slots = max(self.count >> GROWTH_SHIFT, LEAST_SLOTS)
        page = BodyPage(self, min(slots, MOST_BYTES // self.size, MOST_SLOTS))
        self.append(page)
        return page

    def check(self) -> int:
        count = 0
        page = self.after
        while isinstance(page, BodyPage):
            assert page.sized is self
            page.check()
            count += page.count
            page = page.after
        assert count <= self.count, "there are more bodies in pages with a free slot than in all"
        return super().check()


class BodyPages:
    """The pages for bodies of all sizes."""

    def __init__(self) -> None:
        self._by_size: list[SizedPages | None] = [None] * (LARGEST + 1)

    def page_for(self, size: int) -> BodyPage | None:
        """A page with a free slot for a body of this size; None if such a body is better off as an object."""
        if not 0 < size <= LARGEST:
            return None
        sized = self._by_size[size]
        if sized is None:
            sized = self._by_size[size] = SizedPages(size)
        return sized.page()

    def count(self) -> int:
        """How many bodies there are."""
        return sum([sized.count for sized in self._by_size if sized is not None])

    def check(self) -> None:
        for size, sized in enumerate(self._by_size):
            if sized is not None:
                assert sized.size == size
                sized.check()
