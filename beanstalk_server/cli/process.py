"""A process that is a server: its event loop, its log, its signals and its exit status.

SIGTERM and SIGINT stop it, SIGUSR1 starts drain mode, SIGHUP does nothing. systemd is told when it is ready, and when
it stops. Must never know how a server works.
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
"""The exit status when the journal has failed while the server ran (EX_IOERR of sysexits.h)."""

SWITCH_INTERVAL: Final = 0.0005
"""How long the event loop may go on while the binlog's thread waits for the interpreter, in seconds. A commit needs the
interpreter three times; with Python's 5 ms, the replies of others would wait for that while one client keeps the loop
busy."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("beanstalk_server")


class Interrupted(BaseException):
    """A signal has asked the server to stop before it had started."""


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
    """Serve until a signal says stop, or until the journal fails; return the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    systemd = sdnotify.SystemdNotifier()
    server = Server(config)

    def stop_starting(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        if server.restoring:  # that may take minutes, and the event loop is held meanwhile
            raise Interrupted

    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, stop_starting)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        await server.start()
    except Interrupted:
        log.info("stopped before it was ready")
        return 0
    for stop_signal in STOP_SIGNALS:
        loop.add_signal_handler(stop_signal, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, server.drain)
    loop.add_signal_handler(signal.SIGHUP, log.info, "SIGHUP: there is nothing to reload")
    systemd.notify("READY=1")
    waits = [loop.create_task(event.wait()) for event in (stop, server.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    systemd.notify("STOPPING=1")
    for wait in waits:
        wait.cancel()
    await server.stop()
    return 0 if server.failure is None else JOURNAL_FAILED


def raise_file_limit() -> None:
    """Allow as many connections as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # the hard limit may be "unlimited", while the kernel has a limit of its own
        log.warning("the limit of open files stays at %d, which limits the connections: %s", soft, error)
