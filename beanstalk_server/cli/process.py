"""Runs a server as a process: sets up its event loop, its log and its signals, and returns its exit status.

SIGTERM and SIGINT stop the server, SIGUSR1 starts drain mode, SIGHUP does nothing. The process notifies systemd when
the server is ready, and when it stops. Must never know how a server works.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import sys
from typing import Final

import sdnotify
import uvloop

from beanstalk_server.config import Config
from beanstalk_server.server.server import Server
from beanstalk_server.server.start_error import StartError

JOURNAL_FAILED: Final = 74
"""The exit status when the journal failed while the server was running (EX_IOERR of sysexits.h)."""

SWITCH_INTERVAL: Final = 0.0005
"""Seconds for which the event loop may keep the interpreter while the binlog's thread waits for it. A commit needs the
interpreter three times: with Python's default of 5 ms, one client that keeps the loop busy would delay the replies to
all others by that much, three times."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("beanstalk_server")


class Interrupted(BaseException):
    """A signal stopped the server before it was ready."""


def run(config: Config) -> int:
    """Run a server until it is told to stop; return the exit status."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    raise_file_limit()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(config))
    except StartError as error:
        print(f"beanstalk-server: {error}", file=sys.stderr)
        return error.status


async def serve(config: Config) -> int:
    """Serve until a signal arrives or the journal fails; return the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    systemd = sdnotify.SystemdNotifier()
    server = Server(config)

    def stop_starting(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        if server.restoring:  # this may take minutes, and holds the event loop
            raise Interrupted

    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, stop_starting)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        await server.start()
    except Interrupted:
        log.info("stopped before the server was ready")
        return 0
    for stop_signal in STOP_SIGNALS:
        loop.add_signal_handler(stop_signal, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, server.drain)
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP: ignored, because the server has nothing to reload")
    systemd.notify("READY=1")
    waits = [loop.create_task(event.wait()) for event in (stop, server.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    systemd.notify("STOPPING=1")
    for wait in waits:
        wait.cancel()
    await server.stop()
    return 0 if server.failure is None else JOURNAL_FAILED


def raise_file_limit() -> None:
    """Raise the limit on open files, and so on connections, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # the kernel may refuse even the hard limit, if that is "unlimited"
        log.warning("the limit on open files stays at %d, which also limits connections: %s", soft, error)
