"""A greenstalk client with the commands that beanstalkd does not have (docs/protocol-extensions.md).

    from beanstalk_server.client import Client, TooLateError

    with Client(("127.0.0.1", 11300)) as queue:
        queue.put_keyed("space-42", "delete space 42", delay=24 * 3600)
        ...
        queue.cancel_keyed("space-42")

Needs greenstalk: `pip install 'beanstalk-server[client]'`. The server never imports this module.
"""

from __future__ import annotations

import math
import re

import greenstalk
from greenstalk import DEFAULT_DELAY, DEFAULT_PRIORITY, DEFAULT_TTR, Job, JobOrID, TBody

MAX_TIMEOUT = 2**31 - 1
"""The longest timeout of a command, in seconds; 68 years."""


class ExistsError(greenstalk.BeanstalkdError):
    """A live job of the tube already has the key. Nothing was changed."""

    def __init__(self, values: list[bytes]) -> None:
        #: The id of that job.
        self.id: int = int(values[0])


class TooLateError(greenstalk.BeanstalkdError):
    """The job is no longer delayed (for replace_keyed: a worker has reserved it). Nothing was changed."""


KEY = r"[A-Za-z0-9+/;.$_()][-A-Za-z0-9+/;.$_()]{0,199}"
"""The pattern of a valid key; the rules are those of tube names."""

ERROR_RESPONSES = {b"EXISTS": ExistsError, b"TOO_LATE": TooLateError}


