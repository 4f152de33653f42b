"""What the console costs is measured: with a few tubes and viewers, for a moment."""

import pytest

from bench.console import show
from bench.servers import started

pytest.importorskip("uvicorn")

pytestmark = pytest.mark.slow


def test_the_console_is_measured():
    with started("interpreted") as server:
        with server.connect() as sock:
            sock.sendall(b"use u1\r\nput 0 0 60 1\r\nx\r\n")
        sample = show(server, 5, 0.2, 0.1)
        assert sample["first_page"] > 0 and sample["page"] > 0 and sample["own_ms"] > 0
