"""Runs many conversations, several at a time, each with a server that no other one uses meanwhile.

Once a server has been cleaned, only its counters show what came before. So conversations take turns on a few servers;
those that look at counters, or need options, get a server that is started for them.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Final

from conformance import servers
from conformance.conversation import Conversation
from conformance.runner import MismatchError, Outcome, clean, hold
from conformance.servers import Process, Server
from harness.caller import Address
from harness.servers import ServerError

TRIES: Final = 12
"""How often a conversation is held while the machine is too slow for it: what else it is doing may take a while."""


@dataclass
class Run:
    """Conversations held with one server.

    Attributes:
        name: the server and its version.
        complaints: tracebacks in the log of this project's server: a bug, even if all replies were right.
    """

    name: str
    outcomes: list[Outcome] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.complaints and all(outcome.status != "failed" for outcome in self.outcomes)


def started(program: str, conversations: Sequence[Conversation], at_once: int = 6, options: Sequence[str] = ()) -> Run:
    """Hold conversations with servers that are started for them, the longest first; outcomes keep the given order.

    Those that the machine was too slow for are held again when all others are over, one at a time.

    Args:
        program: as for `servers.started`.
        at_once: how many conversations are held at a time.
        options: for the command line of each server, besides those that a conversation asks for.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        own = [stack.enter_context(servers.started(program, options)) for _ in range(min(at_once, len(conversations)))]
        run = Run(own[0].name)
        turns = _Turns(program, options, own, run.complaints)
        pool = stack.enter_context(ThreadPoolExecutor(at_once))
        longest_first = sorted(conversations, key=lambda conversation: -conversation.waits)
        futures = {id(found): pool.submit(turns.hold, found) for found in longest_first}
        outcomes = [futures[id(found)].result() for found in conversations]
        run.outcomes = [hold_in_time(turns.hold, outcome) for outcome in outcomes]
        for server in own:
            turns.look_at_log(server)
    run.seconds = time.monotonic() - began
    return run


class _Turns:
    """Servers on which conversations take turns."""

    def __init__(self, program: str, options: Sequence[str], own: Sequence[Process], complaints: list[str]) -> None:
        self._program = program
        self._options = options
        self._complaints = complaints
        self._idle: queue.SimpleQueue[Process] = queue.SimpleQueue()
        for server in own:
            self._idle.put(server)

    def hold(self, conversation: Conversation) -> Outcome:
        server = self._idle.get()
        try:
            if conversation.options is None or not server.answers_to(conversation.only):
                return hold_and_clean(conversation, server)
        finally:
            self._idle.put(server)
        options = (*self._options, *conversation.options)
        with servers.started(self._program, options, conversation.memory) as fresh:
            outcome = hold(conversation, fresh)
            self.look_at_log(fresh)
            return outcome

    def look_at_log(self, server: Process) -> None:
        if server.ours and "Traceback" in (log := server.log()):
            self._complaints.append(log)


def hold_and_clean(conversation: Conversation, server: Server) -> Outcome:
    """Hold a conversation, and leave the server as it was before."""
    outcome = hold(conversation, server)
    try:
        clean(server)
    except (MismatchError, ConnectionError) as error:
        outcome.fail("no tube but default is left when all jobs are deleted", str(error))
    return outcome


def hold_in_time(held: Callable[[Conversation], Outcome], outcome: Outcome) -> Outcome:
    """Hold the conversation of an outcome again, without others beside it, if it has failed: once, or while the machine
    is too slow for it. On a busy one, a node may lose its lease, or one I/O process be overtaken by another.
    """
    while outcome.status == "failed" and outcome.tries < (TRIES if outcome.was_too_slow else 2):
        tries = outcome.tries + 1
        outcome = held(outcome.conversation)
        outcome.tries = tries
    return outcome


def against(address: Address, conversations: Sequence[Conversation]) -> Run:
    """Hold conversations with a running server, one after the other.

    Raises:
        ServerError: it cannot be reached, or holds jobs, which would be deleted.
    """
    began = time.monotonic()
    try:
        server = Server(address)
    except OSError as error:
        raise ServerError(f"{address}: {error}") from None
    stats = server.stats()
    if any(int(stats[f"current-jobs-{state}"]) for state in ("ready", "reserved", "delayed", "buried")):
        raise ServerError(f"{address} holds jobs, and a run would delete them: name a server without jobs")
    run = Run(server.name)

    def held(conversation: Conversation) -> Outcome:
        return hold_and_clean(conversation, server)

    run.outcomes = [hold_in_time(held, held(conversation)) for conversation in conversations]
    run.seconds = time.monotonic() - began
    return run
