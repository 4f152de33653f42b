"""The hierarchical timing wheel: every deadline of the server, with set, move and remove in O(1).

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7. Time is counted in ticks. The wheel
has levels of 64 slots. Level 0 holds the ticks that differ from the present tick in their last six bits only, level 1
those that differ in the six bits above as well, and so on. So the level of a timer is the highest group of six bits in
which its tick and the present tick differ, and its slot is the value of that group.

    level 2   64 slots of 4096 ticks    |  . . . x . . |      When the present reaches a slot of level 1 or above, its
    level 1   64 slots of 64 ticks      |  . x . . x . |      timers cascade: each is placed again, on a lower level.
    level 0   64 slots of 1 tick        |  x . x . . . |      When it reaches a slot of level 0, its timers are due.

Every timer of a level comes before every timer of the levels above, and the slots of a level are in order of time. So
the next event of the whole wheel is the lowest occupied slot of the lowest occupied level; the occupied slots of a
level are the bits of one integer. Nothing ticks: the caller sleeps until `next_event`.

A timer is due at the first tick that is not before its deadline: never early, and less than one tick late. It moves to
the ring `due`, from which it can still be removed until the caller takes it. Moving a timer costs one unit of a budget,
so that a million timers in one slot cascade in slices.

Must never know what its timers are for, and never read a clock.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.ring import UNLINKED, Link, Ring

TICK: Final = 10_000_000
"""The length of a tick, in nanoseconds, unless the caller asks for another."""

END_OF_TIME: Final = 1 << 63
"""A moment after every deadline, in nanoseconds: in 292 years, while the longest delay is 136 years."""

LEVELS: Final = 9
"""The number of levels, which span 2^54 ticks: 571 years of the shortest tick, a microsecond."""

BITS: Final = 6
SLOTS: Final = 64
MASK: Final = 63


class Timer(Link):
    """Anything with a deadline, in nanoseconds. It is in a slot, in `due`, or in neither."""

    __slots__ = ("deadline",)

    deadline: int


class Slot(Ring):
    """The timers of one slot, which knows where in the wheel it is."""

    __slots__ = ("bit", "level")

    def __init__(self, level: int, index: int) -> None:
        super().__init__()
        self.level = level
        self.bit = 1 << index


class Wheel:
    """Timers by deadline.

    Args:
        now: the present, in nanoseconds.
        tick: the length of a tick, in nanoseconds: the precision of every deadline.
    """

    __slots__ = ("cascading", "due", "levels", "next_event", "now", "occupied", "tick")

    def __init__(self, now: int = 0, tick: int = TICK) -> None:
        self.tick = tick
        self.now = now // tick  # the present, in ticks: the timers of all ticks before it are due, or gone
        self.next_event = END_OF_TIME  # in nanoseconds: never too late, and exact after `advance`
        self.occupied = [0] * LEVELS  # for each level, the bits of the slots that have timers
        self.levels = [[Slot(level, index) for index in range(SLOTS)] for level in range(LEVELS)]
        self.due = Slot(-1, 0)  # in the order in which they came due
        self.cascading: Slot | None = None  # the slot that cascades, until it is empty

    def set(self, timer: Timer, deadline: int) -> None:
        """Give a timer its first or another deadline. If it has passed, the timer is due at the next `advance`."""
        if timer.after is not UNLINKED:
            self.remove(timer)
        timer.deadline = deadline
        self._place(timer)

    def remove(self, timer: Timer) -> None:
        """Remove a timer from its slot or from `due`. It must be in one of them."""
        before = timer.before
        timer.unlink()
        if before.after is before:  # what is left is the head of an empty ring
            assert isinstance(before, Slot)
            level = before.level
            if level >= 0:
                self.occupied[level] &= ~before.bit

    def advance(self, now: int, budget: int) -> int:
        """Move the timers that are due by `now` to `due`, and cascade the slots that the present has reached.

        Args:
            now: the present, in nanoseconds.
            budget: how many timers may cascade.

        Returns:
            What is left of the budget. If that is 0, there may be more to do at once: `next_event` says.
        """
        present = now // self.tick
        occupied = self.occupied
        slot = self.cascading
        while True:
            if slot is not None:
                budget = self._cascade(slot, budget)
                if self.cascading is not None:
                    return 0
            level = 0
            while level < LEVELS and occupied[level] == 0:
                level += 1
            if level == LEVELS:
                self.now = max(self.now, present)
                self.next_event = END_OF_TIME
                return budget
            bits = occupied[level]
            slot = self.levels[level][(bits & -bits).bit_length() - 1]
            start = self._start(slot)
            if start > present:
                self.now = max(self.now, present)
                self.next_event = start * self.tick
                return budget
            self.now = max(self.now, start)
            if level == 0:
                occupied[0] = bits & ~slot.bit
                self.due.take_all_of(slot)
                slot = None

    def _cascade(self, slot: Slot, budget: int) -> int:
        """Place the timers of a slot again, as far as the budget allows; return what is left of it.

        Until the slot is empty, `cascading` is set and `next_event` stays at the moment when the present reached the
        slot: its timers may be due before those that are on the levels below already.
        """
        self.cascading = slot
        while slot.after is not slot:
            if budget == 0:
                return 0
            budget -= 1
            timer = slot.after
            assert isinstance(timer, Timer)
            timer.unlink()
            self._place(timer)
        self.occupied[slot.level] &= ~slot.bit
        self.cascading = None
        return budget

    def _place(self, timer: Timer) -> None:
        tick = -(-timer.deadline // self.tick)  # rounded up: never early
        now = self.now
        if tick <= now:
            tick = now
            level = 0
        else:
            level = ((tick ^ now).bit_length() - 1) // BITS
        slot = self.levels[level][(tick >> (level * BITS)) & MASK]
        if slot.after is slot:
            self.occupied[level] |= slot.bit
            start = self._start(slot) * self.tick
            if start < self.next_event:
                self.next_event = start
        slot.append(timer)

    def _start(self, slot: Slot) -> int:
        """The first tick of a slot: its own six bits, above them the bits of the present, and below them zeros."""
        shift = slot.level * BITS
        return (self.now >> (shift + BITS) << BITS | (slot.bit.bit_length() - 1)) << shift

    def check(self) -> int:
        """Verify every invariant; return how many timers there are in all slots and in `due`."""
        count = self.due.check()
        soonest = END_OF_TIME
        for level, slots in enumerate(self.levels):
            for index, slot in enumerate(slots):
                held = slot.check()
                count += held
                assert bool(held) == bool(self.occupied[level] >> index & 1), f"the bit of slot {index}, level {level}"
                if not held:
                    continue
                start = self._start(slot)
                width = 1 << (level * BITS)
                soonest = min(soonest, start * self.tick)
                assert start + width > self.now, f"slot {index} of level {level} is in the past"
                link = slot.after
                while link is not slot:
                    assert isinstance(link, Timer)
                    tick = max(-(-link.deadline // self.tick), start if level == 0 else 0)
                    assert start <= tick < start + width, f"slot {index} of level {level} has a timer of another slot"
                    link = link.after
        assert self.next_event <= soonest, "the next event is later than the first timer"
        return count
