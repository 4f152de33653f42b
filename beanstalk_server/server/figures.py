"""What a server has to show to operators: the figures of all that it serves, and the condition that it is in.

A node of a cluster shows the shards that it leads, which it adds up. Must never know HTTP, or what figures look like as
text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final

from beanstalk_server.admin.exposition import Family
from beanstalk_server.admin.metrics import COMMITS, HELD, LATENESS, RAN, WAITED, Figures, Histogram, rows_of
from beanstalk_server.admin.scrapes import Table
from beanstalk_server.admin.site import Site
from beanstalk_server.queue.tubes import DEFAULT
from beanstalk_server.wire.commands import statistics_of
from beanstalk_server.wire.places import Places

if TYPE_CHECKING:
    from beanstalk_server.server.reception import Reception
    from beanstalk_server.server.server import Server
    from beanstalk_server.server.service import Service

TUBES: Final = "current-tubes"


class ServerFigures:
    """The figures of a server.

    Args:
        receptions: returns where clients come in, and operators.
    """

    def __init__(self, server: Server, receptions: Callable[[], list[Reception]]) -> None:
        self.site: Site  # which counts requests
        self._server = server
        self._receptions = receptions

    def tables(self) -> list[Table]:
        """The tubes. Each shard has a default tube, and one of them has that of the cluster."""
        services = self._services()
        return [Table(each.broker.tubes, each is services[0]) for each in services]

    def figures(self) -> Figures:
        """Everything else."""
        receptions = self._receptions()
        condition = self._server.condition()
        arrivals = [each.arrivals for each in receptions if each.arrivals is not None]
        return Figures(
            self._statistics(),
            is_ready=not condition.hindrance_of_cluster(),
            is_draining=condition.is_draining,
            forbidden=sum(each.connections.server_info.forbidden for each in self._services()),
            auth_failures=sum(each.failures for each in receptions),
            auth_timeouts=sum(each.timeouts for each in arrivals),
            pending_rejected=sum(each.displaced for each in arrivals),
            pending=sum(map(len, arrivals)),
            shortages=self._server.listeners.shortages,
            requests=self.site.requests,
            durations=self._durations(),
            shards=self._server.shard_figures(),
        )

    def _services(self) -> list[Service]:
        """What serves clients here, that with the default tube first; a node that leads nothing has an idle one."""
        services = self._server.services()
        if not services:
            return [self._server.service]
        first = Places(services[0].broker.stride).of_tube(DEFAULT.encode())
        return sorted(services, key=lambda each: each.broker.offset != first)

    def _statistics(self) -> dict[str, str]:
        """The rows of stats: sums over the shards that are led here, where each has its part."""
        services = self._services()
        rows, *others = [
            rows_of(statistics_of(service.broker, service.connections.server_info, service.scheduler.clock()))
            for service in services
        ]
        for found in others:
            from beanstalk_server.cluster.operations import is_summed  # only a node has others

            for key, value in found.items():
                if key not in rows:
                    rows[key] = value
                elif is_summed(key.encode()):
                    rows[key] = str(int(rows[key]) + int(value))
        rows[TUBES] = str(int(rows[TUBES]) + 1 - len(services))
        return rows

    def _durations(self) -> Mapping[Family, Histogram]:
        measured = self._server.measure()
        durations = measured.durations
        return {
            WAITED: durations.waited,
            RAN: durations.ran,
            LATENESS: durations.lateness,
            HELD: measured.held,
            COMMITS: measured.commits,
        }
