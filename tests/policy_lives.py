"""Lives of a binlog whose tubes have policies: those of lives.py, with tries, dead letters, held keys and more."""

from lives import Life
from virtual import RecordingClient

from beanstalk_server.queue.broker import Broker
from beanstalk_server.queue.groups import waits
from beanstalk_server.queue.job import BURIED, DELAYED, READY
from beanstalk_server.queue.outcome import DONE
from beanstalk_server.queue.policy import NO_POLICY, Attributes, Labels, Policy
from beanstalk_server.queue.units import SECOND

POLICIES = {
    "tube": Policy(max_tries=3, dead_tube="dead", backoff=2 * SECOND, ttl=30 * SECOND, key_hold=50 * SECOND),
    "dead": Policy(max_tries=2, key_hold=20 * SECOND),
}


class PolicyLife(Life):
    """A process whose tubes have policies."""

    met = frozenset()
    """What has happened in any of these lives: that the tests do not compare nothing with nothing."""

    def new_broker(self):
        broker = Broker(self.binlog, self.now, policy_of=lambda name: POLICIES.get(name, NO_POLICY))
        self.binlog.on_admission = broker.set_admission
        return broker

    def start(self):
        super().start()
        if self.broker.held:
            PolicyLife.met |= {"held"}
        for group in self.broker.groups.values():
            if group.has_begun:
                PolicyLife.met |= {"open" if group.members else "ended"}
        for job in self.broker.jobs.values():
            terms = job.terms()
            if terms is not None:
                PolicyLife.met |= {
                    name
                    for name, is_met in (
                        ("tries", terms.tries),
                        ("reason", terms.reason),
                        ("letter", terms.origin and job.tube.name == "dead"),
                        ("at", terms.at),
                        ("ttl", terms.ttl and job.state == READY),
                        ("waits", waits(job)),
                        ("released", job.state == READY and terms.labels is not None and terms.labels.after),
                    )
                    if is_met
                }

    def command(self):
        rng, broker, client = self.rng, self.broker, self.client
        broker.set_wall_offset(self.clocks.offset)
        choice = rng.randrange(14)
        if choice < 5:
            super().command()
            return
        self.now += rng.randrange(8 * SECOND)
        broker.advance(self.now)
        if choice < 8:
            broker.use(client, rng.choice(("default", "tube", "dead")))
            broker.put_with(
                client, self.attributes(), 1, 0, SECOND, rng.randbytes(rng.choice((0, 90))), self.now, self.now
            )
        elif choice == 8:
            broker.redrive(client, "dead", rng.randrange(1, 4), self.now)
        elif choice == 13:
            broker.cancel_group(client, rng.choice("gh"))
        elif choice == 12:
            tubes = ("default", "tube", "dead", "else")
            state = rng.choice((READY, DELAYED, BURIED))
            told = broker.move(client, rng.choice(tubes), state, rng.choice(tubes), rng.randrange(1, 4), self.now)
            if told == DONE and client.answers[-1][1]:
                PolicyLife.met |= {"moved"}
        elif choice == 9:
            broker.clear(client, rng.choice(("dead", "tube", "default")))
        else:
            worker = RecordingClient(broker)
            for name in ("tube", "dead"):
                broker.watch(worker, name)
            for _ in range(rng.randrange(4)):
                broker.reserve(worker, 0, self.now)
            if choice == 10:
                for job in list(broker.jobs.values()):
                    if job.client is worker and rng.random() < 0.7:
                        assert broker.release(worker, job.id, 1, 0, self.now) != DONE or job.client is None
            broker.disconnect(worker, self.now)

    def attributes(self):
        rng = self.rng
        key = f"k{rng.randrange(8)}" if rng.random() < 0.6 else ""
        group, after = rng.choice((("", ""), ("", ""), ("g", ""), ("h", ""), ("", "g"), ("h", "g")))
        labels = (
            Labels(group=group, after=after, after_waits=bool(after) and rng.random() < 0.3) if group or after else None
        )
        at = 0 if after else rng.choice((0, 0, self.now + self.clocks.offset + rng.randrange(-9, 99) * SECOND))
        return Attributes(
            key=key,
            replaces=bool(key) and rng.random() < 0.3,
            at=at,
            labels=labels,
            max_tries=rng.choice((0, 0, 1, 3)),
            backoff=rng.choice((0, 0, SECOND)),
            ttl=rng.choice((0, 0, 9 * SECOND, 900 * SECOND)),
            key_hold=rng.choice((0, 0, 40 * SECOND)) if key else 0,
            once=rng.choice(("", "", f"t{rng.randrange(9)}")),
            once_ttl=rng.choice((SECOND, 40 * SECOND)),
        )
