"""Random walks: clients talk while shards change their leaders, and each command gets one reply, in its place."""

import random
import re

import pytest
from checking import check_broker
from effort import seeds
from sharded import ShardedNode

KINDS = ["put", "put", "use", "watch", "ignore", "used", "watched", "reserve", "wait", "delete", "peek", "tubes"]
RESERVED = rb"(?:RESERVED \d+ \d+\r\n[^\r]*|TIMED_OUT|DEADLINE_SOON)\r\n"


class Talker:
    """A client that says random things, and knows what may be answered."""

    def __init__(self, node, luck, name):
        self.node = node
        self.luck = luck
        self.caller = node.connect()
        self.tubes = [
            "default",
            *(node.tube(index, number).decode() for index in range(len(node.shards)) for number in (0, 1)),
        ]
        self.used, self.watched = "default", {"default"}
        self.expected = []  # commands, and patterns of their replies
        self.unsent = b""
        self.got = b""
        self.name = name
        self.inserted, self.deleted = [], []
        self.bodies = 0
        self.paused = False
        self.has_left = False

    def is_gone(self):
        return self.has_left or self.caller.socket.is_closing()

    def say(self):
        """Think of a command."""
        luck = self.luck
        kind = luck.choice(KINDS)
        tube = luck.choice(self.tubes)
        if kind == "put":
            self.bodies += 1
            body = f"{self.name}.{self.bodies}" + "b" * luck.choice([0, 5, 700])
            self.command(f"put {luck.randrange(3)} 0 99 {len(body)}\r\n{body}", rb"INSERTED (\d+)\r\n")
        elif kind == "use":
            self.used = tube
            self.command(f"use {tube}", b"USING %b\r\n" % tube.encode())
        elif kind == "watch":
            self.watched.add(tube)
            self.command(f"watch {tube}", b"WATCHING %d\r\n" % len(self.watched))
        elif kind == "ignore":
            if self.watched == {tube}:
                self.command(f"ignore {tube}", b"NOT_IGNORED\r\n")
            else:
                self.watched.discard(tube)
                self.command(f"ignore {tube}", b"WATCHING %d\r\n" % len(self.watched))
        elif kind == "used":
            self.command("list-tube-used", b"USING %b\r\n" % self.used.encode())
        elif kind == "watched":
            names = b"".join(rb"- [^\n]+\n" for _ in self.watched)
            self.command("list-tubes-watched", rb"OK \d+\r\n---\n" + names + rb"\r\n")
        elif kind in ("reserve", "wait"):
            timeout = 0 if kind == "reserve" else luck.choice([1, 3])
            self.command(f"reserve-with-timeout {timeout}", RESERVED)
        elif kind == "delete":
            job_id = luck.choice(self.inserted)[0] if self.inserted else luck.randrange(1, 50)
            self.command(f"delete {job_id}", rb"(?:DELETED|NOT_FOUND)\r\n")
        elif kind == "peek":
            self.command(f"peek {luck.randrange(1, 50)}", rb"(?:NOT_FOUND|FOUND \d+ \d+\r\n[^\r]*)\r\n")
        else:
            self.command("list-tubes", rb"OK \d+\r\n---\n(?:- [^\n]+\n)*\r\n")

    def command(self, line, pattern):
        self.expected.append((line, re.compile(pattern)))
        self.unsent += line.encode() + b"\r\n"

    def step(self):
        """Say something, or read, or stop reading."""
        luck = self.luck
        socket = self.caller.socket
        if socket.is_closing():
            return
        if luck.random() < 0.1:
            self.paused = not self.paused
            (self.caller.protocol.pause_writing if self.paused else self.caller.protocol.resume_writing)()
        for _ in range(luck.choice([0, 1, 1, 2, 5])):
            self.say()
        if self.unsent and socket.reading and not socket.is_closing():
            size = len(self.unsent) if luck.random() < 0.6 else luck.randrange(1, len(self.unsent) + 1)
            data, self.unsent = self.unsent[:size], self.unsent[size:]
            self.caller.protocol.data_received(data)
        self.read()

    def finish(self):
        """Say all that is left, and read."""
        if self.caller.socket.is_closing():
            return
        if self.paused:
            self.paused = False
            self.caller.protocol.resume_writing()
        data, self.unsent = self.unsent, b""
        if data:
            self.caller.protocol.data_received(data)

    def read(self):
        self.got += self.caller.read()
        while self.expected and self.got:
            line, pattern = self.expected[0]
            match = pattern.match(self.got)
            if match is None:
                is_whole = b"\n" in self.got and not self.got.startswith((b"RESERVED ", b"OK ", b"FOUND "))
                assert not is_whole, f"{line} is answered {self.got}"
                return
            self.expected.pop(0)
            self.got = self.got[match.end() :]
            if line.startswith("put"):
                self.inserted.append((int(match[1]), line.partition("\r\n")[2]))
            elif match[0].startswith(b"DELETED"):
                self.deleted.append(int(line.split()[1]))
        assert self.expected or not self.got


