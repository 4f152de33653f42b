"""Carries out the forms that change jobs, tubes or the server, with a confirmation where needed; the page of the log.

A form names an operation (`op`) and what it is about (`scope`):

    marked    the jobs `id`, or the tubes `tube`
    all       all jobs of `tube` in `state`, as many as were asked about (`most`)
    search    what the search `search` has found
    group     a group of failures, `group`
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from starlette.responses import Response

from beanstalk_client.commands import (
    MAX_PRIORITY,
    MAX_SECONDS,
    MAX_TIMEOUT,
    MOVED_STATES,
    PAUSE_UNTIL_RESUMED,
    Command,
    make,
    seconds,
)
from beanstalk_client.console import actions
from beanstalk_client.console.actions import Client, Steps
from beanstalk_client.console.bodies import summary
from beanstalk_client.console.rendering import moment, size
from beanstalk_client.console.visit import BadRequestError, Form, Visit, read_name, read_number
from beanstalk_client.errors import Error, NotFoundError, shown
from beanstalk_client.job import Job
from beanstalk_client.observe.reader import MAX_SUMMARIZED
from beanstalk_client.observe.samples import STATES
from beanstalk_client.schedules.schedule import key_of
from beanstalk_client.statistics import Statistics

DEFAULT_PAUSE: Final = 600

MANY: Final = 10
"""Minimum number of jobs from which an order that loses nothing asks for confirmation, too."""

EXAMPLES: Final = 5
"""Number of jobs that the confirmation of an order shows."""

EXAMPLE_BYTES: Final = 65_536
"""Bytes of bodies that are read for them; the last may be longer."""

WITH_BODY: Final = ("put", "change")
"""Operations whose form has a body: after an error, it is shown again."""

TYPED: Final[dict[str, tuple[str, ...]]] = {
    "put": ("body", "pri", "delay", "ttr", "key"),
    "change": ("body", "pri", "delay", "ttr"),
    "move": ("to",),
    "reschedule": ("delay",),
    "reprioritize": ("pri",),
    "pause": ("seconds",),
}
"""What is typed into the form of an operation."""

LABELS: Final = {
    "body": "Body",
    "pri": "Priority",
    "delay": "Delay, s",
    "ttr": "Time to run, s",
    "key": "Key",
    "to": "Destination tube",
    "seconds": "Pause, s",
}

BODY_WITHIN: Final = 30.0
"""Seconds for which a form with a body waits for its action, so that the body is not lost if it fails."""

SHOWN_WITHIN: Final = 0.7
"""Seconds for which a form waits for its action; one that takes longer is shown with its progress."""

MAX_MARKED: Final = 10_000


@dataclass(frozen=True, slots=True)
class Selection:
    """The jobs that an order is about.

    Attributes:
        ids: those that are named one by one; empty for all of a tube in a state.
        total: how many there are.
        words: in words: "3 selected jobs", "all 120 buried jobs of tube mails".
        state: in which they were shown; "" if that is not known.
        error: with which they have failed; "" for none.
    """

    ids: Sequence[int]
    total: int
    words: str
    tube: str = ""
    state: str = ""
    error: str = ""

    def each(self, command: Callable[[int], Command[Any]]) -> Callable[[Client], Steps]:
        """The steps that give a command for each of them."""
        if self.ids:
            return lambda client: actions.each_job(client, self.ids, command, self.tube, self.state)
        return lambda client: actions.all_in_state(client, self.tube, self.state, self.total, command)

    def reorder(self, command: Callable[[int], Command[Any]]) -> Callable[[Client], Steps]:
        """The same with a command that changes the place of a job, in whichever state it is by now."""
        if self.ids:
            return lambda client: actions.each_job(client, self.ids, command)
        return lambda client: actions.reorder(client, self.tube, self.state, self.total, command)


@dataclass(slots=True)
class Order:
    """What was ordered.

    Attributes:
        what: in words, as a sentence without a period: "Delete 3 selected jobs".
        warning: what cannot be undone, or is not as one might think; "" for nothing.
        is_final: it cannot be undone.
        asks: it is asked once more, as are orders about MANY jobs and those that cannot be undone.
        about: the jobs, or the names of the tubes, that are shown when it is asked once more.
    """

    what: str
    total: int | None
    steps: Callable[[Client], Steps]
    warning: str = ""
    is_final: bool = False
    asks: bool = False
    about: Selection | Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """One of the jobs that an order is about, as it is shown before the order is confirmed."""

    id: int
    line: str = ""
    error: str = ""


async def order(visit: Visit) -> Response:
    form = await visit.form()
    op = _one(form, "op")
    make_order = OPERATIONS.get(op)
    if make_order is None:
        raise BadRequestError("Unknown operation.")
    back = _back(_one(form, "back"))
    try:
        found = await make_order(visit, form)
    except BadRequestError as error:
        if op in WITH_BODY or error.field in TYPED.get(op, ()):
            return _ask_again(visit, form, back, str(error), error.status, error.field)
        raise
    except (Error, OSError) as error:
        if op in WITH_BODY:
            return _ask_again(visit, form, back, actions.meaning(error), 409)
        raise
    if (found.asks or found.is_final or (found.total or 0) >= MANY) and _one(form, "sure") != "1":
        kept = [
            (name, value) for name, values in form.items() for value in values if name not in ("csrf", "sure", "most")
        ]
        kept += [("most", str(found.total))] if found.total is not None else []
        jobs = await _examples(visit, found.about) if isinstance(found.about, Selection) else []
        return visit.page("confirm.html", tab="", order=found, fields=kept, back=back, jobs=jobs)
    try:
        action = visit.state.actions.begin(
            visit.who, visit.owner, found.what, found.total, visit.user.connect, found.steps
        )
    except actions.RefusedError as error:
        if op in WITH_BODY:
            return _ask_again(visit, form, back, str(error), 409)
        raise
    assert action.task is not None
    await asyncio.wait([action.task], timeout=BODY_WITHIN if op in WITH_BODY else SHOWN_WITHIN)
    if action.state == "failed" and op in WITH_BODY:
        return _ask_again(visit, form, back, action.error, 409)
    if action.state == "runs":
        return visit.redirect(visit.url("log", id=action.id))
    await visit.user.sampler.again()  # so that the page shows what has come of it
    return visit.redirect(f"{visit.base}/{back}{'&' if '?' in back else '?'}did={action.id}")


def _ask_again(visit: Visit, form: Form, back: str, problem: str, status: int, field: str = "") -> Response:
    """A page with the error and with what was typed, to be corrected and sent once more."""
    op = _one(form, "op")
    typed = {name: _one(form, name) for name in TYPED[op]}
    kept = [
        (name, value)
        for name, values in form.items()
        for value in values
        if name not in typed and name not in ("csrf", "op", "sure")
    ]
    return visit.page(
        "again.html", status, tab="", op=op, problem=problem, field=field, typed=typed, labels=LABELS, fields=kept,
        back=back,
    )  # fmt: skip


async def _examples(visit: Visit, about: Selection) -> list[Example]:
    """The first jobs of those that an order is about, each with the beginning of its body and its error."""
    ids = list(about.ids[:EXAMPLES])
    if not ids and about.total:
        try:
            ids = [int(job["id"]) for job in (await visit.user.jobs(about.tube, about.state, count=EXAMPLES))[1]]
        except Error:  # they cannot be listed, or have gone: the order says so when it is done
            return []
    failed = {job.id: job for group in visit.user.failures.groups for job in group.jobs if job.id in ids}
    left = EXAMPLE_BYTES
    found = []
    for each in ids:
        line = ""
        if left > 0:
            try:
                content = (await visit.user.client.peek(each)).body
            except NotFoundError:
                line = "(gone)"
            except Error:
                line = "(this token may not read the body)"
            else:
                left -= len(content)
                line = summary(content) if len(content) <= MAX_SUMMARIZED else size(len(content))
        report = failed[each].report if each in failed else None
        found.append(Example(each, line, report.error if report is not None else ""))
    return found


async def stop(visit: Visit) -> Response:
    form = await visit.form()
    number = read_number(_one(form, "id"), "id")
    if _one(form, "what") == "search":
        search = visit.state.searches.find(visit.owner, number)
        if search is not None:
            search.stop()
        return visit.redirect(visit.url("search", id=number))
    action = visit.state.actions.find(visit.owner, number)
    if action is not None:
        action.is_to_stop = True
        if action.task is not None:
            await asyncio.wait([action.task], timeout=SHOWN_WITHIN)
    return visit.redirect(visit.url("log", id=number))


async def log(visit: Visit) -> Response:
    await visit.user.sampler.look()
    asked = visit.text("id")
    one = visit.state.actions.find(visit.owner, read_number(asked, "id")) if asked else None
    return visit.page("log.html", tab="log", actions=visit.state.actions.of(visit.owner), one=one)


# ------------------------------------------------------------------------------------------- what an order is about


def _one(form: Form, name: str, default: str = "") -> str:
    return form.get(name, [default])[0]


def _back(asked: str) -> str:
    """Where to go afterwards: one of the console's own pages."""
    try:
        parts = urlsplit(asked)
    except ValueError:
        return ""
    path = parts.path.strip("/")
    if parts.scheme or parts.netloc or not path.isalpha() or any(ord(each) < 0x21 for each in asked):
        return ""
    pairs = [pair for pair in parts.query.split("&") if pair and not pair.startswith("did=")]
    return path + ("?" + "&".join(pairs) if pairs else "")


