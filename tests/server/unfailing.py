"""For tests that send whatever there is, and in which nothing may fail: a transport, and a look at the log."""

import logging
from contextlib import contextmanager


class Plug:
    """A transport that takes everything."""

    def write(self, data): ...

    def set_write_buffer_limits(self, high=None, low=None): ...

    def get_extra_info(self, _):
        return "192.0.2.1", 5

    def is_closing(self):
        return False

    pause_reading = resume_reading = close = abort = lambda self: None


@contextmanager
def failing_in_nothing():
    """No line of the log has a traceback."""
    logger = logging.getLogger("beanstalk_server")
    level = logger.level
    logger.setLevel(logging.ERROR)
    failures = []
    handler = logging.Handler()
    handler.emit = lambda record: failures.append(record) if record.exc_info else None
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)
    assert not failures
