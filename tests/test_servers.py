"""A room that the settings do not ask for is not imported."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from beanstalk_server import Config
from beanstalk_server.servers import server_of
server_of(Config(port=0, {options}))
rooms = sorted({{name.split(".")[1] for name in sys.modules if name.startswith("beanstalk_server.")}})
print(*[room for room in rooms if room in ("cluster", "io_processes", "routing")])
"""
CLUSTER = 'cluster="redis://127.0.0.1:1"'


@pytest.mark.sockets
@pytest.mark.parametrize(
    ("options", "rooms"),
    [
        ("", ""),
        ("io_processes=1", "io_processes"),
        (CLUSTER, "cluster routing"),
    ],
)
def test_a_room_is_imported_only_if_it_is_asked_for(options, rooms):
    program = PROGRAM.format(options=options)
    found = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert found.stdout.split() == rooms.split()
