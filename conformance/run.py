"""Runs conversations against a running server, one after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from .address import Address
from .conversation import Conversation
from .runner import MismatchError, Outcome, UncleanError, UnresponsiveError, clean, hold
from .servers import Server, UnusableError

TRIES: Final = 2
"""Maximum number of runs of a conversation that fails: the machine may be busy."""

GONE: Final = "the server stopped answering"
UNCLEAN: Final = "jobs were left that could not be deleted"

STATES: Final = ("ready", "reserved", "delayed", "buried")


@dataclass
class Run:
    """Conversations run against one server.

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


def hold_and_clean(conversation: Conversation, server: Server) -> Outcome:
    """Run a conversation, and leave the server as it was before."""
    outcome = hold(conversation, server)
    if outcome.status == "skipped":
        return outcome
    try:
        clean(server)
    except (MismatchError, OSError) as error:
        if outcome.status == "passed":
            outcome.fail("no job and no tube except default after deleting all jobs", str(error))
        if isinstance(error, (UnresponsiveError, OSError)):
            outcome.reason = GONE
        elif isinstance(error, UncleanError):
            outcome.reason = UNCLEAN
    return outcome


def hold_again(hold_once: Callable[[Conversation], Outcome], outcome: Outcome, tries: int) -> Outcome:
    """Run the conversation of an outcome again while it fails, at most this many times in all."""
    while outcome.status == "failed" and outcome.tries < tries:
        before = outcome.tries
        outcome = hold_once(outcome.conversation)
        outcome.tries = before + 1
    return outcome


def against(
    address: Address,
    conversations: Sequence[Conversation],
    restart_command: str = "",
    report_progress: Callable[[int], None] = lambda _: None,
) -> Run:
    """Run conversations against a running server; skip the rest if it stops answering or deleting jobs.

    Args:
        restart_command: as for Server; it is also run when the server stops answering.
        report_progress: called with the number of conversations that have ended.

    Raises:
        UnusableError: the server cannot be reached, or has jobs, which would be deleted.
    """
    began = time.monotonic()
    try:
        server = Server(address, restart_command)
        stats = server.stats()
    except OSError as error:
        raise UnusableError(f"{address}: {error}") from None
    counts = [stats.get(f"current-jobs-{state}", "") for state in STATES]
    if not all(count.isdigit() for count in counts):
        raise UnusableError(f"{address}: stats has no number of jobs in each state (current-jobs-ready and so on)")
    if any(map(int, counts)):
        raise UnusableError(f"{address} has jobs, and a run would delete them: use a server without jobs")
    run = Run(server.name)
    gone = ""
    for number, conversation in enumerate(conversations):
        if gone:
            run.outcomes.append(Outcome(conversation, "skipped", gone))
            continue
        outcome = hold_and_clean(conversation, server)
        if outcome.reason != GONE:
            outcome = hold_again(lambda again: hold_and_clean(again, server), outcome, TRIES)
        if outcome.reason == GONE:
            gone = _revive(server, restart_command)
        elif outcome.reason == UNCLEAN:
            gone = UNCLEAN
        run.outcomes.append(outcome)
        report_progress(number + 1)
    run.seconds = time.monotonic() - began
    return run


def _revive(server: Server, restart_command: str) -> str:
    """Restart a server that does not answer; return why the rest is not run, or ""."""
    if not restart_command:
        return GONE
    try:
        server.restart()
    except UnusableError as error:
        return str(error)
    return ""
