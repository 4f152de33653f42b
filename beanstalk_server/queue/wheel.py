"""The hierarchical timing wheel: every deadline of the server, with set, move and remove in O(1).

After Varghese and Lauck, "Hashed and Hierarchical Timing Wheels" (1987), scheme 7. Time is counted in ticks. The wheel
has levels of 60 slots, and a slot is as wide as 30 slots of the level below. When the time of a slot comes, its timers
cascade: each is placed again, on a lower level. On level 0, they are due.

    level 2   60 slots of 900 ticks    |. . . x . . x|
    level 1   60 slots of 30 ticks     |. . x . . x .|
    level 0   60 slots of 1 tick       |x . x . x x .|

What is added here: a level is twice as long as a slot of the level above, not just as long. So a slot can cascade
*ahead of time*, while the slot before it is the present one.

              present
                 v
    level 1   |--x--- 7 ---------|------- 8 ---------|------- 9 ---------|------- 10 -- ...
    level 0   |..x.....................................|
                 7 has cascaded,   8 cascades now,     9 will while 8 is the present one

A timer is placed on the lowest level where its slot of the level above is the present one or the next, and so need not
cascade any more. A slot does not take timers while it cascades. Timers of one tick come due in the order in which they
were set, unless one is set while another is still to cascade.

To cascade costs one unit of a budget for each timer; to take a slot that is due costs nothing, however many timers it
has. What is due comes first, and what cascades has the time of a whole slot for it: so a million timers that cascade
make no timer late. A slot whose own time has come cascades at once, before anything later is due. That happens after a
suspend, or when the server cannot keep up.

The occupied slots of a level are the bits of one integer, small enough for a machine word. Nothing ticks: the caller
sleeps until `next_event`. A timer is due at the first tick that is not before its deadline: never early, and less than
one tick late. It moves to the ring `due`, from which it can still be removed until the caller takes it.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.native import mypyc_attr
from beanstalk_server.queue.ring import UNLINKED, Ring, RingNode
from beanstalk_server.queue.units import GREATEST_SHORT

TICK: Final = 250_000
"""The length of a tick, in nanoseconds, unless the caller asks for another: short beside the millisecond that an event
loop counts in, so that the two together are not much more than that."""

END_OF_TIME: Final = GREATEST_SHORT
"""A moment after every deadline, in nanoseconds: in 146 years, while the longest delay is 136 years."""

OVERDUE: Final = 0
"""A deadline in the past: a timer with it is due at the next `advance`."""

LEVELS: Final = 11
"""The number of levels, which span 30^11 ticks: 561 years of the shortest tick, a microsecond."""

RATIO: Final = 30
"""How many slots of a level are as wide as one of the level above."""

SLOTS: Final = 60
"""How many slots a level has: twice the ratio, so that a slot can cascade while the one before it runs."""


@mypyc_attr(acyclic=True, allow_interpreted_subclasses=True)
class Timer(RingNode):
    """Anything with a deadline, in nanoseconds. It is in a slot, in `due`, or in neither."""

    __slots__ = ("deadline",)

    deadline: int


class Slot(Ring):
    """The timers of one slot, which knows where in the wheel it is."""

    def __init__(self, level: int, index: int) -> None:
        super().__init__()
        self.level = level
        self.bit = 1 << index


class Wheel:
    """Timers by deadline.

    A level counts time in units of the width of its slots: the slot of unit u is number u modulo SLOTS. Those that are
    occupied are of the present unit or of the SLOTS - 1 units after it; above level 0, the present unit's is occupied
    only while it should have cascaded already.

    Args:
        now: the present, in nanoseconds.
        tick: the length of a tick, in nanoseconds: the precision of every deadline.
    """

    def __init__(self, now: int = 0, tick: int = TICK) -> None:
        self.tick = tick
        self.widths = [1]  # of a slot of each level, and of one above all, in ticks
        # The present, in units of the same widths: the timers of all ticks before it are due, or gone.
        self.present = [now // tick]
        for level in range(LEVELS):
            self.widths.append(self.widths[level] * RATIO)
            self.present.append(self.present[level] // RATIO)
        self.next_event = END_OF_TIME  # in nanoseconds: never too late, and exact after `advance`
        self.occupied = [0] * LEVELS  # for each level, the bits of the slots that have timers
        self.levels = [[Slot(level, index) for index in range(SLOTS)] for level in range(LEVELS)]
        self.due = Slot(-1, 0)  # in the order in which they came due

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

    def make_due(self, timers: Slot) -> None:
        """Let timers of a slot that is no part of the wheel be due at the next `advance`."""
        if not timers.is_empty():
            self.due.take_all_of(timers)
            self.next_event = 0

    def advance(self, now: int, budget: int) -> int:
        """Move the timers that are due by `now` to `due`; if there are none, cascade the slots whose time has begun.

        Args:
            now: the present, in nanoseconds.
            budget: how many timers may cascade.

        Returns:
            What is left of the budget. There may be more to do at once: `next_event` says.
        """
        end = now // self.tick
        occupied = self.occupied
        level, start = self._next_cascade()
        while True:
            tick = self._first_unit(0) if occupied[0] else end + 1
            if level and start <= tick and start <= end:
                # This slot should have cascaded: some of its timers may be due first.
                self._move_to(start)
                budget = self._cascade(level, budget)
                if occupied[level] and self._first_unit(level) * self.widths[level] == start:
                    break  # it could not be finished
                level, start = self._next_cascade()
            elif tick <= end:
                self._move_to(tick)
                slot = self.levels[0][tick % SLOTS]
                occupied[0] &= ~slot.bit
                self.due.take_all_of(slot)
            else:
                self._move_to(end)
                if self.due.after is self.due:
                    budget = self._cascade_ahead(budget)
                break
        self.next_event = self._soonest_event()
        return budget

    def _cascade_ahead(self, budget: int) -> int:
        """Cascade the slots of the next units, those that are needed first before the others; return the rest."""
        for level in range(1, LEVELS):
            while self.occupied[level] and self._first_unit(level) <= self.present[level] + 1:
                if budget == 0:
                    return 0
                budget = self._cascade(level, budget)
        return budget

    def _cascade(self, level: int, budget: int) -> int:
        """Place the timers of the first occupied slot of a level again, as far as the budget allows; return the rest.

        All of them go to lower levels, because the slot's unit is the present one or the next.
        """
        slot = self.levels[level][self._first_unit(level) % SLOTS]
        while budget:
            budget -= 1
            timer = slot.after
            assert isinstance(timer, Timer)
            timer.unlink()
            self._place(timer)
            if slot.after is slot:
                self.occupied[level] &= ~slot.bit
                break
        return budget

    def _place(self, timer: Timer) -> None:
        unit = -(-timer.deadline // self.tick)  # rounded up: never early
        present = self.present
        if unit < present[0]:
            unit = present[0]
        level = 0
        above = unit // RATIO
        while above > present[level + 1] + 1:
            level += 1
            unit = above
            above = unit // RATIO
        slot = self.levels[level][unit % SLOTS]
        if slot.after is slot:
            self.occupied[level] |= slot.bit
            event = (unit - 1) * self.widths[level] if level else unit
            if event * self.tick < self.next_event:
                self.next_event = event * self.tick
        slot.append(timer)

    def _move_to(self, tick: int) -> None:
        present = self.present
        level = 0
        while tick > present[level]:
            present[level] = tick
            tick //= RATIO
            level += 1
            if level > LEVELS:
                return

    def _first_unit(self, level: int) -> int:
        """The unit of the first occupied slot of a level. There must be one."""
        bits = self.occupied[level]
        unit = self.present[level]
        index = unit % SLOTS
        ahead = bits >> index
        if ahead:
            return unit + (ahead & -ahead).bit_length() - 1
        return unit - index + SLOTS + (bits & -bits).bit_length() - 1

    def _next_cascade(self) -> tuple[int, int]:
        """The slot above level 0 that begins first: its level, 0 if there is none, and its first tick."""
        found = soonest = 0
        for level in range(1, LEVELS):
            if self.occupied[level]:
                start = self._first_unit(level) * self.widths[level]
                if not found or start < soonest:
                    found = level
                    soonest = start
        return found, soonest

    def _soonest_event(self) -> int:
        """When a slot is due, or may cascade, in nanoseconds."""
        soonest = END_OF_TIME
        if self.occupied[0]:
            soonest = self._first_unit(0) * self.tick
        for level in range(1, LEVELS):
            if self.occupied[level]:
                event = (self._first_unit(level) - 1) * self.widths[level] * self.tick
                if event < soonest:
                    soonest = event
        return soonest

    def check(self) -> int:
        """Verify every invariant; return how many timers there are in all slots and in `due`."""
        count = self.due.check()
        for level, unit in enumerate(self.present):
            assert unit == self.present[0] // RATIO**level, f"level {level} has another present"
        for level, slots in enumerate(self.levels):
            width = self.widths[level]
            occupied = self.occupied[level]
            for index, slot in enumerate(slots):
                if slot.after is slot is slot.before and not occupied >> index & 1:
                    continue  # as nearly all of them are
                held = slot.check()
                count += held
                assert bool(held) == bool(occupied >> index & 1), f"the bit of slot {index}, level {level}"
                unit = self.present[level] + (index - self.present[level]) % SLOTS
                link = slot.after
                while link is not slot:
                    assert isinstance(link, Timer)
                    tick = max(-(-link.deadline // self.tick), self.present[0] if level == 0 else 0)
                    assert tick // width == unit, f"slot {index} of level {level} has a timer of another slot"
                    link = link.after
        assert self.next_event <= self._soonest_event(), "the next event is later than the first timer's"
        return count
