"""Jobs that are replaced while they run, saved, given back, postponed and reprioritized, in tubes that are paused,
while the server is killed again and again.

Each client has a job and a tube of its own, and knows after each reply in which states they may be: one, but for the
command that a kill has cut off, and for moments near the end of a delay. A reply that none of them explains is a job
that is lost, early or run twice, or a pause that is forgotten.
"""

import dataclasses
import random
import threading
import time
from dataclasses import dataclass

import pytest

from harness.caller import Caller
from harness.servers import launch, unused_port
from harness.waiting import eventually

CLIENTS = 6
LATE = 5.0
"""Seconds that a delay or a pause may end late: the server may be down, and the machine busy."""

WITHIN = 60.0
"""Seconds until a server accepts again."""

TTR = 1000


@dataclass(frozen=True)
class State:
    """What a job may be, and its tube. Moments are pairs: not before, not after."""

    state: str = ""  # "" if there is no job
    body: bytes = b""
    priority: int = 0
    due: tuple = (0, 0)
    first: tuple = (0, 0)  # its first put
    again: tuple = ()  # of a reserved job: body, priority and delay of its next version, and when that was put
    paused: tuple = ()  # until when


def settled(state, span):
    """What time may have made of it by a moment of this span."""
    found = [state]
    if state.state == "delayed":
        found = [state] if span[0] < state.due[1] + LATE else []
        if span[1] >= state.due[0]:
            found.append(dataclasses.replace(state, state="ready"))
    if state.paused and span[1] >= state.paused[0]:
        over = [dataclasses.replace(each, paused=()) for each in found]
        found = [*over, *(found if span[0] < state.paused[1] + LATE else [])]
    return found


def after(span, seconds):
    return span[0] + seconds, span[1] + seconds


def put_again(state, span):
    """A job whose reservation has ended: its next version, if it has one."""
    if not state.again:
        return None
    body, priority, delay, _ = state.again
    changed = dataclasses.replace(state, body=body, priority=priority, again=())
    return dataclasses.replace(changed, state="delayed" if delay else "ready", due=after(span, delay))


def crashed(state):
    """What a restart makes of it."""
    if state.state != "reserved":
        return state
    if state.again:
        return put_again(state, state.again[3])
    return dataclasses.replace(state, state="ready")


class Commands:
    """What each command does to a state: the state after it, and the reply."""

    def put(self, state, span, body, priority, delay, again, within):
        first = state.first if state.state not in ("", "reserved") else span
        latest = after(first, within) if within else None
        wait = min(delay, within) if within and first is span else delay
        due = after(span, wait)
        if latest is not None:
            due = (min(due[0], latest[0]), min(due[1], latest[1]))
        if state.state == "reserved":
            if not again:
                return state, "TOO_LATE"
            return dataclasses.replace(state, again=(body, priority, wait, span), first=span), "AGAIN"
        changed = dataclasses.replace(state, body=body, priority=priority, due=due, first=first)
        changed = dataclasses.replace(changed, state="delayed" if wait else "ready")
        return changed, "REPLACED" if state.state else "INSERTED"

    def reserve(self, state, span):
        if state.state != "ready" or state.paused:
            return state, "TIMED_OUT"
        return dataclasses.replace(state, state="reserved"), f"RESERVED {state.body.decode()}"

    def delete(self, state, span):
        if not state.state:
            return state, "NOT_FOUND"
        return put_again(state, span) or dataclasses.replace(state, state="", again=()), "DELETED"

    def end(self, before, span, done, **changes):
        if before.state != "reserved":
            return before, "NOT_FOUND"
        return put_again(before, span) or dataclasses.replace(before, **changes), done

    def release(self, state, span, priority, delay):
        changes = {"priority": priority, "state": "delayed" if delay else "ready", "due": after(span, delay)}
        return self.end(state, span, "RELEASED", **changes)

    def give_back(self, state, span):
        return self.end(state, span, "GIVEN_BACK", state="ready")

    def bury(self, state, span):
        return self.end(state, span, "BURIED", state="buried", priority=1)

    def save(self, state, span, body):
        if state.state != "reserved":
            return state, "NOT_FOUND"
        return (state, "TOO_LATE") if state.again else (dataclasses.replace(state, body=body), "SAVED")

    def kick_job(self, state, span):
        if state.state not in ("buried", "delayed"):
            return state, "NOT_FOUND"
        return dataclasses.replace(state, state="ready"), "KICKED"

    def reprioritize(self, state, span, priority):
        if state.state in ("", "reserved"):
            return state, "TOO_LATE" if state.state else "NOT_FOUND"
        return dataclasses.replace(state, priority=priority), "REPRIORITIZED"

    def cancel(self, state, span):
        if state.state != "delayed":
            return state, "TOO_LATE" if state.state else "NOT_FOUND"
        return dataclasses.replace(state, state=""), "CANCELLED"

    def pause(self, state, span, seconds):
        return dataclasses.replace(state, paused=after(span, seconds) if seconds else ()), "PAUSED"

    def peek(self, state, span):
        body = state.again[0] if state.again else state.body
        return state, f"FOUND {body.decode()}" if state.state else "NOT_FOUND"

    def look(self, state, span):
        priority = state.again[1] if state.again else state.priority
        return state, f"{state.state} {priority}" if state.state else "NOT_FOUND"

    def look_at_tube(self, state, span):
        oldest = "a job is ready" if state.state == "ready" else "none is ready"
        return state, f"{'paused' if state.paused else 'not paused'}, {oldest}"


