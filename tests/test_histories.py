"""The checker of histories finds each fault that is planted, and none where a server keeps its promises."""

import random
import re
from zlib import crc32

import pytest
from effort import seeded

from beanstalk_server.queue.job import STATES
from beanstalk_server.queue.journal import Journal
from beanstalk_server.queue.policy import Policy
from tests.cluster.simulation.commands import command, ids_in, policed_tubes, terms_of
from tests.histories import SECOND, History, Recorder, Survivor, Terms, kinds_of, problems_of
from tests.virtual import MemoryJournal, World

MILLISECOND = SECOND // 1000


class Talk:
    """A history that a test makes up: each command takes a millisecond, and nothing happens at the same time."""

    def __init__(self):
        self.history = History()
        self.now = 0
        self.calls = {}  # by client: its last one

    def say(self, client, line, reply, body=None, jobs=()):
        """A command and its reply; without a reply it is still under way."""
        self.now += MILLISECOND
        call = self.calls[client] = self.history.send(client, line.encode(), self.now, body and body.encode())
        if reply is not None:
            self.hear(call, reply, jobs)
        return call

    def hear(self, call, reply, jobs=()):
        self.now += MILLISECOND
        call.answer(reply.encode(), self.now, [(number, body.encode()) for number, body in jobs])

    def put(self, client, number, body, *, priority=0, delay=0, ttr=60, key=None):
        what = f"put-keyed {key}" if key else "put"
        return self.say(client, f"{what} {priority} {delay} {ttr} {len(body)}", f"INSERTED {number}", body)

    def put_with(self, client, number, body, *attributes):
        line = " ".join(("put-with 0 0 60", str(len(body)), *attributes))
        return self.say(client, line, f"INSERTED {number}", body)

    def reserve(self, client, number, body):
        return self.say(client, "reserve", f"RESERVED {number} {len(body)}", jobs=[(number, body)])

    def fail(self, client, number, body, reply="RELEASED"):
        self.reserve(client, number, body)
        self.say(client, f"release {number} 0 0", reply)

    def use(self, tube):
        """Let client `a` use a tube, and client `b` watch it."""
        self.say("a", f"use {tube}", f"USING {tube}")
        self.say("b", f"watch {tube}", "WATCHING 2")

    def have_two_shards(self):
        """Put job 3 into `default`, a tube of shard 1, and job 2 into `other`, of shard 0; `b` and `c` watch both."""
        assert [crc32(tube) % 2 for tube in (b"default", b"other")] == [1, 0]
        self.put("a", 3, "three")
        self.say("a", "use other", "USING other")
        self.put("a", 2, "two")
        for client in ("b", "c"):
            self.say(client, "watch other", "WATCHING 2")

    def sleep(self, seconds):
        self.now += round(seconds * SECOND)

    def leave(self, client, *, by_itself):
        self.now += MILLISECOND
        self.history.leave(client, self.now, by_itself=by_itself)

    def take_over(self, shard=None):
        self.now += 2 * MILLISECOND
        self.history.took_over(self.now - MILLISECOND, self.now, shard)

    def cut(self, clients=None, seconds=0, shard=None):
        """Let a node lose its leader, which notices it so much later."""
        lost = self.now + 1
        self.history.cut(lost, lost, lost + round(seconds * SECOND), clients, shard)

    def problems(self, left=(), **bounds):
        self.now += MILLISECOND
        survivors = {
            number: body if isinstance(body, Survivor) else Survivor(body.encode())
            for number, body in dict(left).items()
        }
        return problems_of(self.history, survivors, self.now, policies=POLICIES, **bounds)

    def kinds(self, left=(), **bounds):
        return dict(kinds_of(self.problems(left, **bounds)))

    def act(self, step):
        """Take one step of a script."""
        match step.split():
            case ["left" | "left:", *_]:
                self.check(step)
            case [client, "hears", *_]:
                self.hear(self.calls[client], *reply_in(step.partition(" hears ")[2]))
            case [client, *_] if client.endswith(":"):
                line, _, reply = step.partition(": ")[2].partition(" = ")
                line, _, body = line.partition(" [")
                reply, jobs = reply_in(reply) if reply else (None, ())
                self.say(client[:-1], line, reply, body[:-1] or None, jobs)
            case [client, "put", number, body, *settings]:
                settings = dict(setting.split("=") for setting in settings)
                self.put(client, int(number), body, **settings)
            case [client, "put-with", number, body, *attributes]:
                self.put_with(client, int(number), body, *attributes)
            case [client, "reserve", number, body]:
                self.reserve(client, int(number), body)
            case [client, "fails", number, body, *reply]:
                self.fail(client, int(number), body, *reply)
            case ["tube", tube]:
                self.use(tube)
            case ["two", "shards"]:
                self.have_two_shards()
            case ["sleep", seconds]:
                self.sleep(float(seconds))
            case [client, "leaves"]:
                self.leave(client, by_itself=True)
            case [client, "is", "cut", "off"]:
                self.leave(client, by_itself=False)
            case ["next", "leader", *of_shard]:
                self.take_over(int(of_shard[-1]) if of_shard else None)
            case ["cut", "of", "shard", shard]:
                self.cut(shard=int(shard))
            case ["cut", *clients, "for", seconds]:
                self.cut(clients, float(seconds))
            case ["cut"]:
                self.cut()
            case _:
                pytest.fail(f"no step: {step}")

    def check(self, step):
        """`left`, the jobs that are left, perhaps `with` bounds: then the kinds of problems, with their numbers."""
        state, _, kinds = step.rpartition(": ") if not step.startswith("left: ") else step.partition(": ")
        jobs, _, bounds = state.partition(" with ")
        left = {}
        for job in jobs.split()[1:]:
            number, body, tube, where, tries = re.fullmatch(r"(\d+)=(\w+)(?::(\w*)/(\w+))?(?:/(\d))?", job).groups("")
            left[int(number)] = Survivor(body.encode(), tube, where, tries=int(tries or -1))
        bounds = {name: float(number) for name, number in (bound.split("=") for bound in bounds.split())}
        for name in bounds.keys() & {"notice", "skew", "wall"}:
            bounds[name] *= SECOND
        if "shards" in bounds:
            bounds["shards"] = int(bounds["shards"])
        expected = {} if kinds == "fine" else {kind: int(n or 1) for kind, n in re.findall(r"(\w+) ?(\d*)", kinds)}
        assert self.kinds(left, **bounds) == expected, step


