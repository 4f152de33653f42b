"""Delivers one job: reads it, waits for a slot, sends it, and returns its outcome. The handler of the consumer.

    it cannot be read, or may not be sent    Bury, with a report
    its host has more than enough            Release, after as long as the host needs for those before it: no try
    it is taken                              DONE
    it is not                                Release or Bury, as `verdicts` has it
    the sender stops before it has a slot    GIVE_BACK

A job that was put off counts as reserved, like one that was tried. So how often that was is remembered here, and taken
off; it is forgotten when the sender ends, and then what was put off counts as tried: it is buried earlier, but never
before an attempt of it has failed.

Must never put into a log what a job says beyond its host and its id.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

from beanstalk_client.consumer import DONE, GIVE_BACK, Bury, Delivery, Outcome, Release, is_last_attempt
from beanstalk_client.deliver.addresses import NotAllowedError
from beanstalk_client.deliver.request import Request, RequestError
from beanstalk_client.deliver.sending import FailedError, RequestSender
from beanstalk_client.deliver.slots import DeliverySlots, PutOff, Stopped
from beanstalk_client.deliver.verdicts import BURY, Rules, is_delivered, judge, read_retry_after
from beanstalk_client.errors import Error
from beanstalk_client.events import reason_of, tell
from beanstalk_client.tasks.failure import ERRORS, describe, is_of_worker, report, stats_of, tries_of

MOST_REMEMBERED: Final = 250_000
"""Jobs that were put off of which it is remembered how often: in some 25 MB."""

LOOKUP_DELAY: Final = 5.0
"""Seconds after which a job is tried again whose statistics were not to be had when it failed."""

Report = Callable[[str, int, bytes], Awaitable[None]]
"""Puts what a person should read about a buried job: into a tube, by the id of the job."""

log: logging.Logger = logging.getLogger("beanstalk_client.deliver")


class Failed(NamedTuple):
    """An attempt that has failed, with the names that the log has.

    Attributes:
        host: of the receiver.
        webhook_id: what the receiver knows the job by.
        seconds: that it took.
        kind: as `FailedError.kind`; "status" or "fault".
        reason: why, in one line.
        status: of the response; 0: there was none.
    """

    host: str
    webhook_id: str
    seconds: float
    kind: str
    reason: str
    status: int


class Deliveries:
    """The handler.

    Args:
        sender: makes attempts.
        slots: limit the requests at once.
        rules: say what becomes of jobs whose attempt has failed.
        report: None: nowhere.
        clock: seconds since 1970.
        chance: at random, 0 to 1.
    """

    def __init__(
        self,
        sender: RequestSender,
        slots: DeliverySlots,
        rules: Rules,
        report: Report | None = None,
        *,
        clock: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._sender = sender
        self._slots = slots
        self._rules = rules
        self._report = report
        self._clock = clock
        self._chance = chance
        self._put_off: OrderedDict[int, int] = OrderedDict()  # how often, by the id of the job

    async def __call__(self, delivery: Delivery) -> Outcome:
        try:
            request = Request.from_body(delivery.body)
            self._sender.check(request)
        except (RequestError, NotAllowedError) as error:
            return await self._bury(delivery, f"cannot send this request: {error}", kind="unsendable")
        loop = asyncio.get_running_loop()
        known_by = request.id or derived_id(delivery.job_id, delivery.body)
        try:
            await self._slots.begin(request.host, loop.time())
        except PutOff as off:
            self._remember(delivery.job_id)
            message = f"postponed for {off.delay:.3g} s: too many requests wait for {request.host}"
            self._tell(logging.DEBUG, "delivery-put-off", delivery, message, host=request.host, delay=off.delay)
            return Release(off.delay)
        except Stopped:
            return GIVE_BACK
        began = loop.time()

        def failed(kind: str, reason: str, status: int = 0) -> Failed:
            return Failed(request.host, known_by, loop.time() - began, kind, reason, status)

        try:
            answer = await self._sender.send(request, known_by)
        except FailedError as error:
            return await self._fail(delivery, failed(error.kind, error.reason))
        except BaseException as error:
            if not is_of_worker(error, delivery):
                self._tell(logging.ERROR, "bug-sender", delivery, f"the sender failed: {describe(error)}", error=error)
                return await self._fail(delivery, failed("fault", describe(error)))
            message = f"interrupted while sending to {request.host}: the request may arrive twice"
            self._tell(logging.WARNING, "delivery-cut-off", delivery, message, host=request.host, webhook_id=known_by)
            raise
        finally:
            self._slots.end(request.host, loop.time() - began)
        lasted = loop.time() - began
        if not is_delivered(answer.status):
            after = read_retry_after(answer.retry_after, self._clock()) if answer.retry_after else None
            fault = failed("status", f"status {answer.status}", answer.status)
            return await self._fail(delivery, fault, after, answer.excerpt)
        self._put_off.pop(delivery.job_id, None)
        message = f"delivered to {request.host}: status {answer.status} after {lasted:.3f} s"
        fields: dict[str, Any] = {
            "host": request.host,
            "webhook_id": known_by,
            "status": answer.status,
            "seconds": lasted,
        }
        self._tell(logging.INFO, "delivered", delivery, message, **fields)
        return DONE

    async def _fail(
        self, delivery: Delivery, failed: Failed, retry_after: float | None = None, excerpt: str = ""
    ) -> Outcome:
        """An attempt has failed: try again, or no more."""
        found = await stats_of(delivery)
        tries = self._tries(delivery, found) if found else 1
        verdict = judge(
            self._rules,
            tries,
            self._chance(),
            status=failed.status,
            reason=failed.reason,
            retry_after=retry_after,
        )
        fields = failed._asdict()
        reason = fields.pop("reason")
        if verdict.fate == BURY or is_last_attempt(found):
            why = f"{failed.host}: {verdict.reason}"
            outcome = await self._bury(delivery, why, found, tries=tries, excerpt=excerpt, **fields)
            return Release(0, outcome.priority) if is_last_attempt(found) else outcome  # to the dead tube, if any
        delay = verdict.delay if found else max(LOOKUP_DELAY, verdict.delay)
        limit = f" of {self._rules.tries}" if self._rules.tries else ""
        message = f"{failed.host}: {reason}, try {tries}{limit}; retrying in {delay:.3g} s"
        self._tell(logging.WARNING, "delivery-failed", delivery, message, tries=tries, delay=delay, **fields)
        return Release(delay, int(found["pri"]) if found else None)

    async def _bury(
        self,
        delivery: Delivery,
        reason: str,
        found: dict[str, Any] | None = None,
        *,
        tries: int = 0,
        excerpt: str = "",
        **fields: Any,
    ) -> Bury:
        """No further attempt is made."""
        found = found or await stats_of(delivery)
        tube = str(found.get("tube") or delivery.tube)
        self._tell(logging.ERROR, "delivery-buried", delivery, f"buried: {reason}", tube, tries=tries, **fields)
        self._put_off.pop(delivery.job_id, None)
        if self._report is not None and tube:
            try:
                known = {name: fields[name] for name in ("kind", "host", "webhook_id", "status") if fields.get(name)}
                if excerpt:
                    known["answer"] = excerpt
                body = report(delivery.job_id, tube, reason, tries, by="sender", **known)
                await self._report(tube + ERRORS, delivery.job_id, body)
            except (Error, OSError, ValueError) as trouble:
                message = f"report not saved: {reason_of(trouble)}"
                self._tell(logging.WARNING, "report-lost", delivery, message, tube)
        return Bury(int(found["pri"]) if found else None)

    def _tries(self, delivery: Delivery, found: dict[str, Any]) -> int:
        """Which attempt of a job this was, 1 or more."""
        return max(1, tries_of(found, self._rules.tries - 1) - self._put_off.get(delivery.job_id, 0))

    def _remember(self, job: int) -> None:
        """A job was reserved and not tried."""
        self._put_off[job] = self._put_off.pop(job, 0) + 1
        if len(self._put_off) > MOST_REMEMBERED:
            self._put_off.popitem(last=False)

    def _tell(
        self,
        level: int,
        event: str,
        delivery: Delivery,
        message: str,
        tube: str = "",
        error: BaseException | None = None,
        **fields: Any,
    ) -> None:
        tube = tube or delivery.tube
        text = f"job {delivery.job_id} of tube {tube}: {message}"
        tell(log, level, event, text, error, job=delivery.job_id, tube=tube, **fields)


def derived_id(job: int, body: bytes) -> str:
    """What receivers know a job by that names no id: the same in each attempt, and another one for every other job.

    The body is in it, since a server without a binlog counts its jobs from 1 at each start.
    """
    return "job_" + hashlib.sha256(b"%d:%s" % (job, body)).hexdigest()[:32]
