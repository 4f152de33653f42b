"""The listings of docs/tracing.md run."""

import re

import pytest
import sentry_sdk
from beanstalk_client.integrations.opentelemetry import uninstrument
from beanstalk_client.tasks import Tasks

from harness.servers import ROOT

LISTINGS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tracing.md").read_text(), re.DOTALL)


@pytest.mark.sockets  # Sentry asks git for the name of the release
@pytest.mark.parametrize("listing", LISTINGS, ids=["sentry", "opentelemetry", "structlog"])
def test_a_listing_makes_tasks_that_run(listing):
    space = {}
    try:
        exec(listing, space)
        tasks = space["tasks"]
        assert isinstance(tasks, Tasks)
        done = []
        note = tasks.task(name="note")(done.append)
        with tasks.in_memory() as queue:
            note.put("x")
            queue.run()
        assert done == ["x"]
    finally:
        uninstrument()
        sentry_sdk.get_client().close(timeout=0)
        sentry_sdk.get_global_scope().set_client(None)  # or it adds headers to requests of later tests