def change_leader(node, luck, *, is_clean):
    """Let a shard have another leader, or none for a while."""
    index = luck.randrange(len(node.shards))
    if index in node.clients.led:
        node.stop_leading(index, is_clean=is_clean)
    elif index in node.leaders:
        node.unlink(index, is_clean=is_clean)
    if luck.random() < 0.8:
        lead_somewhere(node, luck, index)


def lead_somewhere(node, luck, index):
    node.shards[index].journal.is_slow = luck.random() < 0.3
    (node.lead if luck.random() < 0.6 else node.link)(index)


def leave(talker, luck):
    """Go, one way or the other."""
    talker.has_left = True
    socket = talker.caller.socket
    how = luck.choice(["disconnect", "shut down", "hang up"])
    if socket.is_closing():
        return
    if how == "disconnect":
        talker.caller.disconnect()
    elif how == "shut down" and socket.reading:
        talker.finish()
        talker.caller.shut_down()
    elif not socket.reading:
        talker.caller.hang_up()


def walk(seed, shards, *, is_clean):
    """Let three clients talk; return the node and the clients when all that can be answered has been."""
    luck = random.Random(seed)
    node = ShardedNode(shards, ())
    for index in range(shards):
        lead_somewhere(node, luck, index)
    talkers = [Talker(node, luck, name) for name in "abc"]
    for _ in range(120):
        choice = luck.random()
        if choice < 0.75:
            luck.choice([talker for talker in talkers if not talker.has_left]).step()
        elif choice < 0.82:
            change_leader(node, luck, is_clean=is_clean)
        elif choice < 0.9:
            luck.choice(node.shards).journal.end_commit()
        elif choice < 0.95:
            node.loop.sleep(luck.choice([0.1, 1.5]))
        elif choice < 0.96:
            leave(talkers[0], luck)
        else:
            node.loop.go_round()
    for index, shard in enumerate(node.shards):
        if index not in node.clients.led and index not in node.leaders:
            lead_somewhere(node, luck, index)
        shard.journal.is_slow = False
        shard.journal.end_commit()
    for talker in talkers:
        if not talker.has_left:
            talker.finish()
    for _ in range(200):
        node.loop.sleep(1)
        for shard in node.shards:
            shard.journal.end_commit()
        node.loop.settle()
        for talker in talkers:
            talker.read()
        if not any(talker.expected for talker in talkers if not talker.is_gone()):
            break
    return node, talkers


def verify(node, talkers, *, is_clean):
    staying = [talker for talker in talkers if not talker.is_gone()]
    if is_clean:
        assert all(talker in staying or talker.has_left for talker in talkers), "a client was disconnected"
    for talker in staying:
        assert not talker.expected, f"{talker.name} waits for {talker.expected[:3]}, and has got {talker.got!r}"
    inserted = dict(job for talker in talkers for job in talker.inserted)
    assert len(inserted) == sum(len(talker.inserted) for talker in talkers), "an id was given twice"
    deleted = {job_id for talker in talkers for job_id in talker.deleted}
    assert len(deleted) == sum(len(talker.deleted) for talker in talkers), "a job was deleted twice"
    unanswered = [line for talker in talkers for line, _ in talker.expected]
    left = {}
    for index, shard in enumerate(node.shards):
        check_broker(shard.broker)
        for job in shard.broker.jobs.values():
            assert job.id % len(node.shards) == index == node.places.of_tube(job.tube.name.encode())
            left[job.id] = job.body.decode()
    assert len(set(left.values())) == len(left), "a job is there twice"
    assert not deleted & set(left), "a job is there that was deleted"
    for job_id, body in inserted.items():
        if job_id not in deleted and f"delete {job_id}" not in unanswered:
            assert left.pop(job_id) == body
    left_over = [body for job_id, body in left.items() if job_id not in inserted]
    assert all(any(line.endswith("\r\n" + body) for line in unanswered) for body in left_over), "no client put this"
    assert node.connections() == len([talker for talker in talkers if not talker.caller.socket.is_closing()])
    for talker in talkers:
        talker.caller.disconnect()
    for index in list(node.leaders):
        node.unlink(index)
    assert node.connections() == 0
    assert not node.clients.open
    for shard in node.shards:
        assert shard.broker.waiting == shard.broker.reserved == 0
        assert not shard.connections.open


@pytest.mark.parametrize("shards", [1, 2, 3, 5])
@pytest.mark.parametrize("is_clean", [True, False])
def test_each_command_is_answered_once_and_in_its_place_when_leaders_change(shards, is_clean):
    for seed in seeds(10):
        try:
            node, talkers = walk(seed, shards, is_clean=is_clean)
            verify(node, talkers, is_clean=is_clean)
        except BaseException as error:
            error.add_note(f"in walk {seed} with {shards} shards")
            raise
