"""Plays a script with two servers, and compares their replies and everything that they count.

After each piece that is sent, both servers are left to settle (as in `conformance/runner.py`), so that both see the
same order. The comparison leaves out what two servers may report differently, and avoids what they may do differently
(each with its row in docs/differences.md):

 - only one client at a time waits for a job (whose turn it is among waiting clients); while it waits, the commands of
   the others are sent one by one (many commands sent at once)
 - no client looks at a job by its id while a body is incomplete, or after a reserve during which one could be
   incomplete (a job whose body is still coming)
 - a client that waits and has sent more commands does not disconnect (a client that disconnects with commands sent)
"""

from __future__ import annotations

import re
import socket
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from beanstalk_server.wire.commands import EXTENSIONS
from conformance import text
from conformance.compare.servers import Process, started
from conformance.compare.strategies import JOB, LIMIT, Leave, Say, Script, said, with_ids
from conformance.runner import TIMEOUT, MismatchError, Observer, Peer
from harness.servers import OURS

LONGEST: Final = 0.8
"""Seconds that a script may last: after that a ttr of 1 could run out, and the comparison is void."""

NAMES: Final = ("one", "two", "three", "four", "five", "six", "seven", "eight")

MASKED: Final = ("pid", "version", "rusage-utime", "rusage-stime", "uptime", "hostname", "os", "platform")
"""The keys of stats whose values may differ between two servers."""

EXTENSION_KEYS: Final = re.compile(
    rf"(cmd-({'|'.join(command.name for command in EXTENSIONS)})"
    r"|(current|max)-memory|current-groups|refused-.*|server|(expired|dead|retried|redriven)-jobs|held-keys)$".encode()
)
"""The keys that only this server has."""

RESERVE: Final = re.compile(rb"reserve(?!-j)")
"""What makes a client wait, if only for a moment."""

LONG_RESERVE: Final = re.compile(rb"reserve(?!-j|-with-timeout 0\r)")
"""What may make a client wait for longer."""

WHOLE_RESERVE: Final = re.compile(rb"reserve(-with-timeout \d+)?\r\n")
"""A line that is nothing but a reserve."""

PUT: Final = re.compile(rb"put +\d+ +\d+ +\d+ +(\d{1,9})\r\n")
"""The line of a put, and the size of its body."""

LOOK: Final = re.compile(rb"(peek|stats-job) ")
"""A command that could show a job whose body is still coming."""

OLD_TIMEOUT: Final = re.compile(rb"reserve-with-timeout (?!\d{1,9}\D)")
"""A timeout that 1.12 reads as another number than 1.13."""

HUNG_UP: Final = b"(hung up)"

Replies = list[bytes]


class DifferenceError(Exception):
    """The servers gave different answers."""


class VoidError(Exception):
    """The script took too long for its result to count."""


@dataclass
class Turn:
    """One action of one client, and what each client got from the first server."""

    client: int
    sent: bytes
    leaves: str = ""
    replies: dict[int, Replies] = field(default_factory=dict)


