"""Reads and checks the OPTIONS of a backend in Django's settings.

Must never raise for what is wrong while Django starts: `manage.py check` shows it, and `enqueue` raises an error.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.apps import apps
from django.conf import settings as django_settings

from beanstalk_client.address import read_target
from beanstalk_client.commands import MAX_SECONDS, Duration, make, seconds_of

TIMEOUTS = ("connect_timeout", "timeout", "reconnect_timeout")

OUTBOX_APP = "beanstalk_client.outbox.django"

CLIENT_OPTIONS = ("addresses", "tls", "server_name", "token", "insecure_token", *TIMEOUTS)
"""Those that the client takes, under its own names."""


class Options(NamedTuple):
    """The options of a backend.

    Attributes:
        client: keywords of the client.
        prefix: what the name of a queue's tube begins with.
        ttr: time to run: seconds, "5m", or a timedelta. A worker touches the job while its task runs, so this is for
            how long a worker that hangs or vanishes without a word keeps a task.
        retries: how many times a task that fails is run again, if the task does not say otherwise.
        backoff: how long it waits for the first of these; twice as long each further time.
        result_ttl: for how long a result is kept; None: it is not.
        outbox: alias of the database in whose transactions tasks are written; None: they are put at once.
    """

    client: Mapping[str, Any]
    prefix: str = ""
    ttr: Duration = 60
    retries: int = 0
    backoff: Duration = 1.0
    result_ttl: Duration | None = None
    outbox: str | None = None


def read_options(given: Mapping[str, Any]) -> Options:
    """The options out of OPTIONS, whether or not they are good."""
    client = {name: given[name] for name in CLIENT_OPTIONS if name in given}
    client.setdefault("addresses", "127.0.0.1:11300")
    return Options(client, **{name: given[name] for name in Options._fields[1:] if name in given})


def is_seconds(value: object, least: float) -> bool:
    """Whether a value is a duration that the protocol can say."""
    if not isinstance(value, (int, float, str, datetime.timedelta)) or isinstance(value, bool):
        return False
    try:
        return least <= seconds_of(value) <= MAX_SECONDS
    except ValueError:
        return False


def is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def problems(given: Mapping[str, Any], queues: frozenset[str]) -> Iterator[tuple[str, str]]:
    """What is wrong with OPTIONS and QUEUES: each time what, and what would be right."""
    known = (*CLIENT_OPTIONS, *Options._fields[1:])
    for name in given:
        if name not in known:
            yield f"OPTIONS[{name!r}] is unknown", f"It must be one of {', '.join(known)}."
    options = read_options(given)
    target = {name: value for name, value in options.client.items() if not name.endswith("timeout")}
    try:
        read_target(**target)
    except (TypeError, ValueError, OSError) as error:
        yield f"the server's address is not valid: {error}", "For example: 'addresses': 'beanstalk://127.0.0.1:11300'."
    for name in TIMEOUTS:
        value = given.get(name)
        if value is not None and not (is_seconds(value, 0) and seconds_of(value)):
            yield f"OPTIONS[{name!r}] is {value!r}", "It must be more than 0: seconds, or a string such as '5m'."
    if not is_seconds(options.ttr, 1):
        yield f"OPTIONS['ttr'] is {options.ttr!r}", "It must be at least 1 second: seconds, or a string such as '5m'."
    if not is_seconds(options.backoff, 0):
        yield f"OPTIONS['backoff'] is {options.backoff!r}", "It must be 0 or more: seconds, or a string such as '5m'."
    if not is_count(options.retries):
        yield f"OPTIONS['retries'] is {options.retries!r}", "It must be a whole number, 0 or more."
    if options.result_ttl is not None:
        if not is_seconds(options.result_ttl, 1):
            what = f"OPTIONS['result_ttl'] is {options.result_ttl!r}"
            right = "It must be at least 1 second: seconds, or a string such as '1h'. With None, results are not kept."
            yield what, right
        if not queues:
            what = "OPTIONS['result_ttl'] requires QUEUES"
            yield what, "Name all QUEUES: an id does not say which queue its task is in."
    if options.outbox is not None and options.outbox not in django_settings.DATABASES:
        what = f"OPTIONS['outbox'] is {options.outbox!r}"
        yield what, "It must be the alias of a database, such as 'default'. With None, tasks are put at once."
    elif options.outbox is not None and not apps.is_installed(OUTBOX_APP):
        yield "OPTIONS['outbox'] requires its app", f"Add {OUTBOX_APP!r} to INSTALLED_APPS, and migrate."
    for queue in sorted(queues):
        try:
            make.use(f"{options.prefix}{queue}")
        except (TypeError, ValueError) as error:
            yield (
                f"queue {queue!r} does not give a valid tube name: {error}",
                "A tube must have 1 to 200 characters of A-Z a-z 0-9 - + / ; . $ _ ( ).",
            )
