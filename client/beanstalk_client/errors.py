"""What goes wrong: replies that are errors, and connections that are lost. The names of replies are greenstalk's.

Must never show a token.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from beanstalk_client.job import Job


LONGEST_ASKED = 80
"""Characters of a command in the text of an error."""


def shown(what: object, longest: int = 160) -> str:
    """A text that came from outside, for a message or a log: on one line, without what steers a terminal.

    Args:
        longest: characters after which it is cut off.
    """
    text = str(what)[: longest + 1]
    if not text.isprintable():
        text = "".join(each if each.isprintable() else each.encode("unicode_escape").decode("ascii") for each in text)
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


class Error(Exception):
    """The base of all errors of this package about a server.

    Example:
        try:
            queue.put("hello")
        except Error as error:
            print("not put:", error)
    """


class UnknownResponseError(Error):
    """A reply that this client does not know. The connection goes on.

    Example:
        except UnknownResponseError as error:
            print(error.status)

    Attributes:
        status: its first word.
        values: the words behind it.
    """

    def __init__(self, status: bytes, values: list[bytes]) -> None:
        super().__init__(status, values)  # which is how a copy is made, also in another process
        self.status = status
        self.values = values

    def __str__(self) -> str:
        return b" ".join([self.status, *self.values]).decode("ascii", "backslashreplace")


class UndecodableError(Error, UnicodeDecodeError):
    """The body of a job is no text in the client's encoding. The job is reserved nevertheless, if that was asked for.

    Example:
        except UndecodableError as error:
            queue.bury(error.jobs[0])

    Attributes:
        jobs: what the server has answered: this job, whose body is bytes, and those that came with it in a batch.
    """

    jobs: list[Job[Any]]

    def __str__(self) -> str:
        ids = [str(job.id) for job in self.jobs if job.body == self.object]
        return f"job {', '.join(ids)}: {UnicodeDecodeError.__str__(self)}"


class BeanstalkdError(Error):
    """A reply that is an error. As text, it names the server, the reply and its meaning, and then the command.

    Example:
        except BeanstalkdError as error:
            print(error.reply, error.asked)

    Attributes:
        reply: the word of the protocol.
        meaning: what it means.
        asked: the line of the command; "" if none was sent.
        server: where it was sent.
    """

    reply: ClassVar[str] = ""
    meaning: ClassVar[str] = ""
    asked: str = ""
    server: str = ""

    def __str__(self) -> str:
        if self.args and isinstance(self.args[0], str):  # of the client itself
            return self.args[0]
        asked = f" ({shown(self.asked, LONGEST_ASKED)})" if self.asked else ""
        return ": ".join(part for part in (self.server, self.reply, self._told()) if part) + asked

    def _told(self) -> str:
        return self.meaning


class BadFormatError(BeanstalkdError):
    """The server cannot read the command.

    Example:
        except BadFormatError as error:
            print(error.asked)
    """

    reply = "BAD_FORMAT"
    meaning = "the server cannot parse the command"


class BuriedError(BeanstalkdError):
    """The job has been buried: for want of memory, or because a policy says that it has failed too often.

    Example:
        except BuriedError:
            print("buried instead of released")

    Attributes:
        id: of the job that a put has made; None in reply to a release.
    """

    reply = "BURIED"
    meaning = "the job was buried: the server is out of memory, or the job failed too often for its policy"

    def __init__(self, id: int | None = None) -> None:
        super().__init__(*() if id is None else (id,))
        self.id = id

    def _told(self) -> str:
        return self.meaning if self.id is None else f"job {self.id}: {self.meaning}"


class DeadlineSoonError(BeanstalkdError):
    """The time to run of a job that this client has reserved ends within a second.

    Example:
        except DeadlineSoonError:
            queue.touch(job)
    """

    reply = "DEADLINE_SOON"
    meaning = "the time to run of a job that this client has reserved ends within a second"


class DrainingError(BeanstalkdError):
    """The server is in drain mode, or the tube is full.

    Example:
        except DrainingError:
            time.sleep(1)  # and put it again
    """

    reply = "DRAINING"
    meaning = "the server is in drain mode, or the tube is full"


class ExpectedCrlfError(BeanstalkdError):
    """A body was longer than announced.

    Example:
        except ExpectedCrlfError as error:
            print(error.asked)
    """

    reply = "EXPECTED_CRLF"
    meaning = "the body is longer than announced"


class InternalError(BeanstalkdError):
    """The server reports an error of its own.

    Example:
        except InternalError as error:
            print("look into the log of", error.server)
    """

    reply = "INTERNAL_ERROR"
    meaning = "internal error of the server: see its log"


class JobTooBigError(BeanstalkdError):
    """The body is larger than the server or the tube takes.

    Example:
        except JobTooBigError:
            queue.put(url_of(store(body)))
    """

    reply = "JOB_TOO_BIG"
    meaning = "the body is larger than max-job-size of the server or the tube"


class NotFoundError(BeanstalkdError):
    """There is no such job or tube, or the job is not in the state that the command asks for.

    Example:
        except NotFoundError:
            print("job 17 is gone")
    """

    reply = "NOT_FOUND"
    meaning = "there is no such job or tube, or it is in another state, or another client has reserved it"


class NotIgnoredError(BeanstalkdError):
    """The only tube that is watched cannot be ignored.

    Example:
        except NotIgnoredError:
            queue.watch("default")
    """

    reply = "NOT_IGNORED"
    meaning = "the only tube that is watched cannot be ignored"


class OutOfMemoryError(BeanstalkdError):
    """The server is out of memory, or its disk is full.

    Example:
        except OutOfMemoryError:
            time.sleep(1)  # and put it again
    """

    reply = "OUT_OF_MEMORY"
    meaning = "the server is out of memory, or its disk is full"


class TimedOutError(BeanstalkdError):
    """No job could be reserved within the timeout.

    Example:
        try:
            job = queue.reserve(timeout=5)
        except TimedOutError:
            job = None
    """

    reply = "TIMED_OUT"
    meaning = "no job was ready within the timeout"


class UnknownCommandError(BeanstalkdError):
    """The server does not know the command.

    Example:
        except UnknownCommandError:
            print("cancel needs beanstalk-server")
    """

    reply = "UNKNOWN_COMMAND"
    meaning = "the server does not support this command; beanstalk-server has more commands than beanstalkd"


class UnsupportedError(UnknownCommandError):
    """The server does not know a command that has a body. It was asked, and nothing of the command was sent.

    Example:
        except UnsupportedError:
            queue.put("hello")  # without a key
    """


class ExistsError(BeanstalkdError):
    """A job of the tube already has the key, or had it and the key is held. Nothing was changed.

    Example:
        except ExistsError as error:
            print("job", error.id, "has this key")

    Attributes:
        id: of that job.
    """

    reply = "EXISTS"
    meaning = "already has the key, or its key is still held"

    def __init__(self, id: int) -> None:
        super().__init__(id)
        self.id = id

    def _told(self) -> str:
        return f"job {self.id} {self.meaning}"


class TooLateError(BeanstalkdError):
    """The job has left the state that the command needs. Nothing was changed.

    `cancel` and `reschedule` need a delayed job, `reprioritize` one that is not reserved, `save` one that was not
    replaced with `again`, and a put that replaces one that is neither reserved nor done.

    Example:
        except TooLateError:
            print("a worker has it already")
    """

    reply = "TOO_LATE"
    meaning = "the job is no longer delayed, is reserved, was replaced, or is done and its key is held"


class UnauthorizedError(BeanstalkdError):
    """The server does not know this token, or asks for one and got none. It has closed the connection.

    Example:
        except UnauthorizedError:
            sys.exit("the token is wrong")
    """

    reply = "UNAUTHORIZED"
    meaning = "the token is missing or invalid"


class ForbiddenError(BeanstalkdError):
    """This user lacks the right that the command asks for. Nothing was changed, and the connection goes on.

    Example:
        except ForbiddenError as error:
            print("not allowed:", error.right, error.tube)

    Attributes:
        used: the tube that was in use.
    """

    reply = "FORBIDDEN"
    meaning = "this user lacks the right to run this command: see the config file of the server"
    used: str = ""

    @property
    def right(self) -> str:
        """The right that the command needs: "produce", "consume", "inspect" or "admin"; "any" for `use`."""
        return RIGHTS.get(self.asked.partition(" ")[0], ("", ""))[0]

    @property
    def tube(self) -> str:
        """The tube that it needs the right to; "*" for all, "" if that is not known."""
        command, _, arguments = self.asked.partition(" ")
        place = RIGHTS.get(command, ("", ""))[1]
        name = arguments.partition(" ")[0]
        if command.endswith("-group"):  # which belongs to a tube
            name = name.rpartition("/")[0] or name
        return {"used": self.used, "all": "*", "named": name}.get(place, "")

    def _told(self) -> str:
        if not self.right:
            return self.meaning
        right = "any right" if self.right == "any" else f"the right to {self.right}"
        where = f" tube {self.tube}" if self.tube else " the tubes it watches" if "reserve" in self.asked else ""
        return f"this user lacks {right}{where and f' in{where}'}: see the config file of the server"


class OtherShardError(BeanstalkdError):
    """The other tube is in another shard of the cluster, to which no job can move. Nothing was changed.

    Example:
        except OtherShardError:
            queue.put(job.body)  # after use("mail.later")
    """

    reply = "OTHER_SHARD"
    meaning = "the tubes are in different shards of the cluster, between which jobs cannot move"


class ReservationLostError(NotFoundError):
    """The job has come from another connection, so that it is reserved no more, and its id may be that of another job.
    Nothing was sent.

    Example:
        except ReservationLostError:
            print("another worker may have the job by now")
    """


class ConnectionLostError(Error, ConnectionError):
    """The connection is lost, or was given up because a reply made no sense.

    Example:
        except ConnectionLostError as error:
            if not error.maybe_done:
                queue.put("hello")

    Attributes:
        reason: why, without the name of the server.
        maybe_done: the command had been sent, at least in part: it may or may not have been done.
    """

    def __init__(self, message: str = "connection lost", *, reason: str = "", maybe_done: bool = False) -> None:
        super().__init__(f"{message}; the command may have been executed" if maybe_done else message)
        self.reason: str = reason or message
        self.maybe_done = maybe_done


class NoAnswerError(ConnectionLostError, TimeoutError):
    """The reply was not complete in time.

    Example:
        except NoAnswerError:
            print("no reply within the timeout")
    """


class UnreachableError(ConnectionLostError):
    """No server can be reached, be it for the first time or after a loss. The command was not sent.

    It is also a ConnectionRefusedError, TimeoutError, FileNotFoundError or PermissionError, or socket.gaierror for a
    name without an address, if that is why.

    Example:
        except UnreachableError as error:
            print("no server:", error.reason)
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self.args, {**vars(self), "errno": self.errno}  # which an OSError has in its args