def jobs_in_words(number: int) -> str:
    return f"{number:,} {'job' if number == 1 else 'jobs'}"


async def select(visit: Visit, form: Form, states: Sequence[str] = STATES, problem: str = "") -> Selection:
    """The jobs that a form is about.

    Args:
        states: of which all jobs may be selected at once; `problem` says why not those of others.

    Raises:
        BadRequestError: none, too many, or all in another state.
    """
    found = await _select(visit, form)
    if not found.ids and found.state not in states:
        raise BadRequestError(problem)
    return found


async def _select(visit: Visit, form: Form) -> Selection:
    scope = _one(form, "scope", "marked")
    if scope == "all":
        tube, state = read_name(_one(form, "tube")), _one(form, "state")
        if state not in STATES:
            raise BadRequestError("Unknown state: must be ready, reserved, delayed or buried.")
        total = int((await visit.user.client.stats_tube(tube))[f"current-jobs-{state}"])
        total = min(total, read_number(_one(form, "most"), "most", total))
        return Selection([], total, f"all {total:,} {state} jobs of tube {tube}", tube, state)
    if scope == "search":
        search = visit.state.searches.find(visit.owner, read_number(_one(form, "search"), "search"))
        if search is None:
            raise BadRequestError("This search no longer exists.", 404)
        ids = [int(job["id"]) for job in search.found]
        ids = ids[: read_number(_one(form, "most"), "most", len(ids))]
        words = f"all {jobs_in_words(len(ids))} found in tube {search.tube}"
        return Selection(ids, len(ids), words, search.tube, search.job_state)
    if scope == "group":
        group = visit.user.failures.find(_one(form, "group"))
        if group is None:
            raise BadRequestError("This group no longer exists: reload the page.", 404)
        words = f"{jobs_in_words(len(group.jobs))} of tube {group.tube} with the same error"
        state = "ready" if group.state == "dead" else group.state
        return Selection([job.id for job in group.jobs], len(group.jobs), words, group.tube, state, group.error)
    ids = [read_number(text, "id") for text in form.get("id", [])]
    if not ids:
        raise BadRequestError("No jobs are selected.")
    if len(ids) > MAX_MARKED:
        raise BadRequestError(f"More than {MAX_MARKED:,} jobs are selected.")
    words = f"job {ids[0]}" if len(ids) == 1 else f"{len(ids):,} selected jobs"
    tube = _one(form, "tube")
    return Selection(ids, len(ids), words, read_name(tube) if tube else "", _one(form, "state"))


