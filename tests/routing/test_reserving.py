"""A reserve over several shards: one reply whatever happens in which order, and every job where it has to be."""

import pytest
from orders import ShardedCluster, explore, frozen

from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.units import SECOND
from beanstalk_server.routing.reserving import reserved_ids

TIMEOUT = 5
PUT = "put"
GRAB = "grab"  # another client reserves the best job
TICK = "tick"  # the shard's clock goes on, beyond the timeout
HANG_UP = "hang up"
CALL_OFF = "call off"
LOSE = "lose"
HAND_OVER = "hand over"
LEAD = "lead"


def parse(data):
    """The replies to reserves, with nothing behind the last of them."""
    found = []
    while data:
        first = data[: data.index(b"\r\n") + 2]
        jobs = int(first.split()[1]) if first.startswith(b"RESERVED_BATCH") else 1
        size = len(first) if first.startswith(b"RESERVED_BATCH") else 0
        if first.startswith(b"RESERVED"):
            for _ in range(jobs):
                end = data.index(b"\r\n", size) + 2
                size = end + int(data[size:end].split()[2]) + 2
        else:
            size = len(first)
        found.append(data[:size])
        data = data[size:]
    return found


class Scenario:
    """A client that watches a tube of each shard and gives commands, while other things happen.

    Args:
        shards: how many.
        commands: what the client sends, at once.
        actions: what happens besides, each once, at any time.
        ready: the shards that have a ready job at the beginning.
        near: the node that has the client leads the shards, and the client has reserved before.
    """

    def __init__(self, shards, commands, actions, ready=(), near=False):
        self.cluster = ShardedCluster(shards)
        self.worlds = self.cluster.worlds
        self.neighbours = []
        for world in self.worlds:
            neighbour = world.connect()
            tube = self.cluster.tube(world.shard)
            neighbour.send(b"use %b\r\nwatch %b\r\nignore default\r\n" % (tube, tube))
            self.neighbours.append(neighbour)
        self.jobs = {}  # by id: how often it has been reserved for good
        self.grabbed = set()
        self.told = {}  # by id: the place that has granted the job to the client, who knows it
        self.lost = [False] * shards
        self.ticked = [False] * shards
        self.has_hung_up = False
        self.client = self.cluster.connect()
        watches = b"".join([b"watch %b\r\n" % self.cluster.tube(shard) for shard in range(shards)])
        assert self.cluster.send(self.client, watches + b"ignore default\r\n").count(b"WATCHING") == shards + 1
        if near:
            assert self.cluster.send(self.client, b"reserve-with-timeout 0\r\n") == b"TIMED_OUT\r\n"
            for world in self.worlds:
                world.is_near = True
        for shard in ready:
            self._put(shard)
        self.first = set(self.jobs)
        self.commands = len(commands)
        self.waits_for_ever = b"reserve" in commands
        self.replies = []
        self.wanted = tuple(actions)
        self.actions = list(actions)
        self.client.send(b"".join([command + b"\r\n" for command in commands]))

    # What can happen

    def enabled(self):
        events = self.cluster.messages()
        eventful = {shard for _, shard in (action for action in self.actions if len(action) == 2)}
        for event in events:
            # What arrives at a shard to which nothing else happens any more commutes with whatever happens elsewhere.
            if event[2] == "down" and event[1] not in eventful:
                return [event]
        led = [world.is_led for world in self.worlds]
        for action in self.actions:
            if action[0] in (LOSE, HAND_OVER, PUT, GRAB) and not led[action[1]]:
                continue
            events.append(action)
        if not events and all(self.ticked):
            events = [(TICK, shard) for shard in range(len(self.worlds)) if self._has_deadline(shard)]
        events += [(LEAD, shard) for shard, is_led in enumerate(led) if not is_led]
        return list(dict.fromkeys(events))

    def do(self, event):
        if event[0] == LEAD:
            self.cluster.lead(event[1])
        elif isinstance(event[0], str):
            if event in self.actions:
                self.actions.remove(event)
            self._act(*event)
        else:
            self.cluster.deliver(event)
        self._read()

    def _act(self, what, shard=0):
        if what == PUT:
            self._put(shard)
        elif what == GRAB:
            for job_id in reserved_ids(self.neighbours[shard].send(b"reserve-with-timeout 0\r\n")):
                self.jobs[job_id] += 1
                self.grabbed.add(job_id)
        elif what == TICK:
            self.ticked[shard] = True
            self.client.now = max(self.client.now, self.worlds[shard].now + (TIMEOUT + 1) * SECOND)
            self.worlds[shard].sleep(TIMEOUT + 1)
        elif what == HANG_UP:
            self.has_hung_up = True
            self.client.hang_up()
        elif what == CALL_OFF:
            self.client.send(b"cancel-reserve\r\n")
        elif what == LOSE:
            self.lost[shard] = True
            self.cluster.lose(shard)
        else:
            self.lost[shard] = True
            self.cluster.hand_over(shard)

    def _has_deadline(self, shard):
        """Whether the client waits there for a while: the message that began it may have come after a tick."""
        return any(place.session is not None and place.session.is_linked() for place in self.worlds[shard].places)

    def _put(self, shard):
        self.jobs[self.neighbours[shard].put(b"%d" % shard, priority=shard, ttr=100)] = 0

    def _read(self):
        arrived, self.client.arrived = self.client.arrived, b""
        for reply in parse(arrived):
            self.replies.append(reply)
            for job_id in reserved_ids(reply):
                assert job_id not in self.told or not self.told[job_id].is_open, "one job twice"
                self.told[job_id] = self.client.places[job_id % len(self.worlds)]
                self.jobs[job_id] += 1

    def state(self):
        return (
            tuple(self.actions),
            tuple(self.replies),
            frozen(self.client.router),
            tuple([self._state_of(world) for world in self.worlds]),
            tuple([(shard, place.is_open, *place.up) for shard, place in self.client.places.items()]),
        )

    def _state_of(self, world):
        sessions = [
            (
                session.pending and session.pending.name,
                session.waiting,
                session.deadline if session.is_linked() else 0,
                session.is_stopped,
                session.may_wait,
                session.input_ended,
                session.closed,
                frozenset(job.id for job in session.reserved),
            )
            for session in (place.session for place in world.places)
            if session is not None
        ]
        jobs = [(job.id, job.state, job.reserves) for job in world.broker.jobs.values()]
        queues = [tuple(map(str, place.down)) for place in world.places]
        return world.is_led, tuple(sessions), tuple(jobs), tuple(queues)

    # What must hold

    def check(self):
        assert len(self.replies) <= self.commands, "more replies than commands"
        if self.cluster.messages():
            return
        self.cluster.check()
        ours = self._reserved_here()
        for world in self.worlds:
            for job in world.broker.jobs.values():
                is_told = job.id in self.told and self.told[job.id].is_open
                if job.id in self.grabbed:
                    assert job.client is self.neighbours[world.shard].session
                elif is_told and not self.client.router.closed:
                    assert job.id in ours, f"the client was told that it has {job.id}"
                else:
                    assert STATES[job.state] == "ready", f"job {job.id} is {STATES[job.state]}, and nobody was told so"
                if not self.lost[world.shard] and not self.client.router.closed:
                    assert job.reserves == self.jobs[job.id], "what was undone counts"
        called_off = [reply for reply in self.replies if reply == b"CANCELLED\r\n"]
        assert len(called_off) <= ((CALL_OFF,) in self.wanted and (CALL_OFF,) not in self.actions), (
            "nobody called it off"
        )
        if called_off:
            is_kept = [not lost for lost in self.lost]
            missed = {job_id for job_id in self.first - self.grabbed - set(self.told) if is_kept[job_id % len(is_kept)]}
            assert not missed, "it was called off before it had looked everywhere"
        if len(self.replies) == self.commands:
            assert not any(world.broker.waiting for world in self.worlds), "something waits for nobody"
            assert self.client.router.closed == self.has_hung_up
            return
        assert not self.client.router.closed, "a reply is missing"
        all_led = all(world.is_led for world in self.worlds)
        if (CALL_OFF,) in self.wanted and self.commands == 1:
            assert (CALL_OFF,) in self.actions, "it waits though it was called off"
        for world in self.worlds:
            if world.is_led and not self.has_hung_up:
                has_timed_out = all_led and any(self.ticked) and not self.waits_for_ever
                assert has_timed_out or not world.broker.ready, "it waits, and a job is ready"
        if all_led:
            assert not self.has_hung_up, "who has hung up waits for nothing"
            has_deadline = any(map(self._has_deadline, range(len(self.worlds))))
            assert has_deadline or self.waits_for_ever or not all(self.ticked), "it waits longer than it was told"

    def _reserved_here(self):
        found = set()
        for world in self.worlds:
            for place in world.places:
                if place.session is not None:
                    found.update(job.id for job in place.session.reserved)
        return found


