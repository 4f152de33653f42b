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

import sdnotify
import uvloop

from beanstalk_server.config import Config, ConfigError, parse_command_line
from beanstalk_server.server import Server
from beanstalk_server.startup import StartError

BAD_OPTION = 5
"""The exit status for an option or value that cannot be; as beanstalkd's."""

log = logging.getLogger("beanstalk_server")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the server until SIGTERM or SIGINT, or a tool for the binlog; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "binlog":
        from beanstalk_server import binlog_cli  # the server need not have what the tools need

        return binlog_cli.main(arguments[1:])
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        config = parse_command_line(arguments, os.environ)
    except ConfigError as error:
        print(f"beanstalk-server: {error}", file=sys.stderr)
        return BAD_OPTION
    raise_file_limit()
    # Nothing here leaves reference cycles behind, and looking for them among a million jobs takes a second.
    gc.disable()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(config))
    except StartError as error:
        print(f"beanstalk-server: {error}", file=sys.stderr)
        return error.status
    return 0


async def serve(config: Config) -> None:
    """Serve until SIGTERM or SIGINT; SIGUSR1 starts drain mode. Tells systemd when it is ready and when it stops."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    systemd = sdnotify.SystemdNotifier()
    server = Server(config)
    loop.add_signal_handler(signal.SIGUSR1, server.drain)
    async with server:
        systemd.notify("READY=1")
        await stop.wait()
        systemd.notify("STOPPING=1")


def raise_file_limit() -> None:
    """Allow as many connections as the system lets this process have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # a hard limit of "unlimited", where the kernel has a limit of its own
        log.warning("no more than %d connections: the file limit cannot be raised: %s", soft, error)
