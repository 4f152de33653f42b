"""A start that cannot have its port says who has it."""

import os
import socket

from beanstalk_server.server.front.port_holder import port_holder


def test_the_process_that_listens_at_a_port_is_named():
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        with socket.socket(family) as sock:
            sock.bind((host, 0))
            port = sock.getsockname()[1]
            assert port_holder(port) == "", "it is bound, but nobody listens"
            sock.listen()
            assert port_holder(port).endswith(f" (pid {os.getpid()})")


def test_nobody_is_named_where_nothing_can_be_seen(tmp_path, monkeypatch):
    monkeypatch.setattr("beanstalk_server.server.front.port_holder.PROC", tmp_path)
    assert port_holder(1) == ""
