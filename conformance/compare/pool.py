"""Runs many conversations, several at a time, each with a server that no other one uses meanwhile.

Once a server has been cleaned, only its counters show what came before. So conversations take turns on a few servers;
those that look at counters, or need options, get a server that is started for them.
"""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Final

from conformance.compare import servers
from conformance.compare.servers import Process
from conformance.conversation import Conversation
from conformance.run import TRIES, Run, hold_again, hold_and_clean
from conformance.runner import Outcome, hold

TRIES_OF_A_SLOW_MACHINE: Final = 12
"""Maximum number of runs of a conversation while the machine is too slow for it: its other work may take a while."""


def started(program: str, conversations: Sequence[Conversation], at_once: int = 6, options: Sequence[str] = ()) -> Run:
    """Run conversations against servers that are started for them, the longest first; outcomes keep the given order.

    Those that the machine was too slow for are run again after all others, one at a time.

    Args:
        program: as for `servers.started`.
        at_once: maximum number of concurrent conversations.
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
        options = [*self._options, *conversation.options]
        with ExitStack() as stack:
            if conversation.restarts:
                options += ["-b", stack.enter_context(tempfile.TemporaryDirectory())]
            fresh = stack.enter_context(servers.started(self._program, options, conversation.memory))
            outcome = hold(conversation, fresh)
            self.look_at_log(fresh)
            return outcome

    def look_at_log(self, server: Process) -> None:
        if server.ours and "Traceback" in (log := server.log()):
            self._complaints.append(log)


def hold_in_time(held: Callable[[Conversation], Outcome], outcome: Outcome) -> Outcome:
    """Run the conversation of an outcome again, alone, if it has failed: once, or while the machine is too slow for it.
    On a busy machine, a node may lose its lease, or one I/O process be overtaken by another.
    """
    outcome = hold_again(held, outcome, TRIES)
    while outcome.was_too_slow and outcome.tries < TRIES_OF_A_SLOW_MACHINE:
        outcome = hold_again(held, outcome, outcome.tries + 1)
    return outcome
