"""A program that takes the command line of beanstalk-server, and is a node of a cluster of its own.

    node_program.py leader URL SHARDS DIRECTORY …     a node that leads all shards
    node_program.py half URL SHARDS DIRECTORY …       a node that leads half of them; another process leads the others
    node_program.py standby URL SHARDS DIRECTORY …    a node that leads none; another process leads all of them

Each start is another cluster in the same engine, whose name is in the directory, in a file that is called as the port.
The other process ends with this one. If there are several shards, it takes a moment until they are led as they should.
"""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
from pathlib import Path

from harness.caller import Caller
from harness.servers import command, imported, unused_port
from harness.waiting import eventually

PR_SET_PDEATHSIG = 1

LEASE_TTL = "4"
"""Seconds, for which a node of a new cluster waits before it leads: each start takes as long."""


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


def lead_nothing(port):
    """In a process of its own: tell the parent that it is not to lead, as soon as it answers."""
    parent = os.getpid()
    if os.fork():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # until it handles it
        return
    end_with_parent()
    eventually(lambda: answers(port), "the node answers")
    os.kill(parent, signal.SIGUSR1)
    os._exit(0)


def main(role, url, shards, directory, *arguments):
    name = f"conversations-{os.getpid()}-{unused_port()}"
    (Path(directory) / arguments[3]).write_text(name)
    line = [*command(imported()), "--cluster", url, "--cluster-name", name, "--lease-ttl", LEASE_TTL]
    if shards != "1":
        line += ["--shards", shards]
    if role != "leader":
        port = unused_port()
        options = arguments[4:]  # without -l and -p
        subprocess.Popen([*line, "-l", "127.0.0.1", "-p", str(port), *options], preexec_fn=end_with_parent)
        eventually(lambda: answers(port), "the leader answers")
    if role == "standby" and shards != "1":
        lead_nothing(int(arguments[3]))
    os.execv(line[0], [*line, *arguments])


if __name__ == "__main__":
    main(*sys.argv[1:])
