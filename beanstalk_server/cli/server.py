"""The command line: settings, log, signals, exit status."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Final

import sdnotify
import uvloop

from beanstalk_server.config import Config, ConfigError, parse_command_line
from beanstalk_server.server.server import Server
from beanstalk_server.server.start_error import StartError

BAD_OPTION = 5
"""The exit status for an option or value that cannot be; as beanstalkd's."""

JOURNAL_FAILED: Final = 74
"""The exit status when the journal has failed while serving (EX_IOERR of sysexits.h)."""

SWITCH_INTERVAL: Final = 0.0005
"""How long the event loop may go on while the binlog's thread waits for the interpreter, in seconds. A commit needs it
three times, and at Python's 5 ms another client's reply would wait for that while one client keeps the loop busy."""

STOPPING: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("beanstalk_server")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT, or a tool for the binlog; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "binlog":
        from beanstalk_server.cli import binlog  # the server need not have what the tools need

        return binlog.main(arguments[1:])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = parse_command_line(arguments, os.environ)
    except ConfigError as error:
        print(f"beanstalk-server: {error}", file=sys.stderr)
        return BAD_OPTION
    raise_file_limit()
    # Nothing here leaves reference cycles behind, and looking for them among a million jobs takes a second.
    gc.disable()
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(config))
    except StartError as error:
        print(f"beanstalk-server: {error}", file=sys.stderr)
        return error.status


async def serve(config: Config) -> int:
    """Serve until SIGTERM or SIGINT, or until the journal fails; return the exit status.

    SIGUSR1 starts drain mode, SIGHUP does nothing. Tells systemd when it is ready and when it stops.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    systemd = sdnotify.SystemdNotifier()
    server = Server(config)

    def interrupt(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        if server.restoring:  # which may take minutes, and the event loop is held meanwhile
            raise Interrupted

    for number in STOPPING:
        signal.signal(number, interrupt)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        await server.start()
    except Interrupted:
        log.info("stopped before it was ready")
        return 0
    for number in STOPPING:
        loop.add_signal_handler(number, stop.set)
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


class Interrupted(BaseException):
    """A signal that asks the server to stop came before it had started."""


def raise_file_limit() -> None:
    """Allow as many connections as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a hard limit of "unlimited", where the kernel has a limit of its own
        log.warning("no more than %d connections: the file limit cannot be raised: %s", soft, error)
