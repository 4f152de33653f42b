"""Lines of structlog say which job they are of."""

import structlog
from beanstalk_client.integrations.structlog import LogContext
from beanstalk_client.tasks import Tasks
from structlog.testing import capture_logs


def test_a_line_of_a_task_has_task_tube_and_job_and_one_behind_it_has_not():
    tasks = Tasks("127.0.0.1:1", tube="mail", middleware=[LogContext()])
    log = structlog.get_logger()

    @tasks.task
    def note(what):
        log.info("noted", what=what)

    with tasks.in_memory() as queue, capture_logs(processors=[structlog.contextvars.merge_contextvars]) as lines:
        job_id = note.put("x")
        queue.run()
        log.info("after")
    assert lines == [
        {"event": "noted", "what": "x", "task": "note", "tube": "mail", "job": job_id, "log_level": "info"},
        {"event": "after", "log_level": "info"},
    ]
