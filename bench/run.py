"""One run of the bench: starts servers, has them measured in turn, and collects the results.

Scenarios use a run for everything; they need to know nothing else of the bench.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bench.doors import Door
from bench.generator import Generator, LoadError
from bench.results import Results
from bench.samples import Sample
from bench.servers import PEERS, Server, directories
from harness.servers import ServerError

BACKLOG = (10_000_000, 10_000)
"""The full size of the backlog: jobs, and bytes of each."""


AnyServer = TypeVar("AnyServer", Server, Door, Server | Door)


@dataclass(frozen=True)
class Variant:
    """A server and its options, as a scenario asks for it."""

    name: str
    peer: str
    options: tuple[str, ...] = ()
    keeps: bool = False  # whether it keeps its jobs, in a directory
    jobs: Path | None = None  # a directory that is copied there first


@dataclass
class Run:
    """What a scenario is given.

    Args:
        peers: the servers that are asked for and installed; ratios are to the first.
        pairs: how often each server is measured, in turn.
        scale: the share of the full sizes and times.
        directory: servers keep their jobs in temporary directories in this one.
        backlog: how many jobs of how many bytes the backlog has.
        tell: shows what is being done.
    """

    peers: Sequence[str]
    pairs: int
    scale: float
    directory: Path
    tell: Callable[[str], None]
    generator: Generator = field(default_factory=Generator)
    results: Results = field(default_factory=Results)
    scenario: str = ""
    backlog: tuple[int, int] = BACKLOG
    count: int = 0  # of loads so far
    failed: set[tuple[str, str, str, int]] = field(default_factory=set)  # scenario, server, work and size

    def sized(self, full: int) -> int:
        """A number of jobs, smaller in a quick run."""
        return max(int(full * self.scale), 100)

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
        return self.only("ours", "interpreted")

    @contextlib.contextmanager
    def servers(self, *variants: Variant | str) -> Iterator[list[Server]]:
        """Start servers, which are always stopped at the end.

        One that does not start is noted as missing. One that has failed in all of the scenario is not started again.
        """
        with contextlib.ExitStack() as stack:
            started = []
            for variant in variants:
                asked = variant if isinstance(variant, Variant) else Variant(variant, variant)
                if self.has_failed(asked.name):
                    continue
                directory = None
                if asked.keeps or asked.peer == "redis-always":
                    directory = stack.enter_context(directories(self.directory))
                if asked.jobs and directory:
                    shutil.copytree(asked.jobs, directory, dirs_exist_ok=True)
                    os.sync()  # otherwise the server's first sync would also sync the copy
                self.tell(f"starting {asked.name}")
                try:
                    server = Server(asked.peer, asked.options, name=asked.name, directory=directory)
                except ServerError as error:
                    self.results.missing[f"{self.scenario}: {asked.name}"] = str(error)
                    continue
                stack.callback(server.stop)
                started.append(server)
            yield started

    def load(self, load: str, server: Server | Door, **arguments: Any) -> Any:
        """Have the generator do a load; return its sample."""
        self.count += 1
        return self.generator.do(load, server, **arguments)

    def tube(self) -> str:
        """The name of a tube that no load has used yet."""
        return f"b{self.count}"

    def add(self, server: Server | Door, sample: Sample, work: str = "", size: int = 0) -> None:
        """Note a sample."""
        self.results.add(self.scenario, server.name, work, size, [sample])

    def in_turn(
        self, servers: Sequence[AnyServer], measure: Callable[[AnyServer], Sample], work: str = "", size: int = 0
    ) -> None:
        """Measure the servers in turn, as often as the run has pairs. One that fails is noted as missing."""
        for pair in range(self.pairs):
            for server in servers:
                if self.has_failed(server.name, work, size):
                    continue
                self.tell(f"{work or server.name} {size or ''}, {pair + 1} of {self.pairs}: {server.name}")
                with self.part(server.name, work, size):
                    self.add(server, measure(server), work, size)

    @contextlib.contextmanager
    def part(self, server: str, work: str = "", size: int = 0) -> Iterator[None]:
        """One part of a scenario, or all of it: a server that fails in it is noted as missing, and has no figure there.

        The others are still measured.
        """
        try:
            yield
        except (LoadError, ServerError) as error:
            self.failed.add((self.scenario, server, work, size))
            self.results.forget(self.scenario, server, work, size)
            where = ", ".join(filter(None, [work, f"{size:,}" if size else "", server]))
            self.results.missing[f"{self.scenario}: {where}"] = str(error)

    def has_failed(self, server: str, work: str = "", size: int = 0) -> bool:
        """Whether a server has failed in this part of the scenario, and need not be tried again."""
        return (self.scenario, server, work, size) in self.failed