class Side:
    """One of the two servers, and the clients that are connected to it."""

    def __init__(self, server: Process) -> None:
        self.server = server
        self.observer = Observer(server.address)
        self.peers: dict[int, Peer] = {}

    def say(self, client: int, data: bytes) -> dict[int, Replies]:
        if client not in self.peers:
            self.peers[client] = Peer(self.server.address)
        try:
            self.peers[client].send(data)
        except (BrokenPipeError, ConnectionResetError):
            self.peers[client].hung_up = True
        return self._settled(len(data))

    def leave(self, client: int, shuts_down: bool) -> dict[int, Replies]:
        if not shuts_down:
            peer = self.peers.pop(client)
            with self.server.closing():
                peer.close()
            return self._settled(0)
        self.peers[client].socket.shutdown(socket.SHUT_WR)
        return self._settled(0)

    def _settled(self, size: int) -> dict[int, Replies]:
        """What has come to each client, once nothing more comes.

        beanstalkd reads a line in pieces of 224 bytes, each in an event of its own, and answers to none of them.
        """
        self.observer.settle(*self.peers.values(), quiet=3 + size // 100)
        replies = {}
        for client, peer in list(self.peers.items()):
            if found := self._replies(peer):
                replies[client] = found
            if peer.hung_up:
                self.peers.pop(client).close()
        return replies

    def _replies(self, peer: Peer) -> Replies:
        replies = []
        data = bytes(peer.arrived)
        peer.arrived.clear()
        while data:
            line, _, rest = data.partition(b"\r\n")
            words = line.split(b" ")
            size = int(words[-1]) + 2 if words[0] in (b"RESERVED", b"FOUND", b"OK") else 0
            body, data = rest[:size], rest[size:]
            replies.append(comparable(body) if words[0] == b"OK" else line + b"\r\n" + body)
        if peer.hung_up:
            replies.append(HUNG_UP)
        return replies

    def ask(self, sent: bytes, count: int) -> list[bytes]:
        """The observer's own commands, each with a reply of one line."""
        self.observer.send(sent)
        return [self.observer.line(time.monotonic() + TIMEOUT) for _ in range(count)]

    def stats(self) -> bytes:
        """Everything that the server counts, as far as it can be compared."""
        self.observer.send(b"stats\r\n")
        size = int(self.observer.line(time.monotonic() + TIMEOUT).split()[1]) + 2
        while len(self.observer.arrived) < size:
            self.observer.receive()
        document = bytes(self.observer.arrived)
        self.observer.arrived.clear()
        return comparable(document)

    def forget(self) -> None:
        """Disconnect all clients."""
        with self.server.closing(len(self.peers)):
            for peer in self.peers.values():
                peer.close()
        self.peers.clear()
        self.observer.settle()

    def close(self) -> None:
        for peer in (*self.peers.values(), self.observer):
            peer.close()


def _may_be_within_a_body(sent: bytes) -> bool:
    """Whether the body of the last put that a client has sent may still be coming."""
    puts = list(PUT.finditer(sent))
    return bool(puts) and len(sent) - puts[-1].end() < int(puts[-1][1]) + 2


def comparable(document: bytes) -> bytes:
    """A YAML document without the values that may differ between two servers."""
    lines = []
    for line in document.split(b"\n"):
        key, colon, value = line.partition(b": ")
        if not EXTENSION_KEYS.match(key):
            masked = key.decode(errors="replace") in MASKED or re.fullmatch(rb"[0-9a-f]{16}", value)
            lines.append(key + colon + (b"*" if masked else value.strip(b'"')))
    return b"\n".join(lines)


class Pair:
    """Two servers that get the same commands; the first one's answers are the right ones.

    Attributes:
        ours: this server, as a program of `harness.servers`.
        turns: the turns of the last script.
        difference: the last difference that was found.
        scripts, commands, voids: how many of each there were.
        replies: how many replies there were, by their first word.
    """

    def __init__(self, reference: str, ours: str = OURS) -> None:
        self.reference = reference
        self.ours = ours
        self.turns: list[Turn] = []
        self.difference = ""
        self.scripts = self.commands = self.voids = 0
        self.replies: Counter[bytes] = Counter()
        self._stack = ExitStack()
        self.sides: list[Side] = []

    def __enter__(self) -> Pair:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _start(self) -> None:
        self.sides = [
            Side(self._stack.enter_context(started(program, ("-z", str(LIMIT)))))
            for program in (self.reference, self.ours)
        ]
        self.base = self._put_and_delete()

    def _stop(self) -> None:
        for side in self.sides:
            side.close()
        self._stack.close()

    def compare(self, script: Script) -> None:
        """Play a script with both servers.

        Raises:
            DifferenceError: they gave different answers to `turns`. Both have been started afresh.
        """
        self.turns = []
        self.waiting: int | None = None
        self._kept_back: dict[int, bytes] = {}
        self._sent: dict[int, bytes] = {}
        self._waits_with_nothing_behind = False
        self._deadline = time.monotonic() + LONGEST
        self._first = self.base
        self.scripts += 1
        try:
            for action in script:
                if isinstance(action, Say):
                    self._say(action)
                else:
                    self._leave(action)
            self._clean()
        except VoidError:
            self.voids += 1
            self._renew()
        except (DifferenceError, MismatchError) as error:
            self.difference = str(error)
            self._renew()
            raise DifferenceError(self.difference) from None

    def _renew(self) -> None:
        self._stop()
        self._start()

    def _say(self, action: Say) -> None:
        client = action.client
        data = self._kept_back.pop(client, b"") + said(action.commands)
        if action.kept_back and action.kept_back < len(data):
            self._kept_back[client] = data[-action.kept_back :]
            data = data[: -action.kept_back]
        if not self._may_say(client, self._half_a_line(client) + data):
            return
        alone = self.waiting in (None, client)
        for piece in [data] if alone else data.splitlines(keepends=True):
            self._turn(Turn(client, piece))

    def _may_say(self, client: int, data: bytes) -> bool:
        if self.waiting not in (None, client) and RESERVE.search(data):
            return False
        if self.sides[0].server.answers_to("before 1.13") and OLD_TIMEOUT.search(data + b"\r"):
            return False
        looks_later = client == self.waiting or LONG_RESERVE.search(data)
        return not (LOOK.search(data) and (looks_later or any(map(_may_be_within_a_body, self._sent.values()))))

    def _leave(self, action: Leave) -> None:
        if action.client not in self.sides[0].peers:
            return
        if action.client == self.waiting and not action.shuts_down and not self._waits_with_nothing_behind:
            return
        self._turn(Turn(action.client, b"", "shuts down" if action.shuts_down else "disconnects"))
        self._kept_back.pop(action.client, None)

    def _turn(self, turn: Turn) -> None:
        """Do one action of one client with both servers."""
        self.turns.append(turn)
        data = with_ids(turn.sent, self.base)
        if turn.leaves:
            answers = [side.leave(turn.client, turn.leaves == "shuts down") for side in self.sides]
        else:
            answers = [side.say(turn.client, data) for side in self.sides]
        turn.replies = answers[0]
        stats = [side.stats() for side in self.sides]
        if time.monotonic() > self._deadline:
            raise VoidError
        if answers[0] != answers[1]:
            raise DifferenceError(f"beanstalkd answers {answers[0]}, this server {answers[1]}")
        if stats[0] != stats[1]:
            lines = (stat.decode().split("\n") for stat in stats)
            told = [f"{one} (this server {two})" for one, two in zip(*lines, strict=False) if one != two]
            raise DifferenceError(f"beanstalkd counts {', '.join(told)}")
        self._note_who_waits(turn, b"\ncurrent-waiting: 0\n" not in stats[0])
        self._sent[turn.client] = b"" if turn.leaves else self._sent.get(turn.client, b"") + data
        self.commands += data.count(b"\r\n")
        self.replies.update(reply.split()[0] for replies in answers[0].values() for reply in replies)

    def _note_who_waits(self, turn: Turn, somebody_waits: bool) -> None:
        if not somebody_waits:
            self.waiting = None
        elif self.waiting is None:
            self.waiting = turn.client
            line = self._half_a_line(turn.client) + turn.sent
            self._waits_with_nothing_behind = WHOLE_RESERVE.fullmatch(line) is not None
        elif self.waiting == turn.client:
            self._waits_with_nothing_behind = False

    def _half_a_line(self, client: int) -> bytes:
        """What a client has sent since its last LF."""
        return self._sent.get(client, b"").rpartition(b"\n")[2]

    def _clean(self) -> None:
        """Leave both servers as they were before, and compare that, too."""
        if self.waiting is not None:
            self._turn(Turn(self.waiting, b"", "shuts down"))
        for side in self.sides:
            side.forget()
        last = self._put_and_delete()
        count = last - self.base
        deletes = b"".join(b"delete %d\r\n" % number for number in range(self.base + 1, last))
        deletes += b"pause-tube default 0\r\n"
        answers = [side.ask(deletes, count) for side in self.sides]
        if answers[0] != answers[1]:
            raise DifferenceError("after the script, the jobs that were left differ")
        self.base = last

    def _put_and_delete(self) -> int:
        """Put a job and delete it; return its id, the newest."""
        answers = [side.ask(b"put 0 0 60 0\r\n\r\n", 1) for side in self.sides]
        if answers[0] != answers[1]:
            raise DifferenceError(
                f"the newest id is {answers[0][0]!r} for beanstalkd, {answers[1][0]!r} for this server"
            )
        last = int(answers[0][0].split()[1])
        for side in self.sides:
            side.ask(b"delete %d\r\n" % last, 1)
        return last

    def conversation(self, title: str) -> str:
        """The last script as a conversation, with the answers of the first server."""
        first = NAMES[self.turns[0].client] if self.turns else NAMES[0]
        lines = [f"== {title}", f"server: -z {LIMIT}"]
        lines += [f"{first}> put 0 0 60 0", f"{first}>", f"{first}< INSERTED {{base}}"]
        lines += [f"{first}> delete {{base}}", f"{first}< DELETED"]
        for turn in self.turns:
            name = NAMES[turn.client]
            lines += [f"{name} {turn.leaves}"] if turn.leaves else []
            lines += [f"{name}> {line}" for line in _lines(turn.sent)]
            for client, replies in sorted(turn.replies.items()):
                for reply in replies:
                    lines += _expected(NAMES[client], reply, self._first)
            if turn.client not in turn.replies and not turn.leaves:
                lines.append(f"{name} is silent")
        return "\n".join(lines) + "\n"


def _lines(data: bytes) -> list[str]:
    """What is sent, line by line, as a conversation writes it."""
    *whole, rest = data.split(b"\r\n")
    return [_written(line) for line in whole] + ([_written(rest) + "\\c"] if rest else [])


def _written(data: bytes) -> str:
    parts = JOB.split(data)
    written = [f"{{base+{int(part)}}}" if index % 2 else text.write(part) for index, part in enumerate(parts)]
    return "".join([*(part.replace("\\s", " ") for part in written[:-1]), written[-1]])


def _expected(name: str, reply: bytes, base: int) -> list[str]:
    """The lines that expect this reply."""
    if reply == HUNG_UP:
        return [f"{name} is closed"]
    if reply.startswith(b"---\n"):
        lines = [f"{name}< OK {{size}}"]
        if b"\npid: " in reply:
            return [*lines, f"{name}| {{...}}", f"{name}<"]
        lines += [f"{name}| {_expected_line(line, base)}" for line in reply.decode().split("\n")[:-2]]
        return [*lines, f"{name}<"]
    line, _, body = reply.partition(b"\r\n")
    words = line.split(b" ")
    if words[0] in (b"INSERTED", b"RESERVED", b"FOUND"):
        words[1] = b"{base+%d}" % (int(words[1]) - base)
    lines = [f"{name}< {b' '.join(words).decode()}"]
    return lines + ([f"{name}< {text.write(body[:-2])}"] if words[0] in (b"RESERVED", b"FOUND") else [])


def _expected_line(line: str, base: int) -> str:
    key, _, value = line.partition(": ")
    if key in ("tube", "name"):
        return f'{key}: {{"{value}"}}'
    return f"id: {{base+{int(value) - base}}}" if key == "id" else line