async def _kick(visit: Visit, form: Form) -> Order:
    found = await select(visit, form, ("buried", "delayed"), "Only buried and delayed jobs can be kicked.")
    return Order(
        f"Kick {found.words}", found.total, found.each(make.kick_job), "They become ready at once.", about=found
    )


async def _delete(visit: Visit, form: Form) -> Order:
    problem = "Reserved jobs cannot be deleted here: only their workers can delete them."
    found = await select(visit, form, MOVED_STATES, problem)
    return Order(f"Delete {found.words}", found.total, found.each(make.delete), is_final=True, about=found)


async def _reschedule(visit: Visit, form: Form) -> Order:
    found = await select(visit, form, ("delayed",), "Only delayed jobs can be rescheduled.")
    delay = _one(form, "delay").strip()
    delay += "s" if delay.isdigit() else ""
    try:
        left = float(seconds("delay", delay))
    except (ValueError, TypeError):
        message = f"Bad delay {shown(delay, 30)!r}: must be seconds, or a number with a unit: 90, 30m, 2h, 1d."
        raise BadRequestError(message, field="delay") from None
    what = f"Reschedule {found.words} to {moment(time.time() + left)}"
    warning = "A rescheduled job no longer waits for the end of a group."
    return Order(what, found.total, found.reorder(lambda each: make.reschedule(each, delay)), warning, about=found)