def reply_in(text):
    """A reply, and the jobs that come with it, whose bodies are in brackets."""
    line, *bodies = re.split(r" \[(\w+)\]", text)
    return line, [(int(line.split()[1]), body) for body in bodies if body]


POLICIES = {
    "tried": Terms(tries=2, dead="dead"),
    "far": Terms(tries=2),  # its dead tube is in another shard
    "brief": Terms(ttl=3 * SECOND, hold=2 * SECOND),
}


@pytest.fixture
def talk():
    return Talk()


# One history a script. `a: COMMAND = REPLY` is said by client a; without a reply it is still under way, until `a hears`
# it. A body is in brackets. `a put ID BODY`, `a put-with`, `a reserve` and `b fails` (which releases what it reserves)
# are answered. `left` checks: what is left at the end, and then the problems that are found.
HISTORIES = """
Nothing is wrong with a job that is put reserved and deleted:
    a put 1 one; a put 2 two; b reserve 1 one; b: delete 1 = DELETED; c: peek 1 = NOT_FOUND; left 2=two: fine

An acknowledged job that is missing is lost:
    a put 1 one; left: lost

An acknowledged job that is not found meanwhile is lost:
    a put 1 one; b: peek 1 = NOT_FOUND; left 1=one: lost

A job may be missing whose put or delete was not answered:
    a put 1 one; a: delete 1; b: put 0 0 60 3 [two]; c: put 0 0 60 5 [three]; left 2=two: fine

A cleared job is not lost and one that was put later is:
    a put 1 one; b: clear-tube default = CLEARED 1; left: fine; a put 2 two; left: lost

A job that was ended may not be there again:
    a put 1 one; a: delete 1 = DELETED; left: fine; left 1=one: returned; sleep 60; b reserve 1 one;
        left: returned
    a put 1 one delay=50; a: cancel 1 = CANCELLED; left: fine; left 1=one: returned; sleep 60; b reserve 1 one;
        left: returned

A job that was cancelled by its key may not be there again:
    a put 1 one delay=50 key=k; a: cancel-keyed k = CANCELLED; left: fine; left 1=one: returned

A job that was cleared may not be there again:
    a put 1 one; b: clear-tube default = CLEARED 1; left 1=one: returned

A job that a client may have held during the clear may be there:
    a put 1 one; b: reserve; a: clear-tube default = CLEARED 0; b hears RESERVED 1 3 [one]; left 1=one: fine

A reserve without an answer holds nothing when its client is known to be gone:
    a put 1 one; b: reserve; b leaves; sleep 2; a: clear-tube default = CLEARED 1; left 1=one: fine;
        left 1=one with notice=1: returned

A job that was reserved by its id may have been held during the clear:
    a put 1 one; a put 2 two; b: reserve-job 1; a: clear-tube default = CLEARED 1; left 1=one: fine;
        left 2=two: returned

A job may be there after a clear if a reserve that was given twice may have held it:
    a put 1 one; b: reserve-with-timeout 9; a: clear-tube default = CLEARED 0; cut b c for 1; a put 2 two;
        b hears RESERVED 2 3 [two]; left 1=one 2=two: fine
    a put 1 one; b: reserve-with-timeout 9; a: clear-tube default = CLEARED 0; cut b c for 1; a put 2 two;
        b hears TIMED_OUT; left 1=one 2=two: fine
    a put 1 one; b: reserve-with-timeout 9; a: clear-tube default = CLEARED 0; cut b c for 1; a put 2 two;
        b hears DEADLINE_SOON; left 1=one 2=two: fine

A reserve that was given twice may not have held what it cannot have been given:
    a put 1 one; b: reserve-with-timeout 9; cut c for 1; a: clear-tube default = CLEARED 1; b hears TIMED_OUT;
        left 1=one: returned
    a put 1 one; b: watch other = WATCHING 2; b: ignore default = WATCHING 1; b: reserve-with-timeout 9; cut b for 1;
        a: clear-tube default = CLEARED 1; b hears TIMED_OUT; left 1=one: returned
    a put 1 one; b: reserve-with-timeout 9; b hears TIMED_OUT; cut b for 1; a: clear-tube default = CLEARED 1;
        left 1=one: returned
    a put 1 one; b: reserve-with-timeout 9; cut b for 1; sleep 2; a: clear-tube default = CLEARED 1; b hears TIMED_OUT;
        left 1=one: returned

What a reserve that was given twice may have held is ready at the next leader:
    a put 1 one; b: reserve-with-timeout 9; cut b for 60; next leader; a: clear-tube default = CLEARED 1;
        b hears TIMED_OUT; left 1=one: returned

A job is deleted once:
    a put 1 one; a: delete 1 = DELETED; b: delete 1 = DELETED; left: returned

A reserve that was sent before the delete may be answered after it:
    a put 1 one ttr=1; b: reserve; sleep 5; a reserve 1 one; a: delete 1 = DELETED; b hears RESERVED 1 3 [one];
        left: fine; left with flight=1000: returned

A body that was never put is torn:
    a put 1 one; left 1=on: torn; b reserve 1 ono; left 1=one: torn

A body from before a replacement is torn:
    a put 1 one key=k; a: replace-keyed k 0 0 60 3 [new] = REPLACED 1; left 1=new: fine; left 1=one: torn

A replacement that was not answered may have happened:
    a put 1 one key=k; a: replace-keyed k 0 0 60 3 [new]; left 1=new: fine; left 1=one: fine

The body of a put that was not answered may have been replaced before a client saw it:
    a: put-keyed k 0 0 60 3 [one]; b: replace-keyed k 0 0 60 3 [two] = REPLACED 1; c: replace-keyed k 0 0 60 5 [three];
        left 1=three: fine
    a: replace-keyed k 0 0 60 3 [one]; b: replace-keyed k 0 0 60 3 [two] = REPLACED 1;
        c: replace-keyed k 0 0 60 5 [three]; left 1=three: fine

A body may come back with a leader that does not know the put that replaced it:
    a: put-keyed k 0 0 60 3 [one]; d: peek-keyed k = FOUND 1 3 [one]; b: replace-keyed k 0 0 60 3 [two];
        c reserve 1 two; next leader; d reserve 1 one; left 1=one: fine

So may a body that no client had seen before it was replaced:
    a: put-keyed k 0 0 60 3 [one]; d: put-keyed k 0 0 60 4 [none] = EXISTS 1; b: replace-keyed k 0 0 60 3 [two];
        c reserve 1 two; next leader; d reserve 1 one; left 1=one: fine

What was cancelled by its key may have been a job that no client has seen:
    a: put-keyed k 0 1 60 3 [one]; b: cancel-keyed k; c: put-keyed k 0 0 60 3 [two] = INSERTED 2; b hears CANCELLED;
        d reserve 2 two; left 2=two: fine

A job that was there before it was put is torn:
    a: put-keyed other 0 0 60 3 [one]; b: replace-keyed k 0 0 60 3 [two] = REPLACED 1;
        c: replace-keyed k 0 0 60 5 [three]; left 1=three: torn

A job that is handed out before it was put is torn:
    b reserve 1 one; a put 1 one; left 1=one: torn 2

An id is given once:
    a put 1 one; a put 1 two; left 1=two: doubled

A put makes one job:
    a put 1 one; left 1=one 2=one: doubled

A put that was not answered makes one job:
    a: put 0 0 60 3 [one]; left 1=one 2=one: doubled

An id that a client has seen is not given again:
    a: put 0 0 60 3 [one]; b reserve 1 one; next leader; a put 1 two; left 1=two: doubled, torn

Two clients do not hold a job at the same time:
    a put 1 one; b reserve 1 one; c reserve 1 one; d: stats = OK 0; left 1=one: shared

A job may have another holder once the first may have given it away:
    a put 1 one; b reserve 1 one; b: release 1 0 0; b is cut off; c reserve 1 one; left 1=one: fine
    a put 1 one; b reserve 1 one; b: bury 1 0; b is cut off; a: kick 1 = KICKED 1; c reserve 1 one; left 1=one: fine
    a put 1 one; b reserve 1 one; b: delete 1; b is cut off; c reserve 1 one; left 1=one: fine

A job may have another holder after its client is gone:
    a put 1 one; b reserve 1 one; b leaves; c reserve 1 one; left 1=one: fine

A client that was disconnected has held its job as long as it was answered:
    a put 1 one; b reserve 1 one; c reserve 1 one; b is cut off; left 1=one: fine

A job may have another holder when the first one does not count any more:
    a put 1 one; b reserve 1 one; next leader; c reserve 1 one; b: delete 1 = NOT_FOUND; left 1=one: fine
    a put 1 one; b reserve 1 one; cut; c reserve 1 one; b: delete 1 = NOT_FOUND; left 1=one: fine

A job is not taken from its holder:
    a put 1 one; b reserve 1 one; b: touch 1 = NOT_FOUND; left 1=one: shared

A delayed job is not handed out early:
    a put 1 one delay=2; sleep 1; b reserve 1 one; left 1=one: early; left 1=one with skew=1: fine;
        left 1=one with drift=0.5: fine

A job that was released with a delay is not handed out early:
    a put 1 one; b reserve 1 one; b: release 1 0 5 = RELEASED; c reserve 1 one; left 1=one: early

A job that was rescheduled is not handed out before its new moment:
    a put 1 one delay=2 key=k; a: reschedule 1 50 = RESCHEDULED; a: reschedule-keyed k 60 = RESCHEDULED; sleep 55;
        b reserve 1 one; left 1=one: early

A delayed job may be handed out when a client may have made it ready:
    a put 1 one delay=50 key=k; b: reschedule 1 0; c reserve 1 one; left 1=one: fine
    a put 1 one delay=50 key=k; b: reschedule-keyed k 0 = RESCHEDULED; c reserve 1 one; left 1=one: fine
    a put 1 one delay=50 key=k; b: kick 7; c reserve 1 one; left 1=one: fine
    a put 1 one delay=50 key=k; b: kick 7 = KICKED 1; c reserve 1 one; left 1=one: fine
    a put 1 one delay=50 key=k; b: kick-job 1 = KICKED; c reserve 1 one; left 1=one: fine
    a put 1 one delay=50 key=k; b: replace-keyed k 0 0 60 3 [new]; c reserve 1 one; left 1=one: fine

A kick of nothing makes nothing ready:
    a put 1 one delay=50; b: kick 7 = KICKED 0; c reserve 1 one; left 1=one: early

A job that was reserved may be ready again at once:
    a put 1 one delay=1; sleep 1; b reserve 1 one; b leaves; c reserve 1 one; left 1=one: fine

A buried job is not handed out:
    a put 1 one; b reserve 1 one; b: bury 1 0 = BURIED; next leader; left 1=one:/buried: fine;
        left 1=one:/ready: early; c reserve 1 one; left 1=one: early

A job of a paused tube is not handed out:
    a put 1 one; a: pause-tube default 5 = PAUSED; b reserve 1 one; left 1=one: early; next leader; left 1=one: fine

A key names one live job:
    a put 1 one key=k; a put 2 two key=k; left 1=one 2=two: keyed 2; left 2=two: lost, keyed

A key is free again when its job may have been deleted:
    a put 1 one key=k; b: delete 1; a put 2 two key=k; left 2=two: fine; left 1=one 2=two: keyed

A key is another one in another tube:
    a put 1 one key=k; a: use t = USING t; a put 2 two key=k; left 1=one 2=two: fine

Jobs of a tube are handed out in their order:
    a put 1 one priority=5; a put 2 two priority=5; a put 3 three priority=4; b reserve 2 two;
        left 1=one 2=two 3=three: order

A job that was released comes in its new order:
    a put 1 one; a put 2 two; b reserve 1 one; b: release 1 7 0 = RELEASED; b reserve 2 two; left 1=one 2=two: fine;
        b: release 2 7 0 = RELEASED; c reserve 2 two; left 1=one 2=two: order

A client without an answer may hold what comes first:
    a put 1 one; a put 2 two; b: reserve; b leaves; c reserve 2 two; left 1=one 2=two: fine;
        left 1=one 2=two with notice=1: fine; sleep 2; a put 3 three; d reserve 3 three;
        left 1=one 2=two 3=three with notice=1: order

A reserve that was given twice may have held what comes first:
    a put 1 one; a put 2 two; b: reserve; c reserve 2 two; cut b for 1; a put 3 three; b hears RESERVED 3 5 [three];
        sleep 2; a put 4 four; left 1=one 2=two 3=three 4=four: fine; d reserve 4 four;
        left 1=one 2=two 3=three 4=four: order

A job has an id of the shard of its tube:
    two shards; left 2=two 3=three with shards=2: fine; a put 5 five;
        left 2=two 3=three 5=five with shards=2: misplaced

A job keeps its holder when another shard has another leader:
    two shards; b reserve 3 three; next leader of shard 0; cut of shard 0; c reserve 3 three; b: touch 3 = NOT_FOUND;
        left 2=two 3=three with shards=2: shared 2

It may have another one when its own shard has another leader:
    two shards; b reserve 2 two; next leader of shard 0; c reserve 2 two; left 2=two 3=three with shards=2: fine
    two shards; b reserve 2 two; cut of shard 0; c reserve 2 two; left 2=two 3=three with shards=2: fine

A pause ends with the leader of its own shard:
    two shards; a: pause-tube other 5 = PAUSED; next leader of shard 1; b reserve 2 two;
        left 2=two 3=three with shards=2: early; next leader of shard 0; left 2=two 3=three with shards=2: fine

A reserve over two shards may hold what it gives back:
    two shards; b: reserve-with-timeout 5; a put 4 four; c reserve 4 four; a: clear-tube other = CLEARED 0;
        b hears RESERVED 3 5 [three]; left 2=two 3=three 4=four with shards=2: fine;
        left 2=two 3=three 4=four: returned, order

It has given it back before the shard answers its client again:
    two shards; b: reserve-with-timeout 5; b hears RESERVED 3 5 [three]; b: delete 3 = DELETED; a put 4 four;
        c reserve 4 four; left 2=two 4=four with shards=2: fine; b: peek 2 = FOUND 2 3 [two];
        left 2=two 4=four with shards=2: fine; a put 6 six; c: delete 4 = DELETED; d reserve 6 six;
        left 2=two 6=six with shards=2: order

A reserve of one shard gives nothing back:
    two shards; b: reserve-job 3; a put 4 four; c reserve 4 four; b hears RESERVED 3 5 [three];
        left 2=two 3=three 4=four with shards=2: order
    two shards; b: ignore other = WATCHING 1; b: reserve; a put 4 four; c reserve 4 four; b hears RESERVED 3 5 [three];
        left 2=two 3=three 4=four with shards=2: order

What it gives back is ready when its client is known to be gone:
    two shards; b: reserve-batch 2 5; b hears TIMED_OUT; b leaves; sleep 2; a put 4 four; c reserve 4 four;
        left 2=two 3=three 4=four with shards=2: fine; left 2=two 3=three 4=four with shards=2 notice=1: order

A job is given up when all its tries have failed, neither before nor later:
    a put-with 1 one tries=2; b fails 1 one; b fails 1 one BURIED; left 1=one: fine
    a put-with 1 one tries=2; b fails 1 one BURIED; left 1=one: tries
    a put-with 1 one tries=2; b fails 1 one; b fails 1 one; left 1=one: tries
    tube far; a put-with 1 one; b fails 1 one; b fails 1 one BURIED; left 1=one: fine
    tube far; a put-with 1 one; b fails 1 one BURIED; left 1=one: tries
    tube far; a put-with 1 one; b fails 1 one; b fails 1 one; left 1=one: tries

A kicked job has all its tries again:
    a put-with 1 one tries=2; b fails 1 one; b fails 1 one BURIED; left 1=one: fine; c: kick-job 1 = KICKED;
        b fails 1 one; left 1=one: fine; c: kick 1 = KICKED 1; b fails 1 one; b fails 1 one BURIED; left 1=one: fine

A client without an answer may have had a job that failed:
    a put-with 1 one tries=2; c: reserve; c leaves; b fails 1 one BURIED; left 1=one: fine

A job without a limit of tries is not buried by a release:
    a put 1 one; b fails 1 one BURIED; left 1=one: tries

A job that was buried by a release is not handed out:
    a put-with 1 one tries=1; b fails 1 one BURIED; b reserve 1 one; left 1=one: early

A job is in the dead tube of its own tube and not before all its tries have failed:
    tube tried; a put-with 1 one; b fails 1 one; left 1=one:dead/ready: tries; b fails 1 one;
        left 1=one:dead/ready: fine; left 1=one:tried/ready: fine; left 1=one:default/ready: misplaced; left: lost

No job leaves a tube without a dead tube:
    a put 1 one; left 1=one:dead/ready: misplaced

A job in the dead tube may be cleared or cancelled there:
    tube tried; a put-with 1 one key=k; b fails 1 one; b fails 1 one; c: use dead = USING dead;
        c: clear-tube dead = CLEARED 1; left: fine
    tube tried; a put-with 1 one key=k; b fails 1 one; b fails 1 one; c: use dead = USING dead;
        c: cancel-keyed k = CANCELLED; left: fine

A job waits for its backoff at least:
    a put-with 1 one backoff=2; b fails 1 one; sleep 1; b reserve 1 one; left 1=one: early

A job that waits for its backoff comes after others:
    a put-with 1 one backoff=2; b fails 1 one; a put 2 two; b reserve 2 two; left 1=one 2=two: fine

A job may be missing once its time to live is over and not before:
    a put-with 1 one ttl=3; sleep 2.9; left: lost; sleep 0.1; left: fine
    tube brief; a put-with 1 one; sleep 2.9; left: lost; sleep 0.1; left: fine

A job that may have expired may have been passed over:
    a put-with 1 one ttl=3; a put 2 two; sleep 4; b reserve 2 two; left 2=two: fine; left 1=one 2=two: fine

A held key is not given again until its time is over:
    a put-with 1 one key=k hold=2; a: delete 1 = DELETED; c: use default = USING default;
        c: put-keyed k 0 0 60 5 [other] = EXISTS 1; sleep 1.9; a put-with 2 two key=k hold=2; left 2=two: held
    a put-with 1 one key=k hold=2; a: delete 1 = DELETED; c: use default = USING default;
        c: put-keyed k 0 0 60 5 [other] = EXISTS 1; sleep 2.1; a put-with 2 two key=k hold=2; left 2=two: fine
    a put-with 1 one key=k hold=2; a: cancel 1 = CANCELLED; a put-with 2 two key=k hold=2; left 2=two: fine
    a put-with 1 one key=k hold=2; a: delete 1 = DELETED; a: clear-tube default = CLEARED 0;
        a put-with 2 two key=k hold=2; left 2=two: fine
    tube brief; a put-with 1 one key=k; a: delete 1 = DELETED; c: use brief = USING brief;
        c: put-keyed k 0 0 60 5 [other] = EXISTS 1; sleep 1.9; a put-with 2 two key=k; left 2=two: held
    tube brief; a put-with 1 one key=k; a: delete 1 = DELETED; c: use brief = USING brief;
        c: put-keyed k 0 0 60 5 [other] = EXISTS 1; sleep 2.1; a put-with 2 two key=k; left 2=two: fine
    tube brief; a put-with 1 one key=k; a: cancel 1 = CANCELLED; a put-with 2 two key=k; left 2=two: fine
    tube brief; a put-with 1 one key=k; a: delete 1 = DELETED; a: clear-tube brief = CLEARED 0;
        a put-with 2 two key=k; left 2=two: fine

A key that is not held is not said to be taken after its job is gone:
    a put 1 one key=k; a: delete 1 = DELETED; c: put-keyed k 0 0 60 5 [other] = EXISTS 1; left: returned

No job is handed out before its moment of the wall clock:
    a put-with 1 one at=1002.5; sleep 2.4; b reserve 1 one; left 1=one with wall=1002: fine;
        left 1=one with wall=1000: early

A job may have been replaced in the dead tube and be back although no client knows:
    c: use tried = USING tried; c: put-with 0 0 60 3 key=k [one]; d: stats-job 1 = OK 3; e: use dead = USING dead;
        e: put-with 0 0 60 3 key=k replace=1 [two]; left 1=two:tried/ready: fine; left 1=two:other/ready: misplaced

A redriven job may be handed out:
    tube tried; a put-with 1 one; b fails 1 one; b fails 1 one; c: reserve-job 1 = RESERVED 1 3 [one];
        c: bury 1 0 = BURIED; d: redrive dead 5 = REDRIVEN 1; b reserve 1 one; left 1=one: fine
    tube tried; a put-with 1 one; b fails 1 one; b fails 1 one; c: reserve-job 1 = RESERVED 1 3 [one];
        c: bury 1 0 = BURIED; d: redrive dead 5 = REDRIVEN 0; b reserve 1 one; left 1=one: early

A job that comes after a group is handed out when no job of the group is left:
    a put-with 1 one group=g; a put-with 2 two after=g; b reserve 1 one; c reserve 2 two;
        left 2=two:default/ready 1=one:default/ready: early
    a put-with 1 one group=g; a put-with 2 two after=g; b reserve 1 one; b: delete 1 = DELETED; c reserve 2 two;
        left 2=two:default/ready: fine
    a put-with 1 one group=g; a put-with 2 two after=g; b reserve 1 one; b: kick-job 2 = KICKED; c reserve 2 two;
        left 2=two:default/ready 1=one:default/ready: fine
    a put-with 1 one group=g; a put-with 2 two after=g; b reserve 1 one;
        left 2=two:default/delayed 1=one:default/ready: fine

A job does not wait for a group without jobs:
    a put-with 1 one group=g; a put-with 2 two after=g:wait; b reserve 1 one; b: delete 1 = DELETED;
        left 2=two:default/ready: fine; left 2=two:default/delayed: open
    a put-with 1 one group=g; b reserve 1 one; b: delete 1 = DELETED; a put-with 2 two key=k;
        a: put-with 0 0 60 3 key=k replace=1 group=g [new] = REPLACED 2; a put-with 3 three after=g:wait;
        left 2=new:default/ready 3=three:default/delayed: fine;
        b: delete 2 = DELETED; left 3=three:default/delayed: open

A job counts the tries that it has had:
    a put-with 1 one tries=5; b fails 1 one; left 1=one:default/ready/0: tries
    a put-with 1 one tries=5; b fails 1 one; left 1=one:default/ready/1: fine
    a put-with 1 one tries=5; b fails 1 one; left 1=one:default/ready/2: tries

A reply that no server in order gives is a problem:
    a: put 0 0 60 1 [x] = INTERNAL_ERROR; left: refused
"""