RESERVE = [b"reserve"]
NOW = [b"reserve-with-timeout 0"]
A_WHILE = [b"reserve-with-timeout %d" % TIMEOUT]
BATCH = [b"reserve-batch 2 %d" % TIMEOUT]

TWO_GRANTS = [(PUT, 0), (PUT, 1)]
EVERY_CLOCK = [(TICK, 0), (TICK, 1)]


@pytest.mark.parametrize("near", [False, True], ids=["far", "near"])
@pytest.mark.parametrize(
    ("commands", "actions", "ready"),
    [
        (RESERVE, TWO_GRANTS, ()),
        (A_WHILE, [*EVERY_CLOCK, (PUT, 1)], ()),
        (A_WHILE, [(HANG_UP,), (PUT, 1)], ()),
        (A_WHILE, [(CALL_OFF,), (PUT, 1)], ()),
        (RESERVE, [(CALL_OFF,), (GRAB, 0)], (0,)),
        (RESERVE, [(CALL_OFF,), (GRAB, 0)], (0, 1)),
        (A_WHILE, [(CALL_OFF,), (PUT, 0)], (1,)),
        (BATCH, [(CALL_OFF,), (GRAB, 0)], (0, 1, 1)),
        (RESERVE, [(CALL_OFF,), (LOSE, 0)], (1,)),
        ([*RESERVE, *NOW], [(CALL_OFF,), (PUT, 0)], ()),
        (A_WHILE, [(HANG_UP,), (LOSE, 0)], ()),
        (RESERVE, [(LOSE, 0), (PUT, 1)], ()),
        (RESERVE, [(HAND_OVER, 1), (PUT, 1)], ()),
        (NOW, [(GRAB, 0)], (0, 1)),
        (NOW, [(LOSE, 0)], (0, 1)),
        (BATCH, TWO_GRANTS, (1, 1)),
        ([*RESERVE, *NOW], TWO_GRANTS, ()),
    ],
)
def test_two_shards(commands, actions, ready, near):
    assert explore(lambda: Scenario(2, commands, actions, ready, near)) > 10


