"""What a server has to show to operators: the figures of all that it serves, and the condition that it is in.

A node of a cluster shows the shards that it leads, which it adds up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from beanstalk_server.admin.exposition import Family
from beanstalk_server.admin.metrics import COMMITS, HELD, LATENESS, RAN, WAITED, Figures
from beanstalk_server.admin.scrapes import Table
from beanstalk_server.admin.site import Site
from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.histogram import Histogram
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.tubes import DEFAULT
from beanstalk_server.tube_names import shard_of
from beanstalk_server.wire.commands import statistics_of
from beanstalk_server.wire.server_info import ServerInfo
from beanstalk_server.wire.yaml import Rows, StatisticsSum

if TYPE_CHECKING:
    from beanstalk_server.admin.health import Condition
    from beanstalk_server.admin.metrics import ShardFigures
    from beanstalk_server.server.front.listeners import Listeners
    from beanstalk_server.server.idle import IdleSweeps
    from beanstalk_server.server.measurements import Measurements
    from beanstalk_server.server.service import Service
    from beanstalk_server.server.turns import Turns
    from beanstalk_server.settings.options import Config


class Shown(Protocol):
    """What has figures: a server, or a node (host.py)."""

    config: Config
    idle: IdleSweeps
    info: ServerInfo
    listeners: Listeners
    turns: Turns

    def services(self) -> list[Service]:
        """What serves clients."""

    def condition(self) -> Condition:
        """What it does at present."""

    def measure(self) -> Measurements:
        """How long things take."""

    def shard_figures(self) -> list[ShardFigures]:
        """Its shards, if there are any."""


class HostFigures:
    """The figures of a server, or of a node.

    Args:
        http_listeners: those for operators.
    """

    def __init__(self, host: Shown, http_listeners: Listeners) -> None:
        self.site: Site  # which counts requests
        self._host = host
        self._http_listeners = http_listeners
        self._nothing: Broker | None = None  # what a node shows that leads nothing

    def tables(self) -> list[Table]:
        """The tubes. Each shard has a default tube, and one of them has that of the cluster."""
        brokers = [broker for broker, _ in self._led()]
        return [Table(each, each is brokers[0]) for each in brokers]

    def figures(self) -> Figures:
        """Everything else."""
        listeners = (self._host.listeners, self._http_listeners)
        condition = self._host.condition()
        pending = [each.pending for each in listeners if each.pending is not None]
        return Figures(
            self._statistics(),
            is_ready=not condition.hindrance_of_cluster(),
            is_draining=condition.is_draining,
            forbidden=sum(info.forbidden for _, info in self._led()),
            auth_failures=sum(each.failures for each in listeners),
            auth_timeouts=sum(each.timeouts for each in pending),
            pending_rejected=sum(each.displaced for each in pending),
            pending=sum(map(len, pending)),
            malformed_puts=self._host.listeners.malformed_puts,
            shortages=self._host.listeners.shortages,
            idle_closed=self._host.idle.closed,
            requests=self.site.requests,
            durations=self._durations(),
            shards=self._host.shard_figures(),
        )

    def _led(self) -> list[tuple[Broker, ServerInfo]]:
        """What is served here, that with the default tube first."""
        services = self._host.services()
        if not services:
            if self._nothing is None:
                self._nothing = Broker(Journal(), self._host.turns.clock())
            return [(self._nothing, self._host.info)]
        first = shard_of(DEFAULT.encode(), services[0].broker.stride)
        services.sort(key=lambda each: each.broker.offset != first)
        return [(each.broker, each.connections.server_info) for each in services]

    def _statistics(self) -> Rows:
        """The rows of stats: sums over the shards that are led here, where each has its part."""
        now = self._host.turns.clock()
        total = StatisticsSum()
        for number, (broker, info) in enumerate(self._led()):
            total.add(statistics_of(broker, info, now), is_first=not number)
        return total.rows()

    def _durations(self) -> Mapping[Family, Histogram]:
        measured = self._host.measure()
        durations = measured.durations
        return {
            WAITED: durations.waited,
            RAN: durations.ran,
            LATENESS: durations.lateness,
            HELD: measured.held,
            COMMITS: measured.commits,
        }