COMMANDS = Commands()


class Owner(threading.Thread):
    """Gives commands for its job, over one connection after the other."""

    def __init__(self, address, number, rng):
        super().__init__(daemon=True)
        self.address, self.rng = address, rng
        self.tube, self.job = b"t%d" % number, 0
        self.bodies = 0
        self.possible = [State()]
        self.answered = 0
        self.stops = False
        self.failure = None
        self.said = []

    def run(self):
        try:
            while not self.stops:
                self.caller = self._connect()
                try:
                    self._talk()
                except (ConnectionError, EOFError):
                    self.possible = list(dict.fromkeys(map(crashed, self.possible)))
                    self.said.append("killed")
                finally:
                    self.caller.close()
        except Exception as error:
            self.failure = error

    def _connect(self):
        deadline = time.monotonic() + WITHIN
        while True:
            try:
                return Caller(self.address)
            except OSError:
                assert time.monotonic() < deadline, "the server does not accept"
                time.sleep(0.01)

    def _talk(self):
        if all(state.paused for state in self.possible):
            self._ask("look_at_tube", b"stats-tube " + self.tube)
        for line in (b"use " + self.tube, b"watch " + self.tube, b"ignore default", b"client-name owner/" + self.tube):
            self._line(line)
        self._ask("peek", b"peek-keyed k")
        while not self.stops:
            self._next()

    def _line(self, line, body=None):
        self.caller.send(line + b"\r\n" if body is None else b"%b\r\n%b\r\n" % (line, body))
        reply = self.caller.line()
        if not reply.endswith(b"\r\n"):
            raise EOFError
        words = reply.split()
        if words[0] not in (b"RESERVED", b"FOUND", b"OK"):
            return words, b""
        size = int(words[-1]) + 2
        found = self.caller.read(size)
        if len(found) < size:
            raise EOFError
        return words, found[:-2]

    def _ask(self, name, line, body=None, *arguments):
        sent = time.monotonic()
        self.said.append((name, arguments))
        try:
            words, found = self._line(line, body)
        except (ConnectionError, EOFError):
            span = sent, time.monotonic()
            done = [getattr(COMMANDS, name)(each, span, *arguments)[0] for each in self._settled(span)]
            self.possible = [*self.possible, *done]
            raise
        span = sent, time.monotonic()
        reply = self._reply(name, words, found)
        outcomes = [getattr(COMMANDS, name)(each, span, *arguments) for each in self._settled(span)]
        left = [state for state, expected in outcomes if expected == reply]
        if not left:
            raise AssertionError(f"{reply}: expected {outcomes} after {self.said[-12:]}")
        self.possible = list(dict.fromkeys(left))
        self.answered += 1

    def _settled(self, span):
        return [each for state in self.possible for each in settled(state, span)]

    def _reply(self, name, words, found):
        if words[0] in (b"INSERTED", b"REPLACED", b"AGAIN", b"RESERVED", b"FOUND"):
            self.job = int(words[1])
        if words[0] in (b"RESERVED", b"FOUND"):
            return f"{words[0].decode()} {found.decode()}"
        if words[0] == b"NOT_FOUND" and name == "look_at_tube":  # nothing has kept it
            return "not paused, none is ready"
        if words[0] != b"OK":
            return words[0].decode()
        rows = dict(line.split(": ", 1) for line in found.decode().splitlines() if ": " in line)
        if name == "look_at_tube":
            oldest = "a job is ready" if float(rows["oldest-ready"]) else "none is ready"
            return f"{'paused' if int(rows['pause']) else 'not paused'}, {oldest}"
        return f"{rows['state']} {rows['pri']}"

    def _body(self):
        self.bodies += 1
        return b"%b-%d" % (self.tube, self.bodies) + b"x" * self.rng.choice((0, 0, 3000))

    def _next(self):
        rng, job = self.rng, self.job
        priority, body = rng.randrange(5), self._body()
        delay = rng.choice((0, 0, 1, 100))
        choice = rng.randrange(16)
        if choice < 3:
            again, within = rng.random() < 0.7, rng.choice((0, 0, 2))
            line = b"put-with %d %d %d %d key=k replace=1" % (priority, delay, TTR, len(body))
            line += b" again=1" * again + b" within=%d" % within * bool(within)
            self._ask("put", line, body, body, priority, delay, again, within)
        elif choice < 7:
            self._ask("reserve", b"reserve-with-timeout 0")
        elif choice == 7:
            self._ask("delete", b"delete %d" % job)
        elif choice == 8:
            self._ask("release", b"release %d %d %d" % (job, priority, delay), None, priority, delay)
        elif choice == 9:
            self._ask("give_back", b"give-back %d" % job)
        elif choice == 10:
            self._ask("save", b"save %d %d" % (job, len(body)), body, body)
        elif choice == 11:
            bury = ("bury", b"bury %d 1" % job) if rng.random() < 0.3 else ("kick_job", b"kick-job %d" % job)
            self._ask(*bury)
        elif choice == 12:
            self._ask("reprioritize", b"reprioritize-keyed k %d" % priority, None, priority)
        elif choice == 13:
            self._ask("cancel", b"cancel-keyed k")
        elif choice == 14:
            seconds = rng.choice((0, 0, 0, 1, 4294967295))
            self._ask("pause", b"pause-tube %b %d" % (self.tube, seconds), None, seconds)
        else:
            self._ask("peek", b"peek-keyed k")
            self._ask("look", b"stats-job %d" % self.job)
            self._ask("look_at_tube", b"stats-tube " + self.tube)