class Client(greenstalk.Client[TBody]):
    """A greenstalk client that can cancel, reschedule and replace jobs, and reserve several at once.

    The methods defined here accept fractions of a second; greenstalk's own methods cut them to whole seconds.
    """

    def _send_cmd(self, cmd: bytes, expected: bytes) -> list[bytes]:
        try:
            return super()._send_cmd(cmd, expected)
        except greenstalk.UnknownResponseError as error:
            if error.status in ERROR_RESPONSES:
                raise ERROR_RESPONSES[error.status](error.values) from None
            raise

    def put_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: float = DEFAULT_DELAY,
        ttr: float = DEFAULT_TTR,
    ) -> int:
        """Inserts a job with a key into the currently used tube and returns the job ID.

        An :class:`ExistsError` is raised if a live job of this tube has the key.

        :param key: The name of the job, by the rules of tube names.
        :param body: The data representing the job.
        :param priority: An integer between 0 and 4,294,967,295 where 0 is the most urgent.
        :param delay: The number of seconds to delay the job for.
        :param ttr: The maximum number of seconds the job can be reserved for before timing out.
        """
        return self._int_cmd(self._put(b"put-keyed", key, body, priority, delay, ttr), b"INSERTED")

    def replace_keyed(
        self,
        key: str,
        body: TBody,
        priority: int = DEFAULT_PRIORITY,
        delay: float = DEFAULT_DELAY,
        ttr: float = DEFAULT_TTR,
    ) -> int:
        """Replaces the body, priority, delay and TTR of the job with this key, or inserts it. Returns the job ID.

        A :class:`TooLateError` is raised if a worker has reserved the job.

        :param key: The name of the job, by the rules of tube names.
        :param body: The data representing the job.
        :param priority: An integer between 0 and 4,294,967,295 where 0 is the most urgent.
        :param delay: The number of seconds to delay the job for, from now.
        :param ttr: The maximum number of seconds the job can be reserved for before timing out.
        """
        try:
            return self._int_cmd(self._put(b"replace-keyed", key, body, priority, delay, ttr), b"INSERTED")
        except greenstalk.UnknownResponseError as error:
            if error.status != b"REPLACED":
                raise
            return int(error.values[0])

    def cancel(self, job: JobOrID[TBody]) -> None:
        """Deletes a job that is still delayed, so that no worker ever receives it.

        A :class:`TooLateError` is raised if it is ready, reserved or buried.

        :param job: The job or job ID to cancel.
        """
        self._send_cmd(b"cancel %d" % _to_id(job), b"CANCELLED")

    def cancel_keyed(self, key: str) -> None:
        """Deletes the job with this key in the currently used tube, if it is still delayed.

        :param key: The name of the job.
        """
        self._send_cmd(b"cancel-keyed %b" % _key(key), b"CANCELLED")

    def reschedule(self, job: JobOrID[TBody], delay: float) -> None:
        """Gives a job that is still delayed another delay.

        A :class:`TooLateError` is raised if it is ready, reserved or buried.

        :param job: The job or job ID to reschedule.
        :param delay: The number of seconds to delay the job for, from now.
        """
        self._send_cmd(b"reschedule %d %b" % (_to_id(job), _seconds(delay)), b"RESCHEDULED")

    def reschedule_keyed(self, key: str, delay: float) -> None:
        """Gives the job with this key in the currently used tube another delay, if it is still delayed.

        :param key: The name of the job.
        :param delay: The number of seconds to delay the job for, from now.
        """
        self._send_cmd(b"reschedule-keyed %b %b" % (_key(key), _seconds(delay)), b"RESCHEDULED")

    def peek_keyed(self, key: str) -> Job[TBody]:
        """Returns the job with this key in the currently used tube.

        :param key: The name of the job.
        """
        return self._peek_cmd(b"peek-keyed %b" % _key(key))

    def reserve_batch(self, limit: int, timeout: float | None = None) -> list[Job[TBody]]:
        """Reserves the most urgent jobs from the tubes on the watch list, at least one. Returns the reserved jobs.

        This blocks until a job can be reserved. If a ``timeout`` is given and passes before that, a
        :class:`TimedOutError <greenstalk.TimedOutError>` is raised.

        :param limit: The maximum number of jobs to reserve.
        :param timeout: The maximum number of seconds to wait.
        """
        wait = _seconds(MAX_TIMEOUT if timeout is None else timeout)
        count = self._int_cmd(b"reserve-batch %d %b" % (limit, wait), b"RESERVED_BATCH")
        found = [self._read_reserved() for _ in range(count)]  # read everything first: decoding may fail
        return [Job(job_id, self._decode(body)) for job_id, body in found]

    def clear_tube(self, tube: str) -> int:
        """Deletes all ready, delayed and buried jobs of a tube. Returns how many.

        :param tube: The tube to clear.
        """
        return self._int_cmd(b"clear-tube %b" % tube.encode("ascii"), b"CLEARED")

    def _put(self, command: bytes, key: str, body: TBody, priority: int, delay: float, ttr: float) -> bytes:
        if isinstance(body, str):
            if self.encoding is None:
                raise TypeError("Unable to encode string with no encoding set")
            data = body.encode(self.encoding)
        else:
            data = body
        arguments = (command, _key(key), priority, _seconds(delay), _seconds(ttr), len(data), data)
        return b"%b %b %d %b %b %d\r\n%b" % arguments

    def _read_reserved(self) -> tuple[int, bytes]:
        job_id, size = greenstalk._parse_response(self._reader.readline(), b"RESERVED")
        return int(job_id), self._read_chunk(int(size))

    def _decode(self, body: bytes) -> TBody:
        return body if self.encoding is None else body.decode(self.encoding)  # type: ignore[return-value]


def _key(key: str) -> bytes:
    """Encode a key. A bad one is refused here, because the server would read the body after it as commands."""
    if not re.fullmatch(KEY, key):
        raise greenstalk.BadFormatError([key.encode()])
    return key.encode("ascii")


def _seconds(duration: float) -> bytes:
    """Encode a duration: whole seconds, or with milliseconds, rounded up so that no job is early."""
    if duration == int(duration):
        return b"%d" % duration
    milliseconds = math.ceil(round(duration * 1000, 6))  # 1.1 seconds are 1100.0000000000002 milliseconds
    return b"%d.%03d" % divmod(milliseconds, 1000)


def _to_id(job: JobOrID[TBody]) -> int:
    return job.id if isinstance(job, Job) else job
