"""Decides a job's outcome after an attempt to deliver it, by status, Retry-After and backoff.

| attempt | job |
|---|---|
| 2xx | deleted |
| 410 | buried |
| 429, 503 | tried again when Retry-After says, within a bound; without one, as all else |
| any other status, no answer, no connection, no such name, bad TLS | tried again with backoff |
| the request may not be sent as it is | buried |
| the last try that there is | buried |
"""

from __future__ import annotations

import re
from datetime import timezone
from email.utils import parsedate_to_datetime
from typing import Final, NamedTuple

RETRY: Final = "retry"
BURY: Final = "bury"

GONE: Final = 410
OBEYS_RETRY_AFTER: Final = (429, 503)

_MOST_DOUBLINGS: Final = 62
"""Any backoff is the longest after this many."""

_DIGITS: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_MANY_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)


class Rules(NamedTuple):
    """When a job is tried again.

    Attributes:
        tries: after this many attempts a job is buried; 0: never.
        backoff: seconds after the first attempt, doubled with each further one.
        backoff_max: the longest backoff, in seconds.
        retry_after_max: what Retry-After may demand at most, in seconds.
    """

    tries: int = 12
    backoff: float = 5.0
    backoff_max: float = 86_400.0
    retry_after_max: float = 86_400.0

    def delay(self, tries: int, retry_after: float | None, chance: float) -> float:
        """How long a job waits after an attempt, in seconds.

        Backoff is drawn between three quarters of its length and five quarters, so that jobs that failed together do
        not come back together. What the receiver asks for is exceeded by up to a tenth, but not beyond
        `retry_after_max`. The bounds are applied after the random part.

        Args:
            tries: how often it has been tried, 1 or more.
            retry_after: what the receiver has asked for, in seconds; None: nothing.
            chance: at random, 0 to 1.
        """
        if retry_after is not None:
            # Zero is what one says who has not thought about it, too; so is a date that is past.
            longer = 1 + chance / 10
            least = min(self.backoff * longer, self.backoff_max)
            return max(min(retry_after * longer, self.retry_after_max), least)
        doubled = self.backoff * 2.0 ** min(tries - 1, _MOST_DOUBLINGS)
        return min(doubled * (0.75 + chance / 2), self.backoff_max)


class Verdict(NamedTuple):
    """What becomes of a job that was not delivered.

    Attributes:
        fate: RETRY or BURY.
        delay: seconds until it is tried again.
        reason: why it is not delivered, in one line.
    """

    fate: str
    delay: float = 0.0
    reason: str = ""


def is_delivered(status: int) -> bool:
    """Whether the receiver has taken it."""
    return 200 <= status <= 299


def judge(
    rules: Rules, tries: int, chance: float, *, status: int = 0, reason: str, retry_after: float | None = None
) -> Verdict:
    """What becomes of a job that was not delivered.

    Args:
        tries: how often it has been tried, this time included.
        chance: at random, 0 to 1.
        status: the receiver's; 0: there was none.
        reason: why, in one line.
        retry_after: what Retry-After asks for, in seconds; None: nothing that can be read.
    """
    if status == GONE:
        return Verdict(BURY, reason=reason)
    if rules.tries and tries >= rules.tries:
        return Verdict(BURY, reason=f"{reason} (try {tries} of {rules.tries})")
    asked = retry_after if status in OBEYS_RETRY_AFTER else None
    return Verdict(RETRY, rules.delay(tries, asked, chance), reason)


def read_retry_after(value: str, now: float) -> float | None:
    """What Retry-After says (RFC 9110, section 10.2.3), in seconds from now.

    Args:
        value: of the header field: digits, or a date in one of the three forms of HTTP.
        now: seconds since 1970.

    Returns:
        0 for a date that is past; None if it says neither a number nor a date.
    """
    value = value.strip()
    if _MANY_DIGITS.fullmatch(value):
        return float(value) if _DIGITS.fullmatch(value) else 1e18
    if len(value) > 64:
        return None
    try:
        moment = parsedate_to_datetime(value)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
    if moment.tzinfo is None:
        moment = moment.replace(
            tzinfo=timezone.utc
        )  # asctime's form, and "-0000", name no zone; HTTP has only this one
    return max(0.0, moment.timestamp() - now)
