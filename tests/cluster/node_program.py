"""A program that takes the command line of beanstalk-server, and is a node of a cluster of its own.

    node_program.py leader URL …     a node that leads
    node_program.py standby URL …    a node that stands by; the leader is another process, which ends with it

Each start is another cluster in the same engine.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys

from harness.caller import Caller
from harness.servers import command, imported, unused_port
from harness.waiting import eventually

PR_SET_PDEATHSIG = 1


def end_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def answers(port):
    """Whether the leader answers a command that it neither knows nor counts."""
    try:
        caller = Caller(("127.0.0.1", port))
    except ConnectionRefusedError:
        return False
    with contextlib.closing(caller):
        return caller.ask(b"ping\r\n") == b"UNKNOWN_COMMAND\r\n"


def main(role, url, *arguments):
    name = f"conversations-{os.getpid()}-{unused_port()}"
    line = [*command(imported()), "--cluster", url, "--cluster-name", name]
    if role == "standby":
        port = unused_port()
        options = arguments[4:]  # without -l and -p
        subprocess.Popen([*line, "-l", "127.0.0.1", "-p", str(port), *options], preexec_fn=end_with_parent)
        eventually(lambda: answers(port), "the leader answers")
    os.execv(line[0], [*line, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
