"""What `beanstalk top` costs is measured: with a few tubes, for a moment."""

import pytest

from bench.servers import started
from bench.watching import watch

pytestmark = pytest.mark.slow


def test_top_is_measured_with_and_without_load():
    with started("interpreted") as server:
        with server.connect() as sock:
            sock.sendall(b"use tube\r\nput 0 0 60 1\r\nx\r\n")
        for rate in (0, 300):
            sample = watch(server, rate, 0.2)
            assert sample["screen"] > 0
