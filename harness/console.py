"""Runs a server with sample jobs and its console, until Ctrl-C: `make console`.

Workers run tasks, some of which fail; a scheduler plans; a tube is paused, one has no worker (harness/shop.py).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from harness.servers import INTERPRETED, OURS, ROOT, Process, ServerError, accepts, command, environment_of, unused_port

PORT: Final = 11380
"""The port of the console; if it is taken, an unused one replaces it."""

POLICIES: Final = """
[[tube]]
match = "newsletter"
ttl = "1m"
dead-tube = "newsletter-dead"

[[tube]]
match = "invoices"
max-tries = 1
dead-tube = "invoices-dead"
"""

BEANSTALK: Final = "import sys; from beanstalk_client.cli.main import main; sys.exit(main())"

END_WITHIN: Final = 5.0


class Demonstration(NamedTuple):
    """A server, the URL of its console, and the processes beside the server; the console's is the first."""

    server: Process
    url: str
    processes: Sequence[subprocess.Popen[bytes]]


@contextlib.contextmanager
def demonstration(
    program: str = OURS, port: int = PORT, options: Sequence[str] = (), *, work: bool = True
) -> Iterator[Demonstration]:
    """Run a server, a console with these options, and work for them.

    Args:
        port: of the console; 0 or one that is taken: any.

    Raises:
        ServerError: something does not start.
    """
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="beanstalk-console-")))
        config = directory / "policies.toml"
        config.write_text(POLICIES)
        http, listen = unused_port(), port if port and not accepts(port) else unused_port()
        line = [*command(program), "--config", str(config), "-p", "0", "-l", "127.0.0.1", "--http", f"127.0.0.1:{http}"]
        server = Process(program, line)
        stack.callback(server.stop)
        address = "{}:{}".format(*server.address)
        environment = environment_of(program, {"SHOP_SERVER": address})
        processes: list[subprocess.Popen[bytes]] = []
        stack.callback(_end, processes)

        def run(*words: str, errors: int | None = None) -> None:
            line = [sys.executable, *words]
            processes.append(subprocess.Popen(line, cwd=ROOT, env=environment, stderr=errors, start_new_session=True))

        url = f"http://127.0.0.1:{listen}/"
        run("-c", BEANSTALK, "console", address, "--listen", f"127.0.0.1:{listen}", "--metrics",
            f"http://127.0.0.1:{http}", *options)  # fmt: skip
        if work:
            run("-m", "beanstalk_client.worker", "harness.shop:tasks", "--schedule", errors=subprocess.DEVNULL)
            run("-m", "harness.shop", address)
        until = time.monotonic() + 30
        while not accepts(listen):
            if processes[0].poll() is not None or time.monotonic() > until:
                raise ServerError("the console did not start")
            time.sleep(0.05)
        yield Demonstration(server, url, processes)


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(END_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make console", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--port", type=int, default=PORT, help="port of the console (default: %(default)s)")
    parser.add_argument("--sources", action="store_true", help="run the sources, not the installed packages")
    parser.add_argument("options", nargs="*", help="options of the console, after --")
    asked = parser.parse_args(arguments)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with demonstration(INTERPRETED if asked.sources else OURS, asked.port, asked.options) as shown:
            print(f"console  {shown.url}", flush=True)
            print("server   {}:{}".format(*shown.server.address), flush=True)
            print("Press Ctrl-C to stop everything.", flush=True)
            while shown.server.status is None and shown.processes[0].poll() is None:
                time.sleep(0.2)
            print("the server or the console has exited", file=sys.stderr)
            return 1
    except ServerError as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped")
        return 0


if __name__ == "__main__":
    os.environ.pop("BEANSTALK_SERVER", None)
    sys.exit(main())
