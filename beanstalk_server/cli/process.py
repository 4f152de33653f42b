"""Runs a server as a process: sets up its event loop, its log and its signals, and returns its exit status.

SIGTERM and SIGINT stop the server, SIGUSR1 starts drain mode, SIGHUP reads the configuration again, or stops a server
whose terminal is gone. The process notifies systemd when the server is ready, while it reloads, when it stops, and
regularly while its event loop turns.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Collection
from time import monotonic_ns
from typing import Final

import sdnotify
import uvloop

from beanstalk_server.cli.command_line import odd_variables
from beanstalk_server.cli.logs import log_start_failure, start_log
from beanstalk_server.cli.watchdog import watchdog_of
from beanstalk_server.events import event
from beanstalk_server.queue.journal import RestoreInterruptedError
from beanstalk_server.server.host import Host
from beanstalk_server.server.start_error import JOURNAL_FAILED, StartError
from beanstalk_server.servers import server_of
from beanstalk_server.settings.declaration import ConfigError
from beanstalk_server.settings.options import Config

SWITCH_INTERVAL: Final = 0.0005
"""Seconds for which the event loop may keep the interpreter while the binlog's thread waits for it. A commit needs the
interpreter three times: with Python's default of 5 ms, one client that keeps the loop busy would delay the replies to
all others by that much, three times."""

FEWEST_FILES: Final = 64
"""The lowest limit on open files. The process itself has some 20 open, and JOURNALED_HEADROOM is kept free."""

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)

log = logging.getLogger("beanstalk_server")


def run(config: Config, read_config: Callable[[], Config] | None = None, held: Collection[int] = ()) -> int:
    """Run a server until a signal stops it; return the exit status.

    Args:
        read_config: reads the configuration again, when SIGHUP asks for it; it may raise a ConfigError. It is called in
            a thread.
        held: signals that wait until the server has handlers for them.
    """
    start_log(config.log_format, config.log_level)
    for warning in odd_variables(os.environ):
        log.warning("%(warning)s", event("configuration-warning", warning=warning))
    sys.setswitchinterval(SWITCH_INTERVAL)
    try:
        raise_file_limit()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(config, read_config, held))
    except StartError as error:
        log_start_failure(str(error).splitlines(), error.status, config.log_format)
        return error.status


class Reloads:
    """Reloads the configuration after SIGHUP, one reload after the other; the last reads the files as they are then.

    Args:
        notify: notifies systemd of the state of the server (Type=notify-reload of systemd.service(5)).
    """

    def __init__(self, server: Host, read_config: Callable[[], Config], notify: Callable[[str], None]) -> None:
        self._server = server
        self._read_config = read_config
        self._notify = notify
        self._config = server.config  # in effect, as far as a reload changes it
        self._asked = False  # again, since the reload that is under way has begun to read
        self._task: asyncio.Task[None] | None = None

    def ask(self) -> None:
        """Reload, or once more after the reload that is under way."""
        self._asked = True
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._work())

    async def _work(self) -> None:
        while self._asked:
            self._asked = False
            self._notify(f"RELOADING=1\nMONOTONIC_USEC={monotonic_ns() // 1000}")
            try:
                await self._reload()
            except ConfigError as error:
                for mistake in str(error).splitlines():
                    log.error("SIGHUP: not reloaded: %(mistake)s", event("reload-refused", mistake=mistake))
            except Exception:
                log.exception("SIGHUP: the reload failed; this is a bug in the server", event("bug-in-reload"))
            self._notify("READY=1")
        self._task = None

    async def _reload(self) -> None:
        config = await asyncio.get_running_loop().run_in_executor(None, self._read_config)
        if config == self._config and not (config.listeners or config.token_file or config.tls_cert):
            log.info("SIGHUP: ignored, because the server has nothing to reload", event("reload-ignored"))
        else:
            await self._server.reload(config)
            self._config = config


async def serve(config: Config, read_config: Callable[[], Config] | None = None, held: Collection[int] = ()) -> int:
    """Serve until a signal arrives or the journal fails; return the exit status."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    systemd = sdnotify.SystemdNotifier()
    watchdog = watchdog_of(os.environ, systemd.notify)
    server = server_of(config)
    on_terminal = has_terminal()

    def stop_starting(*_: object) -> None:
        loop.call_soon_threadsafe(stop.set)
        server.interrupt()

    for stop_signal in STOP_SIGNALS:
        signal.signal(stop_signal, stop_starting)
    early: list[int] = []  # signals before start() returns, when clients may be served already
    for number in held:
        signal.signal(number, lambda number, _: early.append(number))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {*held, *STOP_SIGNALS})
    try:
        await server.start()
    except RestoreInterruptedError:
        log.info("stopped before the server was ready", event("start-interrupted"))
        return 0
    for stop_signal in STOP_SIGNALS:
        loop.add_signal_handler(stop_signal, stop.set)
    loop.add_signal_handler(signal.SIGUSR1, server.drain)
    reloads = Reloads(server, read_config or (lambda: config), systemd.notify)

    def hang_up() -> None:
        if on_terminal and not has_terminal():
            stop.set()
        else:
            reloads.ask()

    loop.add_signal_handler(signal.SIGHUP, hang_up)
    if signal.SIGUSR1 in early:
        server.drain()
    systemd.notify("READY=1")
    if signal.SIGHUP in early:
        hang_up()
    if watchdog is not None:
        watchdog.start(loop)
    waits = [loop.create_task(each.wait()) for each in (stop, server.failed)]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    systemd.notify("STOPPING=1")
    if watchdog is not None:
        watchdog.stop()
    for wait in waits:
        wait.cancel()
    await server.stop()
    failure = server.failure
    if failure is None:
        return 0
    return failure.status if isinstance(failure, StartError) else JOURNAL_FAILED


def has_terminal() -> bool:
    """Whether a standard stream is a terminal that is still there."""
    return any(os.isatty(number) for number in range(3))


def raise_file_limit() -> None:
    """Raise the limit on open files, and so on connections, as far as the system allows.

    Raises:
        StartError: it is too low for a server.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:  # the kernel may refuse even the hard limit, if that is "unlimited"
        log.warning(
            "cannot raise the limit on open files above %(files)d, which also limits connections: %(error)s",
            event("file-limit-kept", files=soft, error=error),
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < FEWEST_FILES:
        raise StartError(
            f"the limit on open files is {limit}, but must be at least {FEWEST_FILES}: "
            "raise it with ulimit -Hn, or with LimitNOFILE= in the systemd unit"
        )