async def _reprioritize(visit: Visit, form: Form) -> Order:
    problem = "Reserved jobs keep their priority."
    found = await select(visit, form, MOVED_STATES, problem)
    priority = read_number(_one(form, "pri"), "pri", most=MAX_PRIORITY)
    what = f"Reprioritize {found.words} to {priority}"
    warning = "The smallest number is the most urgent. Reserved jobs are skipped."
    return Order(what, found.total, found.reorder(lambda each: make.reprioritize(each, priority)), warning, about=found)


async def _bury(visit: Visit, form: Form) -> Order:
    found = await select(visit, form, (), "The protocol can bury only single jobs: select them.")
    warning = "Each job is reserved briefly, which counts as a reserve. Reserved jobs are skipped."
    return Order(
        f"Bury {found.words}", found.total, lambda client: actions.bury(client, found.ids), warning, about=found
    )


async def _move(visit: Visit, form: Form) -> Order:
    found = await select(visit, form, MOVED_STATES, "Reserved jobs cannot be moved.")
    target = read_name(_one(form, "to"), "destination tube", "to")

    def steps(client: Client) -> Steps:
        if found.ids:
            return actions.copy(client, found.ids, target)
        return actions.in_parts(lambda part: client.move_jobs(found.tube, found.state, target, part), found.total)

    warning = "The jobs keep their ids, states, priorities and deadlines."
    if found.ids:
        warning = (
            "The protocol cannot move single jobs: each is put into the other tube as a new job with a new id, ready "
            "or delayed, and then deleted. The new job keeps the body, priority, time to run and key. Its age, tries "
            "and other attributes are reset."
        )
    return Order(f"Move {found.words} to tube {target}", found.total, steps, warning, asks=True, about=found)


async def _redrive(visit: Visit, form: Form) -> Order:
    tube = read_name(_one(form, "tube"))
    total = int((await visit.user.client.stats_tube(tube))["current-jobs-ready"])
    return Order(
        f"Redrive {jobs_in_words(total)} of tube {tube}",
        total,
        lambda client: actions.in_parts(lambda part: client.redrive(tube, part), max(total, 1)),
        "Each dead letter returns to its origin as a ready job, with its tries reset to 0. Other jobs stay.",
        asks=True,
        about=Selection([], total, "", tube, "ready"),
    )


# ------------------------------------------------------------------------------------------- tubes, groups, the server


def _tubes(form: Form) -> list[str]:
    names = [read_name(name) for name in form.get("tube", [])]
    if not names:
        raise BadRequestError("No tubes are selected.")
    if len(names) > MAX_MARKED:
        raise BadRequestError(f"More than {MAX_MARKED:,} tubes are selected.")
    return names


def _tubes_in_words(names: Sequence[str]) -> str:
    return f"tube {names[0]}" if len(names) == 1 else f"{len(names):,} tubes"


def _for_tubes(names: Sequence[str], steps_of: Callable[[Client, str], Steps]) -> Callable[[Client], Steps]:
    """The steps for each of these tubes; a tube that is gone is passed over."""

    async def steps(client: Client) -> Steps:
        for name in names:
            try:
                async for step in steps_of(client, name):
                    yield step
            except NotFoundError:
                yield actions.Step(0, 1)

    return steps