def scripts():
    for paragraph in HISTORIES.strip().split("\n\n"):
        title, *lines = paragraph.splitlines()
        for script in re.split(r"\n {4}(?! )", "\n" + "\n".join(lines))[1:]:
            yield pytest.param(script, id=title.removesuffix(":"))


@pytest.mark.parametrize("script", list(scripts()))
def test_histories(talk, script):
    for step in script.split(";"):
        talk.act(step.strip())


def test_a_job_may_have_another_holder_after_its_time_to_run(talk):
    talk.put("a", 1, "one", ttr=2)
    talk.reserve("b", 1, "one")
    talk.sleep(1.9)
    touch = talk.say("b", "touch 1", "TOUCHED")
    talk.sleep(1.9)
    second = talk.reserve("c", 1, "one")
    assert talk.kinds({1: "one"}) == {"shared": 1}
    second.sent = second.answered = touch.answered + 2 * SECOND
    talk.now = second.answered
    assert talk.problems({1: "one"}) == []


def test_a_delayed_job_may_be_handed_out_once_its_delay_is_over(talk):
    put = talk.put("a", 1, "one", delay=2)
    reserve = talk.reserve("b", 1, "one")
    reserve.answered = put.sent + 2 * SECOND
    talk.now = reserve.answered
    assert talk.problems({1: "one"}) == []


