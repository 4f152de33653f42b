"""The throttle of a tube: how fast its jobs may be reserved, and how many of them at a time.

The rate is that of a token bucket: a reservation takes a token, and a new one comes after each `interval`, until there
are `burst` of them. The bucket is one number, the moment when it will be full again ("generic cell rate algorithm",
ITU-T I.371): a reservation moves it on by an interval. While it is no more than burst - 1 intervals away, there is a
token.

    now             next_token                   full_at
     |                  |       |       |       |            burst 4, none left
     |---- blocked -----|--1----|--2----|--3----| 4

A reservation that is too late by less than a tick counts as if it had come with its token, because no timer is more
precise: so a tube that is always behind keeps its rate, even if that is more than one job a tick.

As a timer, its deadline is the next token while there is none, so there is no polling. It is OVERDUE when a place, or
a token, has become free for a waiting client, since not all that frees one knows the present. And it is the moment when
the bucket is full while nothing but that keeps the tube alive: else each worker that comes to an empty tube would find
a full bucket.
"""

from __future__ import annotations

from beanstalk_server.queue.policy import Policy
from beanstalk_server.queue.ring import UNLINKED
from beanstalk_server.queue.tube import Tube
from beanstalk_server.queue.wheel import OVERDUE, Timer, Wheel


class Throttle(Timer):
    """What keeps one tube to its policy's rate and its limit of reserved jobs. It sets `Tube.blocked`.

    Tube and throttle refer to each other, and compiled, neither is collected: `detach` before the tube goes.
    """

    def __init__(self, tube: Tube, wheel: Wheel) -> None:
        self.before = self.after = UNLINKED
        self.deadline = 0
        self.tube = tube
        self.wheel = wheel
        self.interval = 0
        self.credit = 0  # how long the tokens of a full bucket last, but for one: nanoseconds
        self.max_reserved = 0
        self.full_at = 0  # when the bucket will be full; 0 if it is, or there is no rate
        self.lacks_token = False
        self.lacks_place = False  # as many jobs are reserved as may be, or more

    def follow(self, policy: Policy, now: int) -> None:
        """Keep the tube to this policy from now on.

        Another rate or burst brings no tokens: else who changes them again and again would have no rate at all. There
        are as many as before, or a full bucket of them if the new one is smaller, and the next comes by the new rate.
        Only where there was no rate, the bucket is full.
        """
        interval = policy.interval
        credit = (policy.burst - 1) * interval
        if interval != self.interval or credit != self.credit:
            full_at = 0
            if interval and self.interval:
                lack = max(self.full_at, now) - self.credit - now  # of a token; below 0 if there are some to spare
                full_at = now + lack * interval // self.interval + credit
            self.interval = interval
            self.credit = credit
            self.full_at = full_at if full_at > now else 0
            self._await_token(now)
        self.max_reserved = policy.max_reserved
        self.lacks_place = 0 < self.max_reserved <= len(self.tube.reserved)
        self.tube.set_blocked()

    def next_token(self) -> int:
        """When there is a token, in nanoseconds; in the past if there is one."""
        return self.full_at - self.credit

    def is_closed(self) -> bool:
        """Whether no job may be reserved but by its id."""
        return self.lacks_token or self.lacks_place

    def take(self, now: int) -> None:
        """A job of the tube has been reserved. That is never refused here: what has no token makes the next wait."""
        if self.interval:
            full_at = self.full_at
            if full_at <= now - self.wheel.tick or not full_at:
                full_at = now
            self.full_at = full_at + self.interval
            self._await_token(now)
        self.lacks_place = 0 < self.max_reserved <= len(self.tube.reserved)
        self.tube.set_blocked()

    def give_back(self, now: int) -> None:
        """The reservation of a job has been undone: take back its token."""
        if self.full_at:
            self.full_at -= self.interval
            self._await_token(now)
            self.tube.set_blocked()

    def _await_token(self, now: int) -> None:
        lacks_token = self.full_at - self.credit > now
        if lacks_token:
            self.wheel.set(self, self.next_token())
        elif self.lacks_token and self.is_linked():  # a token has come, and its timer is not due before the next tick
            tube = self.tube
            if tube.waiting_count and tube.ready.first() is not None:
                self.wheel.set(self, OVERDUE)
            else:
                self.wheel.remove(self)
        self.lacks_token = lacks_token

    def free_place(self) -> None:
        """A job of the tube is no longer reserved."""
        tube = self.tube
        if self.lacks_place and len(tube.reserved) < self.max_reserved:
            self.lacks_place = False
            tube.set_blocked()
            if not tube.blocked and tube.waiting_count and tube.ready.first() is not None:
                self.wheel.set(self, OVERDUE)

    def look(self, now: int) -> None:
        """Its time as a timer has come: the tube may have a token, or waiting clients to be served."""
        self._await_token(now)
        self.tube.set_blocked()

    def keeps_tube(self) -> bool:
        """Whether it keeps alive a tube that nothing else needs: then it ends that in time, by its timer."""
        if not self.full_at:
            return False
        if not self.lacks_token:
            self.wheel.set(self, self.full_at)
        return True

    def detach(self) -> None:
        """Leave the tube, which is not throttled any more."""
        if self.is_linked():
            self.wheel.remove(self)
        tube = self.tube
        tube.throttle = None
        tube.set_blocked()