async def _jobs_of_tubes(visit: Visit, names: Sequence[str], states: Sequence[str]) -> dict[str, int]:
    """The number of jobs in these states, of each of these tubes that is known."""
    found = await visit.user.together([make.stats_tube(name) for name in names])
    return {
        name: _in_states(figures, states)
        for name, figures in zip(names, found, strict=True)
        if isinstance(figures, dict)
    }


def _in_states(figures: Statistics, states: Sequence[str]) -> int:
    return sum(int(figures[f"current-jobs-{state}"]) for state in states)


async def _clear(visit: Visit, form: Form) -> Order:
    names = _tubes(form)
    total = sum((await _jobs_of_tubes(visit, names, MOVED_STATES)).values())
    return Order(
        f"Clear {_tubes_in_words(names)}: delete {jobs_in_words(total)} (ready, delayed and buried)",
        total,
        _for_tubes(names, lambda client, name: actions.once(client.clear_tube(name))),
        "Reserved jobs stay.",
        is_final=True,
        about=names,
    )


async def _cancel_group(visit: Visit, form: Form) -> Order:
    name = read_name(_one(form, "name"))
    total = _in_states(await visit.user.client.stats_group(name), MOVED_STATES)
    return Order(
        f"Delete {jobs_in_words(total)} of group {name} (ready, delayed and buried)",
        total,
        lambda client: actions.once(client.cancel_group(name)),
        "Reserved jobs stay. Jobs that wait for the group become ready when none is left.",
        is_final=True,
    )


async def _kick_tubes(visit: Visit, form: Form) -> Order:
    names = _tubes(form)
    totals = await _jobs_of_tubes(visit, names, ("buried",))
    total = sum(totals.values())
    return Order(
        f"Kick {total:,} buried {'job' if total == 1 else 'jobs'} in {_tubes_in_words(names)}",
        total,
        _for_tubes(names, lambda client, name: actions.kick(client, name, "buried", totals.get(name, 0))),
        "They become ready at once.",
        about=names,
    )


def _set_pause(what: str, names: Sequence[str], seconds: int, note: str, warning: str = "") -> Order:
    steps = _for_tubes(names, lambda client, name: actions.once(client.pause_tube(name, seconds), note))
    return Order(what, None, steps, warning, asks=len(names) >= MANY, about=names)


async def _pause(_: Visit, form: Form) -> Order:
    names = _tubes(form)
    length = read_number(_one(form, "seconds"), "seconds", DEFAULT_PAUSE, MAX_TIMEOUT)
    if not length:
        raise BadRequestError("A pause must be at least 1 second.", field="seconds")
    note, warning = f"paused for {length} s", "Workers get no jobs from a paused tube."
    return _set_pause(f"Pause {_tubes_in_words(names)} for {length} s", names, length, note, warning)


async def _pause_until_resumed(_: Visit, form: Form) -> Order:
    names = _tubes(form)
    note, warning = "paused until resumed", "Workers get no jobs from a paused tube."
    return _set_pause(f"Pause {_tubes_in_words(names)} until resumed", names, PAUSE_UNTIL_RESUMED, note, warning)


async def _resume(_: Visit, form: Form) -> Order:
    names = _tubes(form)
    return _set_pause(f"Resume {_tubes_in_words(names)}", names, 0, "resumed")


async def _drain(_: Visit, __: Form) -> Order:
    warning = "Every put gets DRAINING until drain mode ends or the server restarts. Workers continue."
    what = "Drain the server: accept no new jobs"
    return Order(what, None, lambda client: actions.once(client.drain(), "drains"), warning, asks=True)


async def _undrain(_: Visit, __: Form) -> Order:
    return Order("End drain mode", None, lambda client: actions.once(client.undrain(), "accepts new jobs"))


# ------------------------------------------------------------------------------------------- putting


def _settings(form: Form) -> dict[str, int]:
    """Priority, delay and time to run, as far as a form gives them."""
    given = [name for name in ("pri", "delay", "ttr") if _one(form, name)]
    return {name: read_number(_one(form, name), name, most=MAX_SECONDS) for name in given}


def _body(form: Form) -> bytes:
    """A body as it was written: browsers send lines with CR LF."""
    return _one(form, "body").replace("\r\n", "\n").encode()