ALL = {
    "two grants and the timeout": (2, A_WHILE, [*TWO_GRANTS, *EVERY_CLOCK], ()),
    "two grants and a hang-up": (2, A_WHILE, [*TWO_GRANTS, (HANG_UP,)], ()),
    "two grants and a call-off": (2, A_WHILE, [*TWO_GRANTS, (CALL_OFF,)], ()),
    "a call-off, and other clients are quicker": (2, RESERVE, [(CALL_OFF,), (GRAB, 0), (GRAB, 1), (PUT, 0)], (0, 1)),
    "a call-off and a place that is handed over, with ready jobs": (2, A_WHILE, [(CALL_OFF,), (HAND_OVER, 0)], (0, 1)),
    "three shards, a call-off and a lost place": (3, RESERVE, [(PUT, 1), (CALL_OFF,), (LOSE, 0)], (2,)),
    "a call-off and a lost place": (2, RESERVE, [(PUT, 1), (CALL_OFF,), (LOSE, 0)], ()),
    "a call-off and a place that is handed over": (2, [*RESERVE, *A_WHILE], [(CALL_OFF,), (HAND_OVER, 1)], ()),
    "two grants and a lost place": (2, RESERVE, [*TWO_GRANTS, (LOSE, 0)], ()),
    "two grants and a place that is handed over": (2, RESERVE, [*TWO_GRANTS, (HAND_OVER, 0)], ()),
    "a grant and two lost places": (2, RESERVE, [(PUT, 1), (LOSE, 0), (HAND_OVER, 1)], ()),
    "the timeout and a lost place": (2, A_WHILE, [*EVERY_CLOCK, (LOSE, 0)], ()),
    "a grant, the timeout and a place that is handed over": (2, A_WHILE, [(PUT, 1), *EVERY_CLOCK, (HAND_OVER, 0)], ()),
    "a grant, a hang-up and a lost place": (2, A_WHILE, [(PUT, 1), (HANG_UP,), (LOSE, 0)], ()),
    "a hang-up and a place that is handed over": (2, RESERVE, [(PUT, 1), (HANG_UP,), (HAND_OVER, 1)], ()),
    "no time to wait, and lost places": (2, NOW, [(PUT, 0), (HAND_OVER, 0), (LOSE, 1)], (1,)),
    "other clients are quicker": (2, RESERVE, [(GRAB, 0), (GRAB, 1), (PUT, 0)], (0, 1)),
    "batches": (2, BATCH, [(PUT, 0), (GRAB, 1), (LOSE, 1)], (1, 1)),
    "two in a row": (2, [*RESERVE, *A_WHILE], [*TWO_GRANTS, (HAND_OVER, 0)], ()),
    "three shards, a grant and the timeout": (3, A_WHILE, [(PUT, 2), *EVERY_CLOCK, (TICK, 2)], ()),
    "three shards, two grants and a hang-up": (3, A_WHILE, [(PUT, 1), (PUT, 2), (HANG_UP,)], ()),
    "three shards, two grants and a lost place": (3, RESERVE, [(PUT, 0), (PUT, 2), (LOSE, 0)], ()),
    "three shards, two grants and a place that is handed over": (3, A_WHILE, [(PUT, 0), (PUT, 1), (HAND_OVER, 1)], ()),
    "three shards, a hang-up and a lost place": (3, RESERVE, [(PUT, 1), (HANG_UP,), (LOSE, 2)], (0,)),
    "three shards, a batch": (3, BATCH, [(PUT, 1), (PUT, 2), (GRAB, 0)], (0,)),
}


@pytest.mark.slow
@pytest.mark.parametrize(("shards", "commands", "actions", "ready"), ALL.values(), ids=ALL)
def test_everything_in_every_order(shards, commands, actions, ready):
    assert explore(lambda: Scenario(shards, commands, actions, ready)) > 15
