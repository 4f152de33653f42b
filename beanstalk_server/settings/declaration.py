"""Declares an option, or a key of a section, as a field of a dataclass; and the mistakes in its value."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import field, fields
from typing import Any, Final, NamedTuple

from beanstalk_server.settings import kinds

BAD_OPTION: Final = 5
"""The exit status for a bad option, value or setting; the same as beanstalkd's."""


class Mistake(NamedTuple):
    """One thing that is wrong with a configuration."""

    place: str
    """The option, variable or key that is wrong: `-p/--port`, `listener 2: tls-cert`; "" if `said` names it."""
    said: str
    """Its value, and what would be right; on one line."""

    def __str__(self) -> str:
        return f"{self.place}: {self.said}" if self.place else self.said


class ConfigError(ValueError):
    """Options or values are bad: each line of the message has the option, the value and what would be right."""

    def __init__(self, *mistakes: Mistake | str) -> None:
        self.mistakes = tuple([Mistake("", each) if isinstance(each, str) else each for each in mistakes])
        super().__init__("\n".join([str(each) for each in self.mistakes]))


def within(section: str, mistakes: Iterable[Mistake]) -> list[Mistake]:
    """Mistakes whose places are in this section or file, if its name is not empty."""
    return [Mistake(": ".join(filter(None, (section, place))), said) for place, said in mistakes]


def without_bad(mistakes: Iterable[Mistake], bad: Iterable[str]) -> list[Mistake]:
    """The mistakes that do not name one of these keys with bad values: a value that needs one may be good with it."""
    return [each for each in mistakes if not any(key in each.said for key in bad)]


class Option(NamedTuple):
    """One option, or one key of a section, as its field defines it."""

    name: str
    default: Any
    """`dataclasses.MISSING` if it must be given, which only keys are."""
    kind: kinds.Kind
    short: str
    """Its short form, or ""."""
    meaning: str
    """What it does, in the words of the help and of the documents."""
    also: tuple[str, str] | None
    """Another short form, and the value that it sets."""
    renamed: str = ""
    """Its name in a config file, if that differs."""

    @property
    def key(self) -> str:
        """Its name in a config file."""
        return self.renamed or self.name.replace("_", "-")

    @property
    def place(self) -> str:
        """What messages call it, unless they name its source: -p/--port."""
        return "/".join(self.flags)

    @property
    def flags(self) -> list[str]:
        """Its flags on the command line: the short form, if it has one, and the long form."""
        long = "--" + self.name.replace("_", "-")
        return [self.short, long] if self.short else [long]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "BEANSTALK_SERVER_" + self.name.upper()

    def read(self, text: str, source: str) -> object:
        """Return the value of a text.

        Args:
            source: the flag or the variable that the text comes from, for messages.

        Raises:
            ConfigError: the text has no value, or a bad one.
        """
        try:
            if text != "":  # as of a shell variable that is not set
                return self.kind.take(self.kind.read(text))
        except ValueError:
            pass
        raise ConfigError(Mistake(source, f"bad value {self.kind.shown(text)}: must be {self.kind.wanted}"))


def setting(
    default: Any,
    kind: kinds.Kind,
    meaning: str,
    *,
    short: str = "",
    also: tuple[str, str] | None = None,
    renamed: str = "",
) -> Any:
    """The field of an option, or of a key of a section. The arguments are those of `Option`."""
    metadata = {"kind": kind, "short": short, "meaning": meaning, "also": also, "renamed": renamed}
    return field(default=default, metadata=metadata, repr=kind.shows)


def take_values(section: object, keys: Iterable[Option], place: Callable[[Option], str]) -> None:
    """Replace the values of a dataclass by those that they stand for, such as a single value by a list of it.

    Args:
        place: what messages call an option.

    Raises:
        ConfigError: bad values.
    """
    mistakes = []
    for each in keys:
        value = getattr(section, each.name)
        wrong = each.kind.mistakes(value)
        mistakes += [Mistake(place(each), said) for said in wrong]
        if not wrong:
            object.__setattr__(section, each.name, each.kind.take(value))
    if mistakes:
        raise ConfigError(*mistakes)


def options_of(section: type) -> tuple[Option, ...]:
    """The options, or keys, that a dataclass defines."""
    return tuple(
        [Option(name=each.name, default=each.default, **each.metadata) for each in fields(section) if each.metadata]
    )


def meant_by(name: str, known: Iterable[str]) -> str:
    """The known name that is probably meant by an unknown one, or ""."""
    import difflib  # only for mistakes

    known = list(known)
    near = [each for each in known if name and each.startswith(name)]
    near = near or difflib.get_close_matches(name, known, 1)
    return near[0] if near else ""