def kill_again_and_again(directory, kills, *options):
    rng = random.Random(kills)
    (directory / "binlog").mkdir()
    config = directory / "config.toml"
    config.write_text('[[tube]]\nmatch = "t*"\nmeasures = true\ncount-disconnects = false\n')
    line = ["-p", str(unused_port()), "-b", str(directory / "binlog"), "-s", "65536", "--config", str(config), *options]
    process = launch(*line)
    owners = [Owner(process.address, number, random.Random(rng.random())) for number in range(CLIENTS)]

    def answered():
        for owner in owners:
            if owner.failure is not None:
                raise AssertionError(f"tube {owner.tube.decode()}") from owner.failure
        return sum(owner.answered for owner in owners)

    try:
        for owner in owners:
            owner.start()
        for _ in range(kills):
            work = answered() + rng.randrange(50, 1500)
            eventually(lambda work=work: answered() >= work, "clients are answered")
            process.kill()
            assert "Traceback" not in process.log, process.log
            process = launch(*line)
        work = answered() + 1000
        eventually(lambda: answered() >= work, "clients are answered")
        for owner in owners:
            owner.stops = True
        for owner in owners:
            owner.join(WITHIN)
            assert not owner.is_alive(), "a client has no answer"
        print(f"killed {kills} times: {answered():,} commands answered, no problems")
        assert process.stop() == 0
        assert "Traceback" not in process.log, process.log
    finally:
        for owner in owners:
            owner.stops = True
        process.kill()


def test_a_server_that_is_killed_forgets_no_version_save_priority_or_pause(tmp_path):
    kill_again_and_again(tmp_path, 4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--body-threshold", "0", "--body-cache", "1000")], ids=["sync", "on-disk"])
def test_it_does_so_however_often(tmp_path, options):
    kill_again_and_again(tmp_path, 100, *options)
