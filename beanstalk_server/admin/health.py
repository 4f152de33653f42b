"""Health of a server, for load balancers and supervisors: whether clients are served, and why not."""

from __future__ import annotations

from typing import Final, NamedTuple

OK: Final = "ok"


class Condition(NamedTuple):
    """What a server does at a moment."""

    is_starting: bool = False
    """It recovers its binlog, or has not begun to serve for another reason."""
    is_draining: bool = False
    """New jobs are refused, or another node is to lead."""
    is_stranded: bool = False
    """A node of a cluster that reaches no leader of a shard."""
    is_suspended: bool = False
    """A node that leads a shard, and could not renew its lease in time."""
    is_standby: bool = False
    """A node of a cluster that leads no shard."""
    has_failed: bool = False
    is_stopping: bool = False

    def hindrance(self) -> str:
        """Why clients are not served by this process itself; "" if they are."""
        return self.hindrance_of_cluster() or ("standby: another node leads" if self.is_standby else "")

    def hindrance_of_cluster(self) -> str:
        """Why clients that connect are served neither here nor through the leaders; "" if they are."""
        if self.has_failed:
            return "failed: no more changes are acknowledged"
        if self.is_stopping:
            return "stopping"
        if self.is_starting:
            return "starting: recovering the jobs"
        if self.is_draining:
            return "draining: refuses new jobs"
        if self.is_suspended:
            return "suspended: the lease was not renewed in time"
        if self.is_stranded:
            return "standby: cannot reach a leader"
        return ""