@pytest.mark.parametrize(
    ("found", "wrong"),
    [
        ({"state": "open", "done-jobs": "1"}, {}),
        ({"state": "ended", "done-jobs": "1"}, {"counted": 1}),
        ({"state": "open", "done-jobs": "0"}, {"counted": 1}),
        ({"state": "open", "done-jobs": "1", "dead-jobs": "1"}, {"counted": 1}),
    ],
)
def test_a_group_counts_its_jobs_and_is_open_while_one_is_left(talk, found, wrong):
    talk.put_with("a", 1, "one", "group=g")
    talk.put_with("a", 2, "two", "group=g")
    talk.say("b", "reserve", "RESERVED 1 3", jobs=[(1, "one")])
    talk.say("b", "delete 1", "DELETED")
    assert talk.kinds({2: "two"}, groups={b"g": found}) == wrong


def test_clients_have_no_more_jobs_of_a_limit_at_a_time_than_it_allows(talk):
    for number, body in enumerate(("one", "two", "three"), 1):
        talk.put_with("a", number, body, "limit=l:2")
    talk.reserve("b", 1, "one")
    talk.reserve("b", 2, "two")
    talk.say("b", "release 1 0 0", "RELEASED")
    third = talk.reserve("c", 3, "three")
    left = {1: "one", 2: "two", 3: "three"}
    assert talk.problems(left) == []
    third.sent, third.answered = 7 * MILLISECOND, 9 * MILLISECOND
    talk.history.calls[-2].sent += 10 * MILLISECOND
    assert talk.kinds(left) == {"exceeded": 1}