class _RefusedError(UnreachableError, ConnectionRefusedError):
    pass


class _UnansweredError(UnreachableError, NoAnswerError):
    pass


class _AbsentError(UnreachableError, FileNotFoundError):
    pass


class _ProtectedError(UnreachableError, PermissionError):
    pass


class _UnresolvedError(UnreachableError, socket.gaierror):
    pass


_UNREACHABLE: tuple[tuple[type[OSError], type[UnreachableError]], ...] = (
    (ConnectionRefusedError, _RefusedError),
    (TimeoutError, _UnansweredError),
    (socket.timeout, _UnansweredError),
    (FileNotFoundError, _AbsentError),
    (PermissionError, _ProtectedError),
    (socket.gaierror, _UnresolvedError),
)


def unreachable(where: str, error: OSError) -> UnreachableError:
    """The error of a server that cannot be reached, for this reason."""
    kinds = (made for kind, made in _UNREACHABLE if isinstance(error, kind))
    if isinstance(error, ConnectionLostError):
        reason = error.reason
    else:
        reason = str(error.strerror or error) or type(error).__name__
    made = next(kinds, UnreachableError)(f"{where}: {reason}", reason=reason)
    made.errno = error.errno
    return made


def no_answer(where: str, seconds: float) -> NoAnswerError:
    """The error of a server that has not replied to a command within this time."""
    reason = f"no answer within {seconds:g} s"
    return NoAnswerError(f"{where}: {reason}", reason=reason, maybe_done=True)


