r"""The text of a line that is sent or expected: bytes, with escapes and placeholders.

    \r \n \t \0 \s \\ \{ \x1f    a byte (\s is a space, where an editor would strip it)
    \c                           at the end: no line end follows
    {300 * text}                 the text 300 times
    {every byte}                 the 256 bytes from 0 to 255
    {job}                        a number: kept at its first use, the same from then on
    {job+2}                      the number that is kept as `job`, plus 2
    {n}  {0..2}  {float}         any number; one in this range; one with a fraction
    {word}                       anything without spaces, CR and LF; {text} may have spaces
    {size}                       how many bytes the lines after this one have, up to the one that ends them
    {"text"}                     text in the quotes that beanstalkd puts around it since 1.13
    {...}                        as a whole line: any number of lines

Only the first five may be sent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

ESCAPES: Final = {"r": b"\r", "n": b"\n", "t": b"\t", "0": b"\0", "s": b" ", "\\": b"\\", "{": b"{"}

NUMBER: Final = rb"\d{1,20}"
PATTERNS: Final = {
    "n": NUMBER,
    "float": rb"\d+\.\d+",
    "word": rb"[^ \r\n]+",
    "text": rb"[^\r\n]*",
    "size": rb"(?P<size>\d{1,20})",
}
ANY_LINES: Final = "..."

SHOWN: Final = 240
"""The bytes of a text that a report shows at most."""


class TextError(ValueError):
    """A text cannot be read, or it uses a number that was not kept."""


@dataclass(frozen=True)
class Bytes:
    """Plain bytes."""

    value: bytes


@dataclass(frozen=True)
class Repeat:
    count: int
    text: Text


@dataclass(frozen=True)
class Kept:
    """A kept number by its name, and how much to add."""

    name: str
    more: int


@dataclass(frozen=True)
class Pattern:
    """Something that may be expected, but not sent."""

    expression: bytes


@dataclass(frozen=True)
class Quoted:
    text: Text


Piece = Bytes | Repeat | Kept | Pattern | Quoted


@dataclass(frozen=True)
class Text:
    """The text of one line. `any_lines`: it stands for any number of lines; `names_size`: it contains {size}."""

    pieces: tuple[Piece, ...]

    @property
    def any_lines(self) -> bool:
        return self.pieces == (Pattern(b""),)

    @property
    def names_size(self) -> bool:
        return Pattern(PATTERNS["size"]) in self.pieces

    @property
    def newlines(self) -> int:
        """How many LF it contains."""
        count = 0
        for piece in self.pieces:
            match piece:
                case Bytes(value):
                    count += value.count(b"\n")
                case Repeat(times, text):
                    count += times * text.newlines
                case _:
                    pass
        return count

    def render(self, kept: Mapping[str, int]) -> bytes:
        """The bytes to send.

        Raises:
            TextError: a number has not been kept yet, or a piece may only be expected.
        """
        return b"".join(_render(piece, kept) for piece in self.pieces)

    def match(self, came: bytes, kept: Mapping[str, int], quotes: bool) -> dict[str, int] | None:
        """Compare what came with this text; return the numbers to keep, or None if it differs.

        Args:
            quotes: whether the server puts quotes around strings in statistics.
        """
        seen: set[str] = set()
        expression = b"".join(_expression(piece, kept, quotes, seen) for piece in self.pieces)
        found = re.fullmatch(expression, came, re.DOTALL)
        return None if found is None else {name: int(number) for name, number in found.groupdict().items()}


def _render(piece: Piece, kept: Mapping[str, int]) -> bytes:
    match piece:
        case Bytes(value):
            return value
        case Repeat(count, text):
            return count * text.render(kept)
        case Kept(name, more):
            if name not in kept:
                raise TextError(f"{{{name}}} is sent, but no reply has set it")
            return b"%d" % (kept[name] + more)
        case _:
            raise TextError("this can be expected, but not sent")


def _expression(piece: Piece, kept: Mapping[str, int], quotes: bool, seen: set[str]) -> bytes:
    match piece:
        case Bytes(value):
            return re.escape(value)
        case Repeat(count, text):
            return b"(?:%b){%d}" % (b"".join(_expression(part, kept, quotes, seen) for part in text.pieces), count)
        case Kept(name, more):
            if name in kept:
                return b"%d" % (kept[name] + more)
            if more:
                raise TextError(f"{{{name}+{more}}} is expected, but no reply has set {name}")
            if name in seen:
                return b"(?P=%b)" % name.encode()
            seen.add(name)
            return b"(?P<%b>%b)" % (name.encode(), NUMBER)
        case Quoted(text):
            quote = b'"' if quotes else b""
            return quote + b"".join(_expression(part, kept, quotes, seen) for part in text.pieces) + quote
        case Pattern(expression):
            return expression


def read(source: str) -> tuple[Text, bool]:
    r"""Read a text as it is written; return it, and whether a line end follows (no `\c` at its end).

    Raises:
        TextError: it cannot be read.
    """
    ends = not source.endswith("\\c")
    return Text(tuple(_pieces(source if ends else source[:-2]))), ends


def _pieces(source: str) -> Iterator[Piece]:
    """The pieces of a text; adjacent bytes are joined."""
    plain = bytearray()
    position = 0
    while position < len(source):
        if source[position] == "{":
            end = _closing(source, position)
            if plain:
                yield Bytes(bytes(plain))
                plain.clear()
            yield _placeholder(source[position + 1 : end])
            position = end + 1
        elif source[position] == "\\":
            value, position = _escape(source, position + 1)
            plain += value
        else:
            plain += source[position].encode()
            position += 1
    if plain:
        yield Bytes(bytes(plain))


def _escape(source: str, position: int) -> tuple[bytes, int]:
    letter = source[position : position + 1]
    if letter in ESCAPES:
        return ESCAPES[letter], position + 1
    digits = source[position + 1 : position + 3]
    if letter == "x" and re.fullmatch("[0-9a-fA-F]{2}", digits):
        return bytes.fromhex(digits), position + 3
    raise TextError(f"no such escape: \\{letter}")


def _closing(source: str, start: int) -> int:
    depth = 0
    position = start
    while position < len(source):
        if source[position] == "\\":
            position += 1
        elif source[position] == "{":
            depth += 1
        elif source[position] == "}":
            depth -= 1
            if not depth:
                return position
        position += 1
    raise TextError("unclosed { (write \\{ for a literal {)")


def _placeholder(inner: str) -> Piece:
    if inner == ANY_LINES:
        return Pattern(b"")
    if inner == "every byte":
        return Bytes(bytes(range(256)))
    if inner in PATTERNS:
        return Pattern(PATTERNS[inner])
    if found := re.fullmatch(r"(\d+) \* (.*)", inner, re.DOTALL):
        return Repeat(int(found[1]), Text(tuple(_pieces(found[2]))))
    if found := re.fullmatch(r'"(.*)"', inner):
        return Quoted(Text(tuple(_pieces(found[1]))))
    if found := re.fullmatch(r"(\d+)\.\.(\d+)", inner):
        numbers = range(int(found[1]), int(found[2]) + 1)
        return Pattern(b"(?:%b)" % b"|".join(b"%d" % number for number in numbers))
    if found := re.fullmatch(r"([a-z][a-z0-9_]*)(?:\+(\d+))?", inner):
        return Kept(found[1], int(found[2] or 0))
    raise TextError(f"no such placeholder: {{{inner}}}")


def write(data: bytes) -> str:
    r"""Write bytes as a text: the reverse of `read`, without a line end."""
    names = {value[0]: "\\" + letter for letter, value in ESCAPES.items() if letter != "s"}
    written = "".join(names.get(byte) or (chr(byte) if 32 <= byte < 127 else f"\\x{byte:02x}") for byte in data)
    return written[:-1] + "\\s" if written.endswith(" ") else written


def shown(data: bytes, most: int = SHOWN) -> str:
    """Bytes as a text for a report: the first of them, if there are more than `most`."""
    return write(data) if len(data) <= most else f"{write(data[:most])} … ({len(data):,} bytes)"