# The recorder


def test_the_recorder_takes_replies_apart_in_whatever_pieces_they_come():
    history = History()
    recorder = Recorder(history, "a", clock=lambda: 7)
    assert recorder.send(b"put 0 0 60 1", b"x") == b"put 0 0 60 1\r\nx\r\n"
    assert recorder.send(b"reserve-batch 2 0") == b"reserve-batch 2 0\r\n"
    assert recorder.send(b"stats") == b"stats\r\n"
    assert recorder.send(b"reserve") == b"reserve\r\n"
    data = b"INSERTED 1\r\nRESERVED_BATCH 2\r\nRESERVED 1 1\r\nx\r\nRESERVED 2 2\r\n\r\n\r\nOK 3\r\n---\r\n"
    answered = [call for byte in data for call in recorder.receive(bytes([byte]))]
    assert [call.reply for call in answered] == [b"INSERTED 1", b"RESERVED_BATCH 2", b"OK 3"]
    assert answered[1].jobs == ((1, b"x"), (2, b"\r\n"))
    recorder.leave(by_itself=True)
    assert history.counts() == (3, 1)
    assert history.calls[-1].left == 7
    assert [call.is_harmless for call in history.calls] == [False, True, True, True]


# No false alarms


class RandomTalk:
    """Clients that do whatever there is with a server in virtual time, which stops and starts now and then."""

    def __init__(self, seed):
        self.rng = random.Random(seed)
        self.history = History()
        self.policed = policed_tubes(1)
        self.world = self.make_world(MemoryJournal())
        self.clients = {}  # name -> (Caller, Recorder, ids that it has heard of)
        self.names = 0

    def make_world(self, journal):
        policies = {
            name: Policy(
                max_tries=terms.tries,
                backoff=terms.backoff,
                dead_tube=terms.dead,
                ttl=terms.ttl,
                key_hold=terms.hold,
            )
            for name, terms in terms_of(self.policed, 1).items()
        }
        world = World(journal, policies=policies)
        world.info.clock_offset = journal.clock_offset
        return world

    def wall(self):
        return self.world.broker.journal.clock_offset()

    def connect(self):
        self.names += 1
        name = f"client {self.names}"
        recorder = Recorder(self.history, name, lambda: self.world.now)
        self.clients[name] = (self.world.connect(), recorder, [])
        return name

    def step(self):
        rng = self.rng
        for name, (caller, recorder, known) in list(self.clients.items()):
            self.hear(name, caller.read())
            if rng.random() < 0.01:
                recorder.leave(by_itself=True)
                caller.disconnect()
                del self.clients[name]
            elif not recorder.waiting and rng.random() < 0.5:
                moment = self.wall() + self.world.now
                line, body = command(
                    rng, known, self.names, len(self.history.calls), policed=tuple(self.policed), moment=moment
                )
                self.world.now += 1
                self.hear(name, caller.send(recorder.send(line, body)))
        while len(self.clients) < 6:
            self.connect()
        if rng.random() < 0.3:
            self.world.sleep(rng.choice((0.0001, 0.01, 0.5)))
        if rng.random() < 0.01:
            self.restart()
        self.world.check()

    def hear(self, name, data):
        _, recorder, known = self.clients[name]
        for call in recorder.receive(data):
            known += ids_in(call)

    def restart(self):
        """Everything that was committed is there again; here that is everything."""
        began = self.world.now
        for name, (caller, _, _) in self.clients.items():
            self.hear(name, caller.read())
        for _, recorder, _ in self.clients.values():
            recorder.leave(by_itself=False)
        self.clients.clear()
        world = self.make_world(self.world.broker.journal.restarted())
        world.now = self.world.now
        world.broker.restore(world.broker.journal.clock_offset(), world.now)
        world.broker.next_id = max(world.broker.next_id, self.world.broker.next_id)
        self.world = world
        self.history.took_over(began, world.now)

    def problems(self):
        self.world.now += 1
        survivors = {
            job.id: Survivor(job.body, job.tube.name, STATES[job.state], job.key)
            for job in self.world.broker.jobs.values()
        }
        policies = terms_of(self.policed, 1)
        return problems_of(
            self.history, survivors, self.world.now, flight=SECOND, notice=0, policies=policies, wall=self.wall()
        )


@seeded(12)
def test_a_server_that_keeps_its_promises_has_no_problems(seed):
    talk = RandomTalk(seed)
    for _ in range(300):
        talk.step()
    assert talk.problems() == []
    answered, _ = talk.history.counts()
    assert answered > 400


def test_a_journal_that_forgets_is_found_out():
    found = set()
    for seed in range(4):
        talk = RandomTalk(seed)
        for _ in range(200):
            talk.step()
        talk.world.broker.journal.jobs.popitem()
        talk.restart()
        found |= set(kinds_of(talk.problems()))
    assert found >= {"lost"}


def test_a_journal_that_keeps_nothing_is_found_out():
    assert not Journal().keeps
    talk = RandomTalk(1)
    for _ in range(200):
        talk.step()
    talk.world.broker.journal.jobs.clear()
    talk.restart()
    assert kinds_of(talk.problems())["lost"] > 5
