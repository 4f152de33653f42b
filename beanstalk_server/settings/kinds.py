"""The kinds of values that settings have: each reads a value from text, checks it, and describes what is valid.

A value comes as text, from the command line or the environment, or with a type, from Python or from a config file. Must
never know which settings there are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, TypeGuard

from beanstalk_server.queue.units import SECOND
from beanstalk_server.tube_names import NAME_WANTED, is_name, is_pattern

if TYPE_CHECKING:
    from datetime import timedelta

UNIX: Final = "unix:"
"""What the address of a UNIX socket begins with; its path follows."""

LONGEST_TEXT: Final = 4096
"""Characters: no path of Linux is longer."""

LONGEST_SHOWN: Final = 80
"""Characters of a value that a message shows."""

LARGEST_UID: Final = (1 << 32) - 2
"""The system keeps 2^32 - 1 for "no user"."""

LONGEST_DURATION: Final = (1 << 32) - 1
"""Seconds: the longest delay of the protocol, 136 years."""

SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}
"""The units of durations."""


class Kind:
    """The type of a setting.

    Args:
        wanted: describes a valid value; an error message says it after "must be".
        metavar: stands for a value in the help, such as "PORT"; "" if the option takes no value on the command line:
            then its value is the number of times that it is given.
        typed: describes a valid value that does not come as text; the same as `wanted` if it is not given.
    """

    shows = True
    """Whether a message may show a value: not what may be secret."""

    bounds = ""
    """Between which numbers a value is, for the help."""

    def __init__(self, wanted: str, metavar: str = "", typed: str = "") -> None:
        self.wanted = wanted
        self.metavar = metavar
        self.typed = typed or wanted

    def read(self, text: str) -> object:
        """Return the value of a text, or raise ValueError if it has none."""
        return text

    def take(self, value: object) -> object:
        """Return what a typed value stands for, or raise ValueError if it is of a wrong type."""
        return value

    def located(self, value: object, directory: str) -> object:  # noqa: ARG002  # most values have no path
        """Return a typed value, with its path, if it is one, relative to a directory."""
        return value

    def fits(self, value: object) -> bool:
        """Whether a value, from text or from Python, is valid."""
        raise NotImplementedError

    def mistakes(self, value: object) -> list[str]:
        """What is wrong with a typed value, before `take`: for each mistake, the value and what would be right."""
        try:
            good = self.fits(self.take(value))
        except ValueError:
            good = False
        return [] if good else [f"bad value {self.shown(value)}: must be {self.typed}"]

    def logged(self, value: object) -> object:
        """A value as the log of a start shows it."""
        return value

    def shown(self, value: object) -> str:
        """A value as messages show it, on one line."""
        if not self.shows:
            size = f", {len(value)} characters" if isinstance(value, str) else ""
            return f"(not shown{size})"
        try:
            text = str(value).lower() if isinstance(value, bool) else repr(value)
        except (ValueError, RecursionError):  # a number of many digits, or a list in a list in a list
            text = "too large to show"
        return text if len(text) <= LONGEST_SHOWN else text[:LONGEST_SHOWN] + "…"


class Text(Kind):
    """Any text that the system takes, but for those that mean nothing."""

    def __init__(self, metavar: str, wanted: str, *, but_not: Sequence[str] = ()) -> None:
        super().__init__(wanted, metavar)
        self._but_not = but_not

    def fits(self, value: object) -> bool:
        if not isinstance(value, str) or len(value) > LONGEST_TEXT:
            return False
        return value not in self._but_not and "\0" not in value


class Path(Text):
    """The path of a file or a directory; "" if there is none."""

    def take(self, value: object) -> object:
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    def located(self, value: object, directory: str) -> object:
        return os.path.join(directory, value) if isinstance(value, str) and value else value


class File(Path):
    """The path of a file that closes a listener to strangers."""

    def __init__(self) -> None:
        super().__init__("FILE", "the path of a file")


class Listen(Text):
    """Where to listen, without a port."""

    def __init__(self) -> None:
        super().__init__("ADDR", "a host name, an address or unix:PATH", but_not=("", UNIX))

    def located(self, value: object, directory: str) -> object:
        if isinstance(value, str) and value.startswith(UNIX) and value != UNIX:
            return UNIX + os.path.join(directory, value.removeprefix(UNIX))
        return value


def is_port(text: str) -> bool:
    """Whether this is the number of a port, with any zeros before it, or may be the name of a service."""
    return not text.isdecimal() or (text.isascii() and int(text.lstrip("0")[:6] or "0") <= 65535)


class Address(Listen):
    """Where to listen, with a port."""

    def __init__(self) -> None:
        super().__init__()
        self.wanted = self.typed = "host:port, [v6]:port or unix:PATH"

    def fits(self, value: object) -> bool:
        if not (super().fits(value) and isinstance(value, str)):
            return False
        if value.startswith(UNIX):
            return True
        host, colon, port = value.rpartition(":")
        bracketed = host.startswith("[") and host.endswith("]")
        return bool(colon and host.strip("[]") and port) and (bracketed or ":" not in host) and is_port(port)


class HttpAddress(Address):
    """The same; "" for nowhere."""

    def fits(self, value: object) -> bool:
        return value == "" or super().fits(value)


class HostPort(Kind):
    """A TCP address; "" if there is none."""

    def __init__(self) -> None:
        super().__init__("host:port or [v6]:port", "HOST:PORT")
        self._address = Address()

    def fits(self, value: object) -> bool:
        if value == "":
            return True
        if not (self._address.fits(value) and isinstance(value, str)) or value.startswith(UNIX):
            return False
        port = value.rpartition(":")[2]
        return port.isascii() and port.isdecimal() and int(port) > 0


class EngineURL(Kind):
    """Where the journal of a cluster is; "" if there is none. It may have a password, and no message shows it."""

    shows = False

    def __init__(self) -> None:
        super().__init__("a URL such as redis://host:6379", "URL")

    def logged(self, value: object) -> object:
        return re.sub("//.*@", "//…@", str(value), flags=re.DOTALL).partition("?")[0]

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and len(value) <= LONGEST_TEXT and (value == "" or value.isprintable())


class ClusterName(Kind):
    """The name of a cluster, which is a part of its keys in the engine."""

    def __init__(self) -> None:
        super().__init__("1 to 100 letters, digits, ., - or _", "NAME")

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and re.fullmatch("[A-Za-z0-9._-]{1,100}", value) is not None


class Choice(Kind):
    """One of a few words."""

    def __init__(self, metavar: str, choices: Sequence[str]) -> None:
        super().__init__(" or ".join(choices), metavar, " or ".join(f'"{each}"' for each in choices))
        self._choices = choices

    def fits(self, value: object) -> bool:
        return value in self._choices


class Port(Kind):
    """A TCP port."""

    def __init__(self) -> None:
        super().__init__("a number from 0 to 65535, or the name of a service", "PORT")

    def read(self, text: str) -> object:
        return int(text) if text.isascii() and text.isdecimal() else text

    def fits(self, value: object) -> bool:
        if isinstance(value, str):
            return value != "" and "\0" not in value and is_port(value)
        return is_whole(value) and 0 <= value <= 65535


class Size(Kind):
    """A number of bytes."""

    def __init__(self, least: int, most: int) -> None:
        super().__init__(f"a whole number of bytes from {least} to {most}, or with a unit: 64MiB, 2GB", "BYTES")
        self._least = least
        self._most = most

    def read(self, text: str) -> object:
        return int(text) if text[-1:].isdecimal() else self.take(text)

    def take(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        found = re.fullmatch("([0-9]{1,20}) ?([kMGT])(i?)B", value.replace("Ki", "ki"))
        if found is None:
            raise ValueError
        return int(found[1]) * (1024 if found[3] else 1000) ** (1 + "kMGT".index(found[2]))

    def fits(self, value: object) -> bool:
        return is_whole(value) and self._least <= value <= self._most


class Whole(Kind):
    """A whole number within bounds."""

    def __init__(self, metavar: str, least: int, most: int, what: str = "a whole number") -> None:
        self.bounds = f"{least} to {most}"
        super().__init__(f"{what} from {self.bounds}", metavar)
        self._least = least
        self._most = most

    def read(self, text: str) -> object:
        return int(text)

    def fits(self, value: object) -> bool:
        return is_whole(value) and self._least <= value <= self._most


class JobSize(Size):
    """A number of bytes that is lowered to what is possible, as beanstalkd does."""

    def read(self, text: str) -> object:
        return self.take(super().read(text))

    def take(self, value: object) -> object:
        size = super().take(value)
        return min(size, self._most) if is_whole(size) else size


class Milliseconds(Kind):
    """A number of milliseconds, or a word in its place."""

    def __init__(self, least: float, most: int, word: str | None = None) -> None:
        numbers = f"a number of milliseconds from {least} to {most}"
        super().__init__(f"{numbers}, or {word!r}" if word else numbers, "MS")
        self._least = least
        self._most = most
        self._word = word

    def read(self, text: str) -> object:
        return text if text == self._word else float(text)

    def take(self, value: object) -> object:
        return value.total_seconds() * 1000 if is_timedelta(value) else value

    def fits(self, value: object) -> bool:
        if isinstance(value, str):
            return value == self._word
        return (isinstance(value, float) or is_whole(value)) and self._least <= value <= self._most


class Count(Kind):
    """How often something is said."""

    def __init__(self) -> None:
        super().__init__("a whole number, 0 or greater")

    def read(self, text: str) -> object:
        return int(text)

    def fits(self, value: object) -> bool:
        return is_whole(value) and value >= 0


class Switch(Kind):
    """On or off."""

    def __init__(self) -> None:
        super().__init__("0 or 1", typed="true or false")

    def read(self, text: str) -> object:
        number = int(text)
        return number > 0 if number >= 0 else number  # giving it twice changes nothing

    def fits(self, value: object) -> bool:
        return isinstance(value, int) and value in (0, 1)

    def take(self, value: object) -> object:
        if not isinstance(value, bool):
            raise ValueError
        return value


class Name(Kind):
    """The name of a user of this server: as in a certificate, and in the log."""

    def __init__(self, wanted: str = "a name: 1 to 200 printable characters") -> None:
        super().__init__(wanted)

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and 1 <= len(value) <= 200 and value.isprintable() and value == value.strip()


class NameOrNone(Name):
    """The same, or "" for nobody."""

    def fits(self, value: object) -> bool:
        return value == "" or super().fits(value)


class Pattern(Kind):
    """A pattern of tube names, as `fnmatch` reads them."""

    def __init__(self) -> None:
        super().__init__("a pattern: a tube's name, where * is any characters, ? is one, and [a-z] one of these")

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and len(value) <= 1000 and is_pattern(value)


class TubeName(Kind):
    """The name of a tube, as the protocol has it; "" if there is none."""

    def __init__(self) -> None:
        super().__init__(f"a tube's name: {NAME_WANTED}")

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and (value == "" or is_name(value))


class Duration(Kind):
    """A number of seconds, or a text with a unit that stands for one; 0 if there is no limit, or nothing of the kind.

    It may have a fraction; of that, a nanosecond is the smallest part.
    """

    def __init__(self) -> None:
        super().__init__(
            f'a number of seconds from 0 to {LONGEST_DURATION}, or a whole number with a unit: "90s", "15m", "24h", '
            '"30d"'
        )

    def take(self, value: object) -> object:
        if is_timedelta(value):
            return value.total_seconds()
        if not isinstance(value, str):
            return value
        found = re.fullmatch("([0-9]{1,10})([smhd])", value)
        if found is None:
            raise ValueError
        return int(found[1]) * SECONDS[found[2]]

    def fits(self, value: object) -> bool:
        return (isinstance(value, float) or is_whole(value)) and (value == 0 or 1e-9 <= value <= LONGEST_DURATION)


class Rate(Kind):
    """A number in a time; "" if there is no limit."""

    def __init__(self) -> None:
        super().__init__('a number for each unit of time: "100/s", "5/m", "1000/h", or "1/10s"')

    def fits(self, value: object) -> bool:
        try:
            return isinstance(value, str) and (value == "" or 1 <= interval_of(value) <= LONGEST_DURATION * SECOND)
        except ValueError:
            return False


class TokenHash(Kind):
    """The SHA-256 of a token. A message does not show it: somebody may give the token by mistake."""

    shows = False
    _of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

    def __init__(self) -> None:
        super().__init__("the 64 hexadecimal digits that `beanstalk-server token` prints")

    def take(self, value: object) -> object:
        return value.lower() if isinstance(value, str) else value

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None and value != self._of_nothing


class Uid(Kind):
    """A user of the system, by number or by name."""

    def __init__(self) -> None:
        super().__init__(f"a number from 0 to {LARGEST_UID}, or the name of a user of this system")

    def take(self, value: object) -> object:
        if not isinstance(value, str):
            return value
        import pwd  # few settings have a name here

        try:
            return pwd.getpwnam(value).pw_uid
        except (KeyError, UnicodeError):
            raise ValueError from None

    def fits(self, value: object) -> bool:
        return is_whole(value) and 0 <= value <= LARGEST_UID


class Network(Kind):
    """A range of addresses."""

    def __init__(self) -> None:
        super().__init__("a network such as 10.0.0.0/8 or fd00::/8, without host bits")

    def fits(self, value: object) -> bool:
        import ipaddress  # most servers have no network here

        if not isinstance(value, str):
            return False
        try:
            ipaddress.ip_network(value)
        except ValueError:
            return False
        return True


class Several(Kind):
    """A list of values, or a single one.

    Args:
        least: how many there must be.
    """

    def __init__(self, each: Kind, least: int = 0) -> None:
        super().__init__(f"a list, each of it {each.wanted}")
        self.each = each
        self._least = least
        self.shows = each.shows

    def take(self, value: object) -> object:
        values = value if isinstance(value, (list, tuple)) else [value]
        return tuple([self.each.take(each) for each in values])

    def fits(self, value: object) -> bool:
        return isinstance(value, tuple) and len(value) >= self._least and all(self.each.fits(each) for each in value)

    def mistakes(self, value: object) -> list[str]:
        values = value if isinstance(value, (list, tuple)) else [value]
        if len(values) < self._least:
            return [f"bad value []: must be {self.typed}, and not be empty"]
        return [mistake for each in values for mistake in self.each.mistakes(each)]


def interval_of(rate: str) -> int:
    """The time from one to the next at this rate, in nanoseconds: no less, so that it is kept.

    Raises:
        ValueError: it is not a rate.
    """
    found = re.fullmatch("([1-9][0-9]{0,9})/([1-9][0-9]{0,9})?([smhd])", rate)
    if found is None:
        raise ValueError(rate)
    time = int(found[2] or 1) * SECONDS[found[3]] * SECOND
    return -(-time // int(found[1]))


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number: True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_timedelta(value: object) -> TypeGuard[timedelta]:
    """Whether a value is a `datetime.timedelta`, which is only imported by those who have one."""
    return hasattr(value, "total_seconds")
