"""A process with a binlog: a broker whose journal is in a directory, and a client of it."""

from checking import check_broker
from memory_disk import at_once
from virtual import RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.journal import ALL
from beanstalk_server.queue.policy import no_policies
from beanstalk_server.queue.units import SECOND
from beanstalk_server.storage.binlog import Binlog
from harness.waiting import eventually_async


class BinlogProcess:
    """One process, from its start on a directory. It fails a test that commits after the binlog has failed.

    Args:
        now: what its clock says.
        options: of the binlog.
    """

    def __init__(self, directory, now=SECOND, policy_of=no_policies, **options):
        self.directory, self.now, self.failures = directory, now, []
        self.binlog = Binlog(directory, **{"in_thread": at_once, "clock": lambda: self.now} | options)
        self.binlog.on_failure = self.failures.append
        self.broker = Broker(self.binlog, now, policy_of=policy_of)
        self.binlog.on_admission = self.broker.set_admission
        self.broker.restore(0, now)
        self.client = RecordingClient(self.broker)

    @property
    def log(self):
        return self.binlog._log

    async def settle(self):
        """Let the upkeep end."""
        await eventually_async(lambda: self.binlog._upkeep is None, "the upkeep ends")

    async def commit(self):
        """Commit, and let the upkeep end."""
        await self.binlog.commit()
        await self.settle()
        assert not self.failures, self.failures

    async def room(self, least=ALL):
        """Wait until the binlog admits this much; return whether it ever does."""
        for _ in range(200):
            if self.binlog.admits <= least:
                return True
            await self.commit()
            self.now += SECOND  # after which a full disk is tried again
        return False

    def check(self):
        self.log.check()
        check_broker(self.broker)
