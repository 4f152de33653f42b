"""Starts a server as systemd does: with sockets that are open already."""

import sys

from harness import servers


def activated(sockets, *options):
    """A shell command that starts a server as systemd does: the sockets from file 3 on, and its own pid."""
    redirections = " ".join(f"{number}<&{sock.fileno()}" for number, sock in enumerate(sockets, 3))
    command = " ".join([sys.executable, "-m", "beanstalk_server", *options])
    return ["bash", "-c", f"LISTEN_FDS={len(sockets)} LISTEN_PID=$$ exec {command} {redirections}"]


def run_shell(command, descriptor):
    done = servers.run(command, pass_fds=[descriptor])
    return done.returncode, done.stdout, done.stderr