RIGHTS: dict[str, tuple[str, str]] = {
    **dict.fromkeys(["put", "put-keyed", "replace-keyed", "put-with", "put-batch"], ("produce", "used")),
    **dict.fromkeys(["cancel-keyed", "reschedule-keyed", "reprioritize-keyed"], ("produce", "used")),
    **dict.fromkeys(["cancel", "reschedule", "reprioritize"], ("produce", "job")),
    **dict.fromkeys(["reserve", "reserve-with-timeout", "reserve-batch"], ("consume", "watched")),
    **dict.fromkeys(["reserve-job", "delete", "release", "bury", "touch", "give-back", "save"], ("consume", "job")),
    "watch": ("consume", "named"),
    **dict.fromkeys(["peek-ready", "peek-delayed", "peek-buried", "peek-keyed"], ("inspect", "used")),
    **dict.fromkeys(["peek", "stats-job"], ("inspect", "job")),
    **dict.fromkeys(["stats-tube", "list-jobs", "stats-group"], ("inspect", "named")),
    "stats": ("inspect", "all"),
    "kick": ("admin", "used"),
    "kick-job": ("admin", "job"),
    **dict.fromkeys(["pause-tube", "clear-tube", "redrive", "move-jobs", "cancel-group"], ("admin", "named")),
    **dict.fromkeys(["list-clients", "drain", "undrain"], ("admin", "all")),
    "use": ("any", "named"),
}
"""The right that a command needs, and to which tube: in use, named, of the job, those watched, or all."""


def of_command(error: Exception, line: str, server: str) -> Exception:
    """The error of a command, which names it and the server if it is a reply."""
    if isinstance(error, BeanstalkdError):
        error.asked = line
        error.server = server
    return error


def of_attempt(error: OSError, address: object) -> OSError:
    """The error of an attempt to connect: it names the address, and no command was sent."""
    if type(error).__module__ != "ssl":
        return unreachable(str(address), error)
    if error.errno is not None and error.filename is None:  # the two cannot agree on TLS
        error.filename = str(address)
    return error


REPLIES: dict[bytes, type[BeanstalkdError]] = {
    kind.reply.encode(): kind for kind in BeanstalkdError.__subclasses__() if kind not in (BuriedError, ExistsError)
}
"""The replies that are errors, but for EXISTS and BURIED, whose errors have an id."""