async def _put(_: Visit, form: Form) -> Order:
    tube, body, given = read_name(_one(form, "tube")), _body(form), _settings(form)
    key = read_name(_one(form, "key"), "key", "key") if _one(form, "key") else ""
    how: dict[str, Any] = {
        "priority": given.get("pri", 65536),
        "delay": given.get("delay", 0),
        "ttr": given.get("ttr", 60),
    }

    async def steps(client: Client) -> Steps:
        await client.use(tube)
        new = await (client.put_with(body, key=key, **how) if key else client.put(body, **how))
        yield actions.Step(1, note=f"job {new} is in tube {tube}")

    return Order(f"Put a job of {len(body):,} bytes into tube {tube}", 1, steps)


async def _change(visit: Visit, form: Form) -> Order:
    job_id, body, given = read_number(_one(form, "id"), "id"), _body(form), _settings(form)
    tube = str((await visit.user.client.stats_job(job_id))["tube"])
    return Order(
        f"Put job {job_id} of tube {tube} again with a changed body",
        1,
        lambda client: actions.change(client, job_id, tube, body, given),
    )


def _of_next_firing(
    form: Form, what: str, act: Callable[[Client, Job[bytes], Statistics], Awaitable[str]], **how: Any
) -> Order:
    """An order about the job of the next firing of a schedule. `act` returns what it has done."""
    tube, key = read_name(_one(form, "tube")), _firing_key(form)

    async def steps(client: Client) -> Steps:
        await client.stats_tube(tube)  # or `use` would make a tube that has gone
        await client.use(tube)
        job = await client.peek_keyed(key)
        yield actions.Step(1, note=await act(client, job, await client.stats_job(job.id)))

    return Order(what, 1, steps, **how)


async def _run_now(_: Visit, form: Form) -> Order:
    """Put a copy of the next firing: the schedule goes on as planned."""

    async def put_copy(client: Client, job: Job[bytes], found: Statistics) -> str:
        new = await client.put(job.body, int(found["pri"]), 0, int(found["ttr"]))
        return f"job {new} is in tube {found['tube']}"

    warning = "A copy of the next firing's job is put now; the schedule continues as planned."
    what = f"Run schedule {_one(form, 'schedule')} now, with a copy of the firing due at {_moment(form)}"
    return _of_next_firing(form, what, put_copy, warning=warning, asks=True)


async def _skip(_: Visit, form: Form) -> Order:
    """Delete the next firing. Its key stays held, so no scheduler puts it again; to cancel it would free the key."""

    async def delete(client: Client, job: Job[bytes], found: Statistics) -> str:
        if found["state"] != "delayed":
            raise actions.RefusedError("It has already fired.")
        await client.delete(job.id)
        return f"the firing {_firing_key(form)} is skipped"

    what = f"Skip the firing of schedule {_one(form, 'schedule')} due at {_moment(form)}"
    return _of_next_firing(form, what, delete, is_final=True)


def _moment(form: Form) -> str:
    return moment(read_number(_one(form, "moment"), "moment", most=MAX_SECONDS))


def _firing_key(form: Form) -> str:
    """The key of a firing, made of names that are checked."""
    group, name = read_name(_one(form, "group")), read_name(_one(form, "schedule"), "schedule")
    try:
        return key_of(group, name, read_number(_one(form, "moment"), "moment", most=MAX_SECONDS))
    except ValueError as error:
        raise BadRequestError(str(error)) from None


OPERATIONS: Final[dict[str, Callable[[Visit, Form], Any]]] = {
    "kick": _kick,
    "delete": _delete,
    "bury": _bury,
    "move": _move,
    "reschedule": _reschedule,
    "reprioritize": _reprioritize,
    "redrive": _redrive,
    "clear": _clear,
    "cancel-group": _cancel_group,
    "kick-tubes": _kick_tubes,
    "pause": _pause,
    "pause-until-resumed": _pause_until_resumed,
    "resume": _resume,
    "drain": _drain,
    "undrain": _undrain,
    "put": _put,
    "change": _change,
    "run": _run_now,
    "skip": _skip,
}
"""What can be ordered, by the `op` of a form."""
