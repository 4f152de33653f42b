"""Which of the tubes that a client watches is served next, if it is not the one with the best job.

A client may ask that its tubes are served in proportion to weights: by jobs, or by the time for which it has the jobs.
Each of its tubes has a *finish*: how much of the client it has had, divided by its weight. The tube with the smallest
one that has a ready job is next (stride scheduling). So the order is exact: after any number of reserves, no tube that
always had jobs is more than one job from its share. A tube that had none for a while saves nothing up: when it has one
again, it goes on from where the others are.

    mode        a job costs its tube
    ----------  --------------------------------------------------------------------------------------------------
    PRIORITY    nothing: the best job of all tubes is next, as if there were no weights
    WEIGHTED    1
    FAIR        the time from its reservation to the delete, release or bury of the client, or to the end of its
                time to run; until then, what the latest jobs of its tube took the client on average

Must know neither the broker nor what a reply is.
"""

from __future__ import annotations

from typing import Final

from beanstalk_server.queue.job import SAFETY_MARGIN, Job
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.units import MILLISECOND

PRIORITY: Final = 0
WEIGHTED: Final = 1
FAIR: Final = 2
MODES: Final = ("priority", "weighted", "fair")
"""The modes by their names in the protocol."""

MAX_WEIGHT: Final = 10_000

TIME_SCALE: Final = 720_720
"""What a nanosecond costs a tube of weight 1: every weight up to 16 divides it."""

SCALE: Final = TIME_SCALE * 1_000_000
"""Likewise, what a job costs it."""

REMEMBERED: Final = 64
"""The latest jobs that an average is of: after this many, they count half."""


class Turn:
    """What one tube has had of a client."""

    def __init__(self, weight: int) -> None:
        self.weight = weight  # what the client has given it; 0 if that is its policy's
        self.finish = 0
        self.is_idle = True  # it had no job that could be reserved when that was looked at last
        self.reserved = 0  # jobs that have cost what was expected of them
        self.expected = 0  # what its reserved jobs have cost so far, in nanoseconds, by the average
        self.ran = 0  # how long those have taken together, in nanoseconds
        self.ended = 0  # jobs that the average is of

    def average(self) -> int:
        return self.ran // self.ended if self.ended else MILLISECOND


class Weights:
    """The turns of the tubes that one client watches."""

    def __init__(self) -> None:
        self.mode = PRIORITY
        self.now = 0  # the greatest finish with which a tube has been served
        self.turns: dict[Tube, Turn] = {}  # of tubes that the client watches

    def set_mode(self, mode: int) -> None:
        """All tubes begin anew, with their weights."""
        self.mode = mode
        self.now = 0
        for tube, turn in list(self.turns.items()):
            self.turns[tube] = Turn(turn.weight)

    def set_weight(self, tube: Tube, weight: int) -> None:
        turn = self.turns.get(tube)
        if turn is None:
            self.turns[tube] = Turn(weight)
        else:
            turn.weight = weight

    def weight(self, tube: Tube) -> int:
        """What the client has given this tube; 0 if nothing."""
        turn = self.turns.get(tube)
        return 0 if turn is None else turn.weight

    def drop(self, tube: Tube) -> None:
        """The client watches this tube no more."""
        self.turns.pop(tube, None)

    def note_idle(self, tube: Tube) -> None:
        turn = self.turns.get(tube)
        if turn is not None:
            turn.is_idle = True

    def finish(self, tube: Tube) -> int:
        """What decides whether this tube, which has a job, is next: the smaller, the sooner."""
        turn = self.turns.get(tube)
        if turn is None:
            turn = self.turns[tube] = Turn(0)
        self._begin(turn)
        return turn.finish

    def _begin(self, turn: Turn) -> None:
        if turn.is_idle:
            turn.is_idle = False
            if turn.finish < self.now:
                turn.finish = self.now

    def note_reserved(self, tube: Tube) -> None:
        """The client has reserved a job of this tube."""
        turn = self.turns.get(tube)
        if turn is None or not self.mode:  # a job may be reserved by its id
            return
        self._begin(turn)
        if turn.finish > self.now:
            self.now = turn.finish
        if self.mode == WEIGHTED:
            turn.finish += SCALE // _weight(turn, tube)
            return
        expected = turn.average()
        turn.reserved += 1
        turn.expected += expected
        turn.finish += expected * TIME_SCALE // _weight(turn, tube)

    def note_time(self, job: Job, now: int, ends: bool) -> None:
        """The client touches a job that it has reserved, or has it no more.

        A job has the end of its time to run, and nothing else of its reservation: so each touch is paid for at once.
        """
        turn = self.turns.get(job.tube)
        if turn is None or self.mode != FAIR:
            return
        end = job.deadline if job.in_safety_margin else job.deadline + SAFETY_MARGIN
        took = max(now - (end - job.ttr), 0)
        turn.ran += took
        if ends:
            turn.ended += 1
            if turn.ended >= REMEMBERED:
                turn.ended >>= 1
                turn.ran >>= 1
            took -= self._take_back(turn)
        turn.finish = max(turn.finish + took * TIME_SCALE // _weight(turn, job.tube), 0)

    def note_undone(self, tube: Tube) -> None:
        """The client has a job of this tube no more, as if it had never reserved it."""
        turn = self.turns.get(tube)
        if turn is None or not self.mode:
            return
        if self.mode == WEIGHTED:
            cost = SCALE // _weight(turn, tube)
        else:
            cost = self._take_back(turn) * TIME_SCALE // _weight(turn, tube)
        turn.finish = max(turn.finish - cost, 0)

    def _take_back(self, turn: Turn) -> int:
        """What one of the reserved jobs was expected to take; the next is asked for without it."""
        if not turn.reserved:  # it was reserved in another mode, or before the tube was watched
            return 0
        expected = turn.expected // turn.reserved
        turn.expected -= expected
        turn.reserved -= 1
        return expected

    def check(self) -> None:
        """Verify what must hold between two calls.

        Raises:
            AssertionError: something does not.
        """
        for turn in self.turns.values():
            assert turn.finish >= 0 and turn.reserved >= 0 and turn.expected >= 0, "a tube has had less than nothing"
            assert turn.reserved or not turn.expected, "a tube pays for jobs that no client has"
            assert 0 <= turn.weight <= MAX_WEIGHT, "a weight is too large"


def _weight(turn: Turn, tube: Tube) -> int:
    return turn.weight or tube.policy.weight
