"""The generator: a separate process that generates the loads, so that the bench itself disturbs no measurement.

The bench sends it one line of JSON for each load over a pipe, and gets one line with the sample back.

    {"load": "cycle", "subject": {"port": 11300, "pid": 42, "protocol": "beanstalk"}, "arguments": {"depth": 1, …}}
    {"sample": {"rate": 40000.0, "cpu": 12.3, …}}
"""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from typing import Any

from bench import servers
from bench.doors import Door
from bench.loads import LOADS, pin
from bench.subject import REPLY_WITHIN, Subject
from harness.servers import ROOT


class LoadError(Exception):
    """A load failed; the message says why."""


class Generator:
    """The generator as the bench sees it: started on first use, ended by `stop`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def do(self, load: str, server: servers.Server | Door, **arguments: Any) -> Any:
        """Do a load; return its sample, or samples.

        Raises:
            LoadError: it could not be done.
        """
        if self._process is None:
            command = [sys.executable, "-m", "bench.generator", str(servers.GENERATOR_CPU)]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=ROOT,
                start_new_session=True,
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        subject: dict[str, Any] = {"port": server.port, "pid": server.pid, "protocol": server.protocol}
        if isinstance(server, Door):
            subject |= {"also": list(server.also), "ca": server.ca, "cert": server.cert, "engine": server.engine}
        json.dump({"load": load, "subject": subject, "arguments": arguments}, self._process.stdin)
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline() or '{"error": "the generator has ended"}')
        if "error" in answer:
            raise LoadError(f"{load} on {server.name}: {answer['error']}")
        return answer["sample"]

    def stop(self) -> None:
        """Kill it, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def main() -> None:
    pin(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the bench ends it
    gc.disable()  # a search for reference cycles would count as latency
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = {"sample": LOADS[asked["load"]](Subject(**asked["subject"]), **asked["arguments"])}
        except BlockingIOError:
            answer = {"error": f"no reply within {REPLY_WITHIN} s"}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
        gc.collect()


if __name__ == "__main__":
    main()
