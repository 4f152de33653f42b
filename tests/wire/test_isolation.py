"""What one user names changes no reply to another: limits, shares, groups, keys and the positions of listings.

Two worlds have the same user `b`. In one of them, a user `a` without rights to the tubes of `b` works with the same
names; in the other, it only uses up ids. Both must send `b` the same bytes.
"""

import random
from collections import Counter

from effort import seeded
from virtual import World

from beanstalk_server.access.rights import User
from beanstalk_server.queue.policy import Policy

NAMES = ["cust", "1", "b-1", "b-1/cust"]
"""What either user may choose as a name. `a` chooses names with the homes of `b`, too, and is refused."""

TUBES = ["1", "2", "dead"]
LABELS = [
    "limit={name}:1",
    "limit={name}:9",
    "limit={home}/{name}:1",
    "limit={home}/{name}:2 share={name}",
    "share={name}",
    "group={home}/{name}",
    "group={name}",
    "after={home}/{name}",
    "after={home}/{name}:wait",
    "after={name}:wait",
    "key={name}",
    "key={name} hold=2",
    "key={name} replace=1 limit={name}",
    "ttl=2 group={home}/{name} limit={name}",
]
COMMANDS = [
    *["reserve-with-timeout 0"] * 6,
    *["delete {id}"] * 4,
    *["use {tube}", "release {id} 0 0", "bury {id} 0", "cancel-group {home}/{name}", "stats-group {home}/{name}"] * 2,
    *["bury {id} 0"] * 3,
    "reserve-with-timeout 0.5",
    "reserve-batch 2 0",
    "reserve-job {id}",
    "kick 1",
    "peek-ready",
    "peek-delayed",
    "peek-buried",
    "peek-keyed {name}",
    "cancel-keyed {name}",
    "reschedule-keyed {name} 1",
    "stats-group {name}",
    "cancel-group {name}",
    "stats-job {id}",
    "stats-tube {tube}",
    "stats-tubes - 1",
    "list-jobs {tube} ready 0 1",
    "list-jobs {tube} delayed 0 1",
    "list-jobs {tube} reserved 0 1",
    *["list-jobs {tube} buried 0 1"] * 4,
    "list-jobs {position} 1",
    "move-jobs {tube} ready {home} 1",
    "redrive {tube} 2",
    "clear-tube {tube}",
]


class Side:
    """One of the two worlds."""

    def __init__(self):
        self.world = World(
            policies={
                f"{of}-{tube}": Policy(max_tries=2, dead_tube=f"{of}-dead", share="/") for of in "ab" for tube in "12"
            }
        )
        self.clients = {}
        for of in "ab":
            self.world.broker.groups.owner(of).most = 3
            patterns = [f"{of}-*"]
            user = User(of, produce=patterns, consume=patterns, inspect=patterns, admin=patterns)
            client = self.clients[of] = self.world.connect(user)
            client.send("".join([f"watch {of}-{tube}\r\n" for tube in TUBES]).encode())
        self.clients["a"].session.forbid_waiting()  # so that it uses up ids only when it is asked to

    def send(self, of, line):
        return self.clients[of].send(line.encode() + b"\r\n")


class Speaker:
    """What a user says, and what it remembers of the replies."""

    def __init__(self, rng, of):
        self.rng = rng
        self.of = of
        self.ids = [1]
        self.position = f"{of}-1 ready 0"

    def line(self):
        rng = self.rng
        line = f"put-with 0 {{delay}} 5 1 {rng.choice(LABELS)}\r\nx" if rng.random() < 0.4 else rng.choice(COMMANDS)
        for what in ("{tube}", "{home}"):
            line = line.replace(what, f"{self.of}-{rng.choice(TUBES)}")
        line = line.replace("{delay}", str(rng.choice((0, 0, 0, 1)))).replace("{id}", str(rng.choice(self.ids[-6:])))
        return line.replace("{name}", rng.choice(NAMES)).replace("{position}", self.position)

    def hear(self, line, reply):
        for told in (b"INSERTED ", b"RESERVED "):
            if reply.startswith(told):
                self.ids.append(int(reply.split()[1]))
        if line.startswith("list-jobs") and b'\nnext: "' in reply:
            _, tube, state, *_ = line.split()
            self.position = f"{tube} {state} {reply.decode().split(chr(34))[1] or 0}"


@seeded(15)
def test_what_one_user_names_changes_no_reply_to_another(seed):
    rng = random.Random(seed)
    busy, idle = Side(), Side()
    ann, bob = Speaker(rng, "a"), Speaker(rng, "b")
    told = Counter()
    for _ in range(800):
        choice = rng.random()
        if choice < 0.5:
            line = ann.line()
            ann.hear(line, busy.send("a", line))
            idle.world.now = busy.world.now
            idle.world.settle()
        elif choice < 0.92:
            line = bob.line()
            reply = busy.send("b", line)
            assert reply == idle.send("b", line), line
            bob.hear(line, reply)
            told[reply.split(b" ")[0]] += 1
        else:
            seconds = rng.choice((0.1, 1, 3))
            busy.world.sleep(seconds)
            idle.world.sleep(seconds)
        assert busy.clients["b"].read() == idle.clients["b"].read()
        idle.world.broker.next_id = busy.world.broker.next_id
    busy.world.check()
    assert min(told[b"INSERTED"], told[b"OK"], told[b"RESERVED"]) > 2, told
