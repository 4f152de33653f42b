"""The CLI commands that change jobs, tubes or the server: put, kick, delete, move, pause, clear, drain and others.

Must never ask for a confirmation where nothing is lost.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable
from typing import Final

import beanstalk_client
from beanstalk_client.cli.bodies import read_body
from beanstalk_client.cli.output import REFUSED, USAGE, OperatorError, asks_a_person, on_terminal, safe, show_json
from beanstalk_client.cli.target import asking, named, told
from beanstalk_client.commands import is_until_resumed

PART: Final = 10_000
"""Maximum number of jobs that one command of the protocol moves or redrives."""


def put(options: argparse.Namespace) -> int:
    """Put a job, and print its id."""
    demands = {
        name: getattr(options, name) for name in ("within", "tries", "backoff", "ttl", "hold") if getattr(options, name)
    }
    demands |= {name: getattr(options, name) for name in ("share", "limit", "group", "after") if getattr(options, name)}
    if options.limit:
        demands["limit_count"] = options.at_once
    special = bool(demands or options.key or options.replace or options.at is not None)
    if (options.replace or options.hold) and not options.key:
        raise OperatorError("--replace and --hold require --key", USAGE)
    if (options.again or options.within) and not options.replace:
        raise OperatorError("--again and --within require --replace", USAGE)
    if options.at is not None and options.delay:
        raise OperatorError("--at and --delay cannot be combined", USAGE)
    body = read_body(options.body)
    with asking(options, f"tube {options.tube}", "put-with") as client:
        client.use(options.tube)
        if special:
            job_id = client.put_with(
                body, options.pri, options.delay, options.ttr,
                key=options.key or "", replace=options.replace, again=options.again, at=options.at, **demands,
            )  # fmt: skip
        else:
            job_id = client.put(body, options.pri, options.delay, options.ttr)
    if options.json:
        show_json({"id": job_id, "tube": options.tube})
    else:
        print(job_id)
    return 0


def kick(options: argparse.Namespace) -> int:
    """Make delayed or buried jobs ready."""
    if (options.job is None) == (options.tube is None):
        raise OperatorError("one of TUBE and --job must be given", USAGE)
    if options.job is not None:
        with asking(options, f"job {options.job}") as client:
            client.kick_job(options.job)
        return _tell(options, "kicked", 1)
    with asking(options, f"tube {options.tube}") as client:
        with contextlib.suppress(beanstalk_client.ForbiddenError):  # a user may have the right to kick alone
            client.stats_tube(options.tube)  # reports a tube that does not exist, which `use` would create
        client.use(options.tube)
        kicked = client.kick(options.count)
    return _tell(options, "kicked", kicked)


def cancel(options: argparse.Namespace) -> int:
    """Delete a job that is still delayed."""
    return _change_one(options, "cancel", "cancelled")


def reschedule(options: argparse.Namespace) -> int:
    """Give a job that is still delayed another delay."""
    return _change_one(options, "reschedule", "rescheduled", options.delay)


def reprioritize(options: argparse.Namespace) -> int:
    """Give a job that is not reserved another priority."""
    return _change_one(options, "reprioritize", "reprioritized", options.pri)


def bury(options: argparse.Namespace) -> int:
    """Reserve a job, and bury it with its own priority."""
    with asking(options, f"job {options.id}", "reserve-job") as client:
        found = client.stats_job(options.id)
        if found["state"] == "reserved":
            raise OperatorError(
                f"job {options.id}: refused: a worker has reserved it, and only that worker can bury it"
            )
        if found["state"] != "buried":
            client.bury(client.reserve_job(options.id), found["pri"])
    return _tell(options, "buried", 0 if found["state"] == "buried" else 1)


def delete(options: argparse.Namespace) -> int:
    """Delete jobs; go on with the others when one cannot be deleted."""
    deleted, status = [], 0
    with asking(options) as client:
        for job_id in options.id:
            try:
                with told(options, f"job {job_id}"):
                    try:
                        client.delete(job_id)
                        deleted.append(job_id)
                    except beanstalk_client.NotFoundError:
                        raise OperatorError(f"job {job_id}: not found, or reserved by a worker") from None
            except OperatorError as error:
                if error.status != REFUSED:
                    raise
                print(f"beanstalk delete: {error}", file=sys.stderr)
                status = REFUSED
    _tell(options, "deleted", len(deleted))
    return status


def move(options: argparse.Namespace) -> int:
    """Move jobs of one tube to another."""
    with asking(options, f"tube {options.tube}", "move-jobs") as client:
        moved = _in_parts(options, lambda count: client.move_jobs(options.tube, options.state, options.to, count))
    return _tell(options, "moved", moved)


def redrive(options: argparse.Namespace) -> int:
    """Send jobs of a dead tube back to where they came from."""
    with asking(options, f"tube {options.tube}", "redrive") as client:
        redriven = _in_parts(options, lambda count: client.redrive(options.tube, count))
    return _tell(options, "redriven", redriven)


def pause(options: argparse.Namespace) -> int:
    """Keep the jobs of a tube from being reserved, for some time or until the tube is resumed."""
    seconds = math.ceil(options.seconds)
    with asking(options, f"tube {options.tube}") as client:
        client.pause_tube(options.tube, seconds)
    length = "until resumed" if is_until_resumed(seconds) else f"for {seconds} s"
    return _say(options, f"tube {options.tube} is paused {length}", paused=options.tube, seconds=seconds)


def resume(options: argparse.Namespace) -> int:
    """End the pause of a tube."""
    with asking(options, f"tube {options.tube}") as client:
        client.pause_tube(options.tube, 0)
    return _say(options, f"tube {options.tube} is resumed", resumed=options.tube)


def clear(options: argparse.Namespace) -> int:
    """Delete the jobs of a tube that are not reserved, after a confirmation."""
    return _delete_all(options, "tube", options.tube, "clear-tube")


def cancel_group(options: argparse.Namespace) -> int:
    """Delete the jobs of a group that are not reserved, after a confirmation."""
    return _delete_all(options, "group", options.group, "cancel-group")


def drain(options: argparse.Namespace) -> int:
    """Make the server refuse new jobs."""
    with asking(options, extension="drain") as client:
        client.drain()
    return _say(options, f"{named(options)} is in drain mode: it accepts no new jobs", draining=True)


def undrain(options: argparse.Namespace) -> int:
    """Make the server accept new jobs again."""
    with asking(options, extension="undrain") as client:
        client.undrain()
    return _say(options, f"{named(options)} accepts new jobs", draining=False)


def _change_one(options: argparse.Namespace, command: str, done: str, *arguments: object) -> int:
    """Give a command for one job: that of --job, or of KEY in TUBE, which is used."""
    if (options.job is None) == (options.key is None):
        raise OperatorError("TUBE and KEY, or --job, must be given", USAGE)
    if options.job is not None:
        with asking(options, f"job {options.job}", command) as client:
            getattr(client, command)(options.job, *arguments)
    else:
        with asking(options, f"key {options.key} in tube {options.tube}", f"{command}-keyed") as client:
            client.use(options.tube)
            getattr(client, f"{command}_keyed")(options.key, *arguments)
    return _tell(options, done, 1)


def _in_parts(options: argparse.Namespace, ask: Callable[[int], int]) -> int:
    """Ask for N jobs, or with --all for some at a time until there are no more; return how many there were.

    So no answer takes long, however many there are.
    """
    if (options.count is None) != options.all:
        raise OperatorError("one of N and --all must be given", USAGE)
    if not options.all:
        return ask(options.count)
    total = done = ask(PART)
    with contextlib.suppress(beanstalk_client.NotFoundError):  # the last part has emptied the tube
        while done == PART:
            done = ask(PART)
            total += done
    return total


def _delete_all(options: argparse.Namespace, kind: str, name: str, command: str) -> int:
    """Delete the jobs of a tube or a group that are not reserved. Ask for confirmation, unless --yes is given."""
    if not options.yes and not asks_a_person():
        raise OperatorError("refused: no terminal to confirm; use --yes", USAGE)
    with asking(options, f"{kind} {name}", command) as client:
        if not options.yes:
            found = getattr(client, f"stats_{kind}")(name)
            counts = ", ".join(f"{found[f'current-jobs-{state}']} {state}" for state in ("ready", "delayed", "buried"))
            print(f"{kind} {name} at {named(options)} has these jobs: {counts}", file=sys.stderr)
            print("delete all of them? [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                print("nothing was deleted", file=sys.stderr)
                return REFUSED
        deleted: int = getattr(client, command.replace("-", "_"))(name)
    return _tell(options, "deleted", deleted)


def _say(options: argparse.Namespace, text: str, **document: object) -> int:
    """Say what was done, as text or as JSON; return the exit status."""
    if options.json:
        show_json(document)
    else:
        print(safe(text) if on_terminal() else text)
    return 0


def _tell(options: argparse.Namespace, done: str, number: int) -> int:
    """Say how many jobs something was done to; return the exit status."""
    return _say(options, f"{number} {'job' if number == 1 else 'jobs'} {done}", **{done: number})
