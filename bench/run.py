"""One run of the bench: starts servers, has them measured in turn, and collects the results.

Scenarios use a run for everything; they need to know nothing else of the bench.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from bench.generator import Generator, LoadError
from bench.results import Results, Sample
from bench.servers import GENERATOR_CPU, PEERS, TEMPORARY, directories, started
from bench.subject import Subject
from harness.servers import ServerError

Result = TypeVar("Result")


@dataclass(frozen=True)
class Fresh:
    """A server that is started for each measurement, and stopped after it."""

    name: str
    open: Callable[[], AbstractContextManager[Subject]]


@dataclass
class Run:
    """What a scenario is given.

    Args:
        peers: the servers that are asked for and installed; ratios are to the first.
        pairs: how often each server is measured, in turn.
        scale: the share of the full sizes and times.
        directory: servers keep their jobs in temporary directories in this one.
        tell: shows what is being done.
    """

    peers: Sequence[str]
    pairs: int
    scale: float
    directory: Path
    tell: Callable[[str], None]
    generator: Generator = field(default_factory=lambda: Generator(GENERATOR_CPU))
    results: Results = field(default_factory=Results)
    scenario: str = ""
    count: int = 0  # of loads so far
    failed: set[tuple[str, str, str, int]] = field(default_factory=set)  # scenario, server, work and size

    def sized(self, full: int) -> int:
        """A number of jobs, smaller in a quick run."""
        return max(int(full * self.scale), 100)

    def sizes(self, *full: int) -> list[int]:
        return sorted({self.sized(size) for size in full})

    def seconds(self, full: float = 1.5) -> float:
        """A duration, shorter in a quick run."""
        return max(full * self.scale, 0.15)

    def only(self, *peers: str) -> list[str]:
        """Those of the run's peers that a scenario is about."""
        return [peer for peer in self.peers if peer in peers]

    @property
    def beanstalk(self) -> list[str]:
        """Those of the run's peers that speak the beanstalk protocol."""
        return [peer for peer in self.peers if PEERS[peer].protocol == "beanstalk"]

    @property
    def own(self) -> list[str]:
        """Those of the run's peers that are this server."""
        return [peer for peer in self.peers if PEERS[peer].own]

    def fresh(
        self,
        peer: str,
        *options: str,
        name: str = "",
        keeps: bool = False,
        jobs: Path | None = None,
        config: str = "",
        **about: Any,
    ) -> Fresh:
        """A server with these options.

        Args:
            keeps: whether it keeps its jobs, in a directory.
            jobs: a directory that is copied there first.
            config: the text of its config file.
            about: more attributes of the subject.
        """

        @contextlib.contextmanager
        def opened() -> Iterator[Subject]:
            with contextlib.ExitStack() as stack:
                directory = None
                if keeps or peer == "redis-always":
                    directory = stack.enter_context(directories(self.directory))
                if jobs and directory:
                    shutil.copytree(jobs, directory, dirs_exist_ok=True)
                    os.sync()  # otherwise the server's first sync would also sync the copy
                more = []
                if config:
                    file = stack.enter_context(directories(TEMPORARY)) / "server.toml"
                    file.write_text(config)
                    more = ["--config", str(file)]
                subject = stack.enter_context(started(peer, [*options, *more], name=name, directory=directory))
                yield replace(subject, **about)

        return Fresh(name or peer, opened)

    @contextlib.contextmanager
    def together(self, *servers: Fresh | str) -> Iterator[list[Subject]]:
        """Start servers, which are stopped at the end. One that does not start is noted as missing."""
        with contextlib.ExitStack() as stack:
            running = []
            for server in servers:
                fresh = self.fresh(server) if isinstance(server, str) else server
                self.tell(f"starting {fresh.name}")
                with self.part(fresh.name):
                    running.append(stack.enter_context(fresh.open()))
            yield running

    def load(self, load: Callable[..., Result], server: Subject, **arguments: Any) -> Result:
        """Have the generator do a load; return its result."""
        self.count += 1
        return self.generator.do(load, server, **arguments)

    def tube(self) -> str:
        """The name of a tube that no load has used yet."""
        return f"b{self.count}"

    def add(self, server: Subject | Fresh, sample: Sample, work: str = "", size: int = 0) -> None:
        """Note a sample."""
        self.results.add(self.scenario, server.name, work, size, [sample])

    def in_turn(
        self,
        servers: Sequence[Subject | Fresh],
        measure: Callable[[Subject], Sample | None],
        work: str = "",
        size: int = 0,
        pairs: int = 0,
    ) -> None:
        """Measure the servers in turn, as often as the run has pairs. One that fails is noted as missing.

        Args:
            measure: returns a sample, or adds what it has measured itself.
            pairs: how often at the most; 0 if only the run says.
        """
        pairs = min(self.pairs, pairs or self.pairs)
        for pair in range(pairs):
            for server in servers:
                if (self.scenario, server.name, work, size) in self.failed:
                    continue
                self.tell(f"{work} {size or ''}, {pair + 1} of {pairs}: {server.name}".lstrip(" ,"))
                with self.part(server.name, work, size), server.open() as subject:
                    if (sample := measure(subject)) is not None:
                        self.add(server, sample, work, size)

    @contextlib.contextmanager
    def part(self, server: str, work: str = "", size: int = 0) -> Iterator[None]:
        """One part of a scenario: a server that fails in it is noted as missing, and has no figure there.

        The others are still measured.
        """
        try:
            yield
        except (LoadError, ServerError) as error:
            self.failed.add((self.scenario, server, work, size))
            if point := self.results.find(self.scenario, server, work, size):
                self.results.points.remove(point)
            where = ", ".join(filter(None, [work, f"{size:,}" if size else "", server]))
            self.results.missing[f"{self.scenario}: {where}"] = str(error)
