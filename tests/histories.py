"""Histories: what clients have asked for and been told, and whether a server that keeps its promises can have said it.

A client is one connection: a new connection is another client. A test records each command when it is sent and each
reply when it has come, by one clock for all clients, and at the end the jobs that are left. `problems_of` then says
what is wrong, in a sentence each:

    lost        a job whose put was acknowledged is missing, and nobody may have deleted it
    returned    a job is there after DELETED, CANCELLED or CLEARED; or it was deleted twice
    torn        a body that no one has put, that was replaced before, or that belongs to another job
    doubled     one put has made two jobs, or one id was given to two
    shared      two clients have held a job at the same time, within an epoch; or it was taken from its holder
    early       a job was handed out before its delay or its tube's pause was over, while it was buried, or while a job
                of the group that it comes after was left
    keyed       two jobs of a tube lived with the same key at the same time
    order       a job was handed out while one that comes before it in its tube was ready all the time
    misplaced   the id of a job is of another shard than its tube, or it is left in a tube where it cannot have come
    tries       a job was given up before its last try, or was not after it, or counts other tries
    held        a key was given to another job while the job that had it, and was deleted, held it
    open        a job waits for a group that has no job left
    counted     a group has counted more or fewer jobs than it has had, or is open without a job
    exceeded    clients had more jobs of a limit at a time than it allows
    refused     a reply that no server in order gives

What happened when is known only within bounds: a command takes effect between the moment when it is sent and the moment
when its reply has come; one without a reply, at any time after it was sent, or never. Something is a problem only if it
is one wherever the effects lie within their bounds, so none is reported by mistake. Each put must have a body of its
own: that is how a job is told whose put was not acknowledged.

A server may have shards: then each tube is of one of them, and so are the ids of its jobs. A shard has leaders of its
own. A reserve over several shards may be given a job at each of them, and gives back all but one: for a while it holds
jobs of which its client is never told.
"""

from bisect import bisect_left, bisect_right, insort
from collections import Counter, defaultdict
from itertools import accumulate, pairwise
from typing import NamedTuple
from zlib import crc32

NEVER = float("inf")
SECOND = 1_000_000_000

REPLACE = b"replace-keyed"
PUTS = (b"put", b"put-keyed", b"replace-keyed", b"put-with")
SETTING_PRIORITY = (*PUTS, b"release", b"bury")
RESERVES = (b"reserve", b"reserve-with-timeout", b"reserve-batch")
OF_USED_TUBE = (*PUTS, b"cancel-keyed", b"reschedule-keyed", b"peek-keyed", b"kick")
OF_USED_TUBE += (b"peek-ready", b"peek-delayed", b"peek-buried")
OF_NAMED_TUBE = (b"use", b"watch", b"ignore", b"pause-tube", b"clear-tube", b"stats-tube", b"redrive", b"list-jobs")
OF_NO_TUBE = (b"stats", b"stats-tubes", b"list-tubes", b"list-tube-used", b"list-tubes-watched")
HARMLESS = (
    b"use",
    b"watch",
    b"ignore",
    b"stats",
    b"stats-tube",
    b"list-jobs",
    b"stats-tubes",
    b"list-tubes",
    b"list-tube-used",
    b"list-tubes-watched",
)
JOB_REPLIES = (b"RESERVED", b"FOUND")
HOLDING_BACK = {"after", "limit"}
"""Demands with which a job that is ready for all that is known may be passed over."""

REPLIES = {
    b"put": (b"INSERTED", b"OUT_OF_MEMORY", b"DRAINING"),
    b"put-keyed": (b"INSERTED", b"EXISTS", b"OUT_OF_MEMORY", b"DRAINING"),
    b"replace-keyed": (b"INSERTED", b"REPLACED", b"TOO_LATE", b"OUT_OF_MEMORY", b"DRAINING"),
    b"put-with": (b"INSERTED", b"EXISTS", b"REPLACED", b"TOO_LATE", b"OUT_OF_MEMORY", b"DRAINING"),
    b"redrive": (b"REDRIVEN", b"NOT_FOUND"),
    b"delete": (b"DELETED", b"NOT_FOUND"),
    b"cancel": (b"CANCELLED", b"TOO_LATE", b"NOT_FOUND"),
    b"cancel-keyed": (b"CANCELLED", b"TOO_LATE", b"NOT_FOUND"),
    b"reschedule": (b"RESCHEDULED", b"TOO_LATE", b"NOT_FOUND"),
    b"reschedule-keyed": (b"RESCHEDULED", b"TOO_LATE", b"NOT_FOUND"),
    b"release": (b"RELEASED", b"BURIED", b"NOT_FOUND"),
    b"bury": (b"BURIED", b"NOT_FOUND"),
    b"touch": (b"TOUCHED", b"NOT_FOUND"),
    b"reserve": (b"RESERVED", b"DEADLINE_SOON"),
    b"reserve-with-timeout": (b"RESERVED", b"DEADLINE_SOON", b"TIMED_OUT"),
    b"reserve-batch": (b"RESERVED_BATCH", b"DEADLINE_SOON", b"TIMED_OUT"),
    b"reserve-job": (b"RESERVED", b"NOT_FOUND"),
    b"peek": (b"FOUND", b"NOT_FOUND"),
    b"peek-ready": (b"FOUND", b"NOT_FOUND"),
    b"peek-delayed": (b"FOUND", b"NOT_FOUND"),
    b"peek-buried": (b"FOUND", b"NOT_FOUND"),
    b"peek-keyed": (b"FOUND", b"NOT_FOUND"),
    b"kick": (b"KICKED",),
    b"kick-job": (b"KICKED", b"NOT_FOUND"),
    b"pause-tube": (b"PAUSED", b"NOT_FOUND", b"OUT_OF_MEMORY"),
    b"clear-tube": (b"CLEARED", b"NOT_FOUND", b"OUT_OF_MEMORY"),
    b"use": (b"USING",),
    b"watch": (b"WATCHING",),
    b"ignore": (b"WATCHING", b"NOT_IGNORED"),
    b"stats": (b"OK",),
    b"stats-job": (b"OK", b"NOT_FOUND"),
    b"stats-tube": (b"OK", b"NOT_FOUND"),
    b"list-jobs": (b"OK", b"NOT_FOUND"),
    b"stats-tubes": (b"OK",),
    b"list-tubes": (b"OK",),
    b"list-tube-used": (b"USING",),
    b"list-tubes-watched": (b"OK",),
}


class Call:
    """One command of one client, and what was said to it."""

    __slots__ = ("answered", "body", "client", "jobs", "left", "line", "reply", "sent", "voluntary")

    def __init__(self, client, line, body, sent):
        self.client = client
        self.line = line  # without CR LF
        self.body = body  # of a put, or None
        self.sent = sent
        self.answered = NEVER
        self.reply = None  # the first line, without CR LF
        self.jobs = ()  # (id, body) of each job in the reply
        self.left = NEVER  # when the client was gone, if it had no reply by then

    def answer(self, reply, now, jobs=()):
        """Record the reply: its line without CR LF, and the jobs that it brings, as (id, body)."""
        assert self.reply is None
        self.reply = reply
        self.answered = now
        self.jobs = tuple(jobs)

    @property
    def is_harmless(self):
        """Whether the command changes nothing that others see, or that outlives its connection."""
        word = self.line.partition(b" ")[0]
        return word in HARMLESS or word.startswith((b"peek", b"stats", b"list")) or word in RESERVES

    def __repr__(self):
        return f"{self.client} {self.line!r} [{self.sent}, {self.answered}] {self.reply!r}"


class Leaving(NamedTuple):
    """The end of a client."""

    now: float
    by_itself: bool
    """Whether it has hung up itself; otherwise it was disconnected, and nobody knows since when."""


class Takeover(NamedTuple):
    """Another leader has begun to serve, or the same one after a stop."""

    began: float
    ended: float
    shard: int | None
    """The shard that it leads, or None if nobody knows which."""

    def concerns(self, shard):
        return self.shard is None or self.shard == shard


class Cut(NamedTuple):
    """A node has lost its leader, and the leader that node."""

    began: float
    ended: float
    """The bounds of the moment when the node has lost its leader."""
    noticed: float
    """When the leader has certainly noticed, and what was reserved over the link is ready."""
    clients: frozenset | None
    """Those that the node has passed on, or None if nobody knows which."""
    shard: int | None = None
    """The shard whose leader it was, or None if nobody knows which."""

    def concerns(self, client, shard):
        is_of_shard = self.shard is None or shard is None or self.shard == shard
        return is_of_shard and (self.clients is None or client in self.clients)


class Survivor(NamedTuple):
    """A job that is left at the end."""

    body: bytes
    tube: str = ""
    """"" if it is not known; so in what follows."""
    state: str = ""
    key: str = ""
    tries: int = -1
    """-1 if it is not known."""


class History:
    """All that was said. All moments are nanoseconds."""

    def __init__(self):
        self.calls = []
        self.leavings = {}  # client -> Leaving
        self.takeovers = []
        self.cuts = []
        self._open = defaultdict(list)  # client -> its calls without a reply

    def send(self, client, line, now, body=None):
        """Record a command: its line without CR LF, and the body of a put. Return it."""
        assert client not in self.leavings, f"{client} is gone"
        call = Call(client, line, body, now)
        self.calls.append(call)
        self._open[client].append(call)
        return call

    def leave(self, client, now, *, by_itself):
        """Record that a client has hung up, or has found that it was disconnected."""
        if client not in self.leavings:
            self.leavings[client] = Leaving(now, by_itself)
            for call in self._open.pop(client, ()):
                call.left = min(call.left, now)

    def took_over(self, began, ended, shard=None):
        """Record that another leader has begun to serve, or the same one after a stop, within these bounds.

        What was reserved is ready then, and pauses are gone; clients need not notice.

        Args:
            shard: the one that it leads, or None if nobody knows which.
        """
        self.takeovers.append(Takeover(began, ended, shard))

    def cut(self, began, ended, noticed=None, clients=None, shard=None):
        """Record that a node has lost its leader within these bounds; clients need not notice.

        What they had reserved is ready when the leader has noticed. A reserve that waits is given again, and so may get
        one job after another: the first one was on its way when the link was cut.

        Args:
            noticed: when the leader has certainly noticed; the end, if it is not given.
            clients: those that the node has passed on, or None if nobody knows which.
            shard: the one whose leader it was, or None if nobody knows which.
        """
        clients = None if clients is None else frozenset(clients)
        self.cuts.append(Cut(began, ended, ended if noticed is None else noticed, clients, shard))

    def counts(self):
        """How many commands were acknowledged, and how many were sent and never answered."""
        answered = sum(call.reply is not None for call in self.calls)
        return answered, len(self.calls) - answered


class Recorder:
    """Records what one client says and hears as bytes.

    Args:
        clock: returns the present, in nanoseconds.
    """

    def __init__(self, history, client, clock):
        self.history = history
        self.client = client
        self.clock = clock
        self.waiting = []  # calls without a reply, in their order
        self._input = b""

    def send(self, line, body=None):
        """Record a command; return the bytes to send."""
        self.waiting.append(self.history.send(self.client, line, self.clock(), body))
        return line + b"\r\n" if body is None else b"%b\r\n%b\r\n" % (line, body)

    def receive(self, data):
        """Record what has come; return the calls that are answered by it."""
        self._input += data
        answered = []
        while (reply := self._take()) is not None:
            line, jobs = reply
            assert self.waiting, f"{self.client} is told {line!r}, and has asked nothing"
            call = self.waiting.pop(0)
            call.answer(line, self.clock(), jobs)
            answered.append(call)
        return answered

    def leave(self, *, by_itself):
        """Record the end of the client."""
        self.history.leave(self.client, self.clock(), by_itself=by_itself)

    def _take(self):
        """The next reply, whole, with its jobs; None if it has not come yet."""
        line, jobs, end = self._take_one(0)
        if line is None:
            return None
        if line.startswith(b"RESERVED_BATCH "):
            for _ in range(int(line.split()[1])):
                one, found, end = self._take_one(end)
                if one is None:
                    return None
                jobs += found
        self._input = self._input[end:]
        return line, jobs

    def _take_one(self, start):
        end = self._input.find(b"\r\n", start)
        if end < 0:
            return None, [], start
        line = self._input[start:end]
        end += 2
        words = line.split()
        if words and words[0] in (*JOB_REPLIES, b"OK"):
            size = int(words[-1])
            if len(self._input) < end + size + 2:
                return None, [], start
            body = self._input[end : end + size]
            assert self._input[end + size : end + size + 2] == b"\r\n", line
            jobs = [(int(words[1]), body)] if words[0] in JOB_REPLIES else []
            return line, jobs, end + size + 2
        return line, [], end


# What follows finds the problems


class Terms(NamedTuple):
    """What is demanded of a job, by its put or by the policy of its tube; 0: nothing."""

    tries: int = 0
    backoff: int = 0  # nanoseconds, as in what follows
    ttl: int = 0
    hold: int = 0
    dead: str = ""
    """The tube where it goes when it is given up, if that is of the same shard."""


NO_TERMS = Terms()


class Effect(NamedTuple):
    """Something that has happened to a job, or may have."""

    low: float  # not before
    high: float  # not after; NEVER if it may not have happened at all
    due: float = 0.0  # nanoseconds from then on until it may be handed out; NEVER: not before it is kicked
    priority: int = 0
    body: bytes | None = None
    ttr: int = 0
    call: Call | None = None
    terms: Terms = NO_TERMS

    @property
    def is_sure(self):
        return self.high != NEVER

    @property
    def is_chosen(self):
        """Whether the client has asked for this job, and not for the next one."""
        return self.call.line.startswith(b"reserve-job")


class Effects:
    """Effects by the moment from which on they may have happened."""

    def __init__(self):
        self.all = []
        self._lows = None
        self._highest = None

    def append(self, effect):
        self.all.append(effect)

    def any_within(self, low, high):
        """Whether any of them may have happened between two moments."""
        if self._lows is None:
            self.all.sort(key=lambda effect: effect.low)
            self._lows = [effect.low for effect in self.all]
            self._highest = list(accumulate((effect.high for effect in self.all), max))
        place = bisect_right(self._lows, high)
        return place > 0 and self._highest[place - 1] >= low


class Hold(NamedTuple):
    """A time in which a client has certainly held a job."""

    start: float
    end: float
    call: Call


class Unknown(NamedTuple):
    """A time in which a client may have held a job of which it was not told."""

    start: float
    end: float
    tubes: frozenset
    """It was of one of these."""


class JobHistory:
    """What is known of one job."""

    def __init__(self, number):
        self.number = number
        self.birth = None  # the Effect of its put
        self.tube = None
        self.key = None
        self.bodies = []  # effects that have given it a body
        self.ends = []  # effects that have ended it, or may have
        self.seen = []  # effects: it was there
        self.absent = []  # effects: it was not there
        self.reservations = []
        self.unknown_holds = []  # Unknown: somebody may have reserved just this one, and was not told
        self.dues = []  # effects that decide when it may be handed out
        self.touched = []  # effects that may have changed its state
        self.starts = []  # (effect, priority) from which on it is ready
        self.releases = []  # effects, answered
        self.named = set()  # the calls that were told that it has their key
        self.terms = []  # all that may be demanded of it, each by itself
        self.limit = NEVER  # the fewest failures after which it may be given up
        self.ttl = NEVER  # the shortest time to live that it may have had
        self.backoff = 0  # the shortest
        self.places = ()  # the tubes where it may have been
        self.demands = {}  # what its put demands, by name

    @property
    def moves(self):
        """Whether it may have gone to a dead tube."""
        return len(self.places) > 1


class Tube:
    """What is known of one tube."""

    def __init__(self):
        self.kicks = Effects()  # of any of its jobs, and redrives
        self.clears = Effects()
        self.pauses = []
        self.jobs = []


class Analysis:
    """Finds the problems of a history; see `problems_of`."""

    def __init__(self, history, survivors, end, flight, notice, drift, skew, shards, policies, wall, groups):
        self.groups = groups
        self.shards = shards
        self.policies = policies
        self.wall = wall
        self.history = history
        self.survivors = survivors
        self.end = end
        self.flight = flight
        self.notice = notice
        self.drift = drift
        self.skew = skew
        self.problems = []
        self.jobs = {}
        self.tubes = defaultdict(Tube)
        self.keys = defaultdict(list)  # (tube, key) -> its jobs
        self.by_key = defaultdict(list)  # (tube, key) -> (what, Effect) of commands that name the key
        self.unknown_puts = {}  # body -> (call, tube, key) of puts without a reply
        self.unseen = defaultdict(list)  # (tube, key) -> puts without a reply whose bodies nobody has seen
        self.born = {}  # body -> id, of puts with a reply
        self.unknown_holds = []  # Unknown: a job may be held by somebody who was not told
        self.own = defaultdict(list)  # (client, id) -> moments when the client may have given the job away
        self.touches = defaultdict(list)  # (client, id) -> effects
        self.misses = defaultdict(list)  # (client, id) -> effects: NOT_FOUND to a command of a holder
        self.last_heard = {}  # client -> when it sent the last command that was answered
        self.pending_sightings = []

    def report(self, kind, text):
        self.problems.append(f"{kind}: {text}")

    def shard_of(self, tube):
        """The shard of a tube."""
        return crc32(tube.encode()) % self.shards

    def job(self, number):
        if number not in self.jobs:
            self.jobs[number] = JobHistory(number)
        return self.jobs[number]

    def run(self):
        clients = defaultdict(list)
        for call in self.history.calls:
            clients[call.client].append(call)
        self._cut_moments = Effects()
        for cut in self.history.cuts:
            self._cut_moments.append(Effect(cut.began, cut.ended))
        for calls in clients.values():
            self._read_client(calls)
        self._bind_bodies()
        self._resolve_keys()
        for job in self.jobs.values():
            self._find_terms(job)
        for job in self.jobs.values():
            for effects in (job.bodies, job.ends, job.seen, job.reservations, job.dues):
                effects.sort(key=lambda effect: effect.low)
        for job in self.jobs.values():
            self._check_life(job)
            self._check_bodies(job)
            self._check_due(job)
            self._check_holders(job)
            self._check_tries(job)
        self._check_keys()
        self._check_held()
        self._check_order()
        self._check_groups()
        self._check_limits()
        return self.problems

    # Reading

    def _read_client(self, calls):
        using = "default"
        watched = {"default"}
        before = None
        undone = {}  # shard -> Unknown: what a reserve may have been given there, besides what its client was told
        for call in calls:
            words = call.line.split()
            what = words[0]
            reply = (call.reply or b"").split()
            word = reply[0] if reply else None
            if word is not None:
                self.last_heard[call.client] = call.sent
                if word not in REPLIES[what]:
                    self.report("refused", f"{call!r}")
                    continue
            low, high = call.sent, call.answered
            is_alone = before is None or before.answered <= call.sent
            if what in RESERVES and word is not None and self.flight is not None and is_alone:
                low = max(low, high - self.flight)
            before = call
            effect = Effect(low, high, call=call)
            if undone and word is not None:
                for shard in self._shards_of(what, words, using, watched):
                    self._note_undone(undone.pop(shard, None), shard, high)
            if what == b"use":
                using = words[1].decode()
            elif what == b"watch":
                watched = watched | {words[1].decode()}
            elif what == b"ignore":
                if word != b"NOT_IGNORED":
                    watched = watched - {words[1].decode()}
            elif what in PUTS:
                self._read_put(effect, what, words, word, reply, using)
            elif what in RESERVES or what == b"reserve-job":
                self._read_reserve(effect, what, words, word, watched)
                undone |= self._undone_of(call, what, word, watched)
            elif what in (b"peek", b"peek-ready", b"peek-delayed", b"peek-buried", b"peek-keyed"):
                if word == b"FOUND":
                    self._see(effect, *call.jobs[0])
                elif word == b"NOT_FOUND" and what == b"peek":
                    self.job(int(words[1])).absent.append(effect)
            elif what == b"stats-job":
                job = self.job(int(words[1]))
                if word is not None:
                    (job.seen if word == b"OK" else job.absent).append(effect)
            elif what in (b"cancel-keyed", b"reschedule-keyed"):
                if word not in (b"NOT_FOUND", b"TOO_LATE"):
                    due = nanoseconds(words[2]) if what == b"reschedule-keyed" else 0
                    self.by_key[using, words[1].decode()].append((what, effect._replace(due=due)))
            elif what == b"kick":
                if reply != [b"KICKED", b"0"]:
                    self.tubes[using].kicks.append(effect)
            elif what == b"redrive":
                if word != b"NOT_FOUND" and reply != [b"REDRIVEN", b"0"]:
                    self.tubes[words[1].decode()].kicks.append(effect)
            elif what == b"pause-tube":
                if word == b"PAUSED":
                    self.tubes[words[1].decode()].pauses.append(effect._replace(due=nanoseconds(words[2])))
            elif what == b"clear-tube":
                if word not in (b"NOT_FOUND", b"OUT_OF_MEMORY"):
                    self.tubes[words[1].decode()].clears.append(effect)
            elif what in (b"delete", b"cancel", b"reschedule", b"release", b"bury", b"touch", b"kick-job"):
                self._read_change(effect, what, words, word)
        leaving = self.history.leavings.get(calls[0].client)
        gone = NEVER if leaving is None or self.notice is None else leaving.now + self.notice
        for shard, hold in undone.items():
            self._note_undone(hold, shard, gone)

    def _shards_of(self, what, words, using, watched):
        """The shards that have done a command."""
        if self.shards == 1 or what in OF_NO_TUBE:
            return []
        if what in RESERVES:
            return list(self._by_shard(watched))
        if what in OF_USED_TUBE:
            return [self.shard_of(using)]
        if what in OF_NAMED_TUBE:
            return [self.shard_of(words[1].decode())]
        return [int(words[1]) % self.shards]

    def _undone_of(self, call, what, word, watched):
        """What a reserve may have been given at each shard, besides what its client was told.

        It is given back before the shard does anything else for the client.
        """
        if self.shards == 1 or word is None or what == b"reserve-job":
            return {}
        tubes = self._by_shard(watched)
        if len(tubes) == 1:
            return {}
        told = {number % self.shards for number, _ in call.jobs}
        return {shard: Unknown(call.sent, NEVER, names) for shard, names in tubes.items() if shard not in told}

    def _note_undone(self, hold, shard, end):
        """Note that what a reserve may have been given is certainly ready again."""
        if hold is not None:
            later = (each.ended for each in self.history.takeovers if each.concerns(shard) and each.began >= hold.start)
            self.unknown_holds.append(hold._replace(end=min([end, *later])))

    def _read_put(self, effect, what, words, word, reply, using):
        call = effect.call
        attributes = attributes_of(call.line)
        key = attributes["key"].decode() if "key" in attributes else None
        fields = words[1:] if what in (b"put", b"put-with") else words[2:]
        priority, due, ttr = int(fields[0]), nanoseconds(fields[1]), max(nanoseconds(fields[2]), SECOND)
        if "at" in attributes:
            due = max(nanoseconds(attributes["at"]) - self.wall - call.sent, 1)
        effect = effect._replace(due=due, priority=priority, body=call.body, ttr=ttr, terms=terms_of(attributes))
        if word is None:
            if call.body in self.unknown_puts or call.body in self.born:
                raise ValueError(f"two puts have the body {call.body!r}")
            self.unknown_puts[call.body] = effect, using, key
        elif word in (b"INSERTED", b"REPLACED"):
            job = self.job(int(reply[1]))
            if call.body in self.unknown_puts or call.body in self.born:
                raise ValueError(f"two puts have the body {call.body!r}")
            self.born[call.body] = job.number
            if word == b"INSERTED":
                self._bear(job, effect, using, key)
            else:
                job.bodies.append(effect)
                job.seen.append(effect._replace(body=None))
                job.dues.append(effect)
                job.touched.append(effect)
        elif word in (b"EXISTS", b"TOO_LATE"):
            job = self.job(int(reply[1]))
            job.seen.append(effect._replace(body=None))
            job.named.add(call)
        if "replace" in attributes and word is None:
            self.by_key[using, key].append((REPLACE, effect))

    def _bear(self, job, effect, tube, key):
        if job.birth is not None:
            self.report("doubled", f"job {job.number} was put by {job.birth.call!r}, and by {effect.call!r}")
            return
        if job.number % self.shards != self.shard_of(tube):
            self.report("misplaced", f"job {job.number} in tube {tube}: {effect.call!r}")
        job.birth = effect
        job.tube = tube
        job.key = key
        self.tubes[tube].jobs.append(job)
        job.bodies.append(effect)
        job.dues.append(effect)
        job.demands = attributes_of(effect.call.line)
        if not effect.due and not job.demands.keys() & HOLDING_BACK:
            job.starts.append((effect, effect.priority))
        if key is not None:
            self.keys[tube, key].append(job)

    def _read_reserve(self, effect, what, words, word, watched):
        call = effect.call
        if word is None:
            end = NEVER if self.notice is None else call.left + self.notice
            if what == b"reserve-job":
                job = self.job(int(words[1]))
                job.touched.append(effect)
                job.dues.append(effect._replace(due=0))
                job.unknown_holds.append(Unknown(effect.low, end, frozenset()))
            else:
                self.unknown_holds.append(Unknown(effect.low, end, frozenset(watched)))
            return
        if what != b"reserve-job" and self._cut_moments.any_within(effect.low, effect.high):
            for shard, tubes in self._by_shard(watched).items():
                ends = [self._end_of(cut, shard) for cut in self.history.cuts if _was_cut(call, cut, shard)]
                if ends:
                    self.unknown_holds.append(Unknown(effect.low, max(ends), tubes))
        if what == b"reserve-job" and word == b"RESERVED":
            self.job(int(words[1])).dues.append(effect)  # also of a delayed or a buried job
        for number, body in call.jobs:
            job = self.job(number)
            self._see(effect, number, body)
            job.reservations.append(effect._replace(body=body))
            job.touched.append(effect)

    def _by_shard(self, tubes):
        """Names of tubes by their shard."""
        found = defaultdict(set)
        for tube in tubes:
            found[self.shard_of(tube)].add(tube)
        return {shard: frozenset(names) for shard, names in found.items()}

    def _end_of(self, cut, shard):
        """When what was reserved over a link at a shard is certainly ready again."""
        later = [each.ended for each in self.history.takeovers if each.concerns(shard) and each.began >= cut.ended]
        return min([cut.noticed, *later])

    def _read_change(self, effect, what, words, word):
        call = effect.call
        number = int(words[1])
        job = self.job(number)
        whose = call.client, number
        if word == b"NOT_FOUND":
            if what in (b"delete", b"release", b"bury", b"touch"):
                self.misses[whose].append(effect)
            return
        if word == b"TOO_LATE" or (word is not None and what not in (b"delete", b"cancel")):
            job.seen.append(effect)
        if word == b"TOO_LATE":
            return
        if what == b"touch":
            if word is not None:
                self.touches[whose].append(effect)
            return
        job.touched.append(effect)
        if what in (b"delete", b"cancel"):
            self.own[whose].append(effect.low)
            job.ends.append(effect)
        elif what == b"release":
            self.own[whose].append(effect.low)
            due = NEVER if word == b"BURIED" else nanoseconds(words[3])
            job.dues.append(effect._replace(due=due, priority=int(words[2])))
            if word is not None:
                job.releases.append(effect)
            if word == b"RELEASED" and not due:
                job.starts.append((effect, int(words[2])))
        elif what == b"bury":
            self.own[whose].append(effect.low)
            job.dues.append(effect._replace(due=NEVER, priority=int(words[2])))
        elif what == b"reschedule":
            job.dues.append(effect._replace(due=nanoseconds(words[2])))
        else:
            job.dues.append(effect._replace(due=0))

    def _see(self, effect, number, body):
        self.pending_sightings.append((effect, number, body))

    def _bind_bodies(self):
        """Find out whose puts without a reply have made jobs: somebody has seen their bodies."""
        for number, survivor in self.survivors.items():
            self._see(Effect(self.end, self.end), number, survivor.body)
        bound = {}
        for effect, number, body in sorted(self.pending_sightings, key=lambda sighting: sighting[0].high):
            job = self.job(number)
            owner = self.born.get(body, bound.get(body))
            if owner is None and body in self.unknown_puts:
                put, tube, key = self.unknown_puts[body]
                bound[body] = number
                if job.birth is None:
                    self._bear_before(job, put, tube, key, bound)
                if job.birth is None:
                    self._bear(job, put, tube, key)
                elif put.call in [each.call for each in (job.birth, *job.bodies)]:
                    pass  # what was seen first had replaced it, and that was never confirmed
                elif (
                    key is not None
                    and key == job.key
                    and tube in self._places_of(job.tube)
                    and (_replaces(put) or _replaces(job.birth))
                ):
                    self._replace(job, put)
                else:
                    self.report("doubled", f"id {number} was given to {job.birth.call!r}, and to {put.call!r}")
            elif owner is None:
                self.report("torn", f"no one has put the body of job {number}: {body[:60]!r} in {effect.call!r}")
            elif owner != number:
                self.report("doubled", f"jobs {owner} and {number} have the body of one put: {body[:60]!r}")
            job.seen.append(effect._replace(body=body))
        for body, (put, *place) in self.unknown_puts.items():
            if body not in bound:
                self.unseen[tuple(place)].append(put)

    def _replace(self, job, put):
        """Note that a put may have given a job another body, and all that comes with it."""
        job.bodies.append(put)
        job.dues.append(put)
        job.touched.append(put)

    def _bear_before(self, job, put, tube, key, bound):
        """If a job was there before the put whose body was seen first, that has replaced the body of an earlier one.

        Nobody has seen that body, so it is one of the puts with this key without a reply, or several of them.
        """
        seen = min((sight.high for sight in job.seen), default=NEVER)
        if not _replaces(put) or seen >= put.low:
            return
        earlier = [
            (other, place)
            for body, (other, place, name) in self.unknown_puts.items()
            if tube in self._places_of(place) and name == key and body not in bound and other.low <= seen
        ]
        if earlier:
            (first, place), *others = sorted(earlier, key=lambda each: each[0].low)
            self._bear(job, first, place, key)
            for other, _ in others:
                self._replace(job, other)

    def _resolve_keys(self):
        """Find out which jobs the commands concern that name a key only."""
        for place, named in self.by_key.items():
            tube, key = place
            tubes = [tube, *(name for name, policy in self.policies.items() if policy.dead == tube)]
            jobs = [job for name in tubes for job in self.keys.get((name, key), ())]
            puts = [put for name in tubes for put in self.unseen.get((name, key), ())]
            for what, effect in named:
                candidates = [
                    job
                    for job in jobs
                    if job.birth.low <= effect.high and not any(end.high < effect.low for end in job.ends)
                ]
                unseen = [put for put in puts if put.low <= effect.high]
                if len(candidates) + len(unseen) > 1 or any(self._places_of(job.tube)[1:] for job in candidates):
                    effect = effect._replace(high=NEVER)
                for job in candidates:
                    job.touched.append(effect)
                    if what == b"cancel-keyed":
                        job.ends.append(effect)
                    else:
                        job.dues.append(effect)
                        if what == REPLACE:
                            job.terms.append(effect.terms)

    def _places_of(self, tube):
        """The tubes where a job that was put into this one may be."""
        dead = self.policies.get(tube, NO_TERMS).dead
        return (tube, dead) if dead else (tube,)

    def _find_terms(self, job):
        """Find out what may be demanded of a job."""
        policy = self.policies.get(job.tube, NO_TERMS)
        each = [effect.terms for effect in job.bodies] + job.terms
        job.places = self._places_of(job.tube)
        job.terms = [Terms(*[own or of_tube for own, of_tube in zip(terms, policy, strict=True)]) for terms in each]
        if not job.terms:
            return
        job.limit = min(terms.tries or NEVER for terms in job.terms)
        job.ttl = min(terms.ttl or NEVER for terms in job.terms)
        job.backoff = min(terms.backoff for terms in job.terms)
        for number, effect in enumerate(job.dues):
            if _word(effect) == b"release":
                if job.moves:
                    job.dues[number] = effect._replace(due=0)  # it may be ready in the dead tube
                elif not effect.due:
                    job.dues[number] = effect._replace(due=job.backoff)
        if (
            job.moves
            or job.limit != NEVER
            or any(terms.backoff for terms in job.terms)
            or job.demands.keys() & HOLDING_BACK
        ):
            job.starts = [start for start in job.starts if _word(start[0]) != b"release"]
        if any(attributes_of(each.call.line).keys() & HOLDING_BACK for each in job.bodies if each is not job.birth):
            job.starts = []  # it may be held back since it was replaced

    def _expires(self, job):
        """Before this moment, it has certainly not expired."""
        return job.birth.low + job.ttl * (1 - self.drift) - self.skew

    # Checks

    def _may_have_ended(self, job, moment):
        """Whether a job may have been ended by a moment."""
        if any(end.low <= moment for end in job.ends) or moment >= self._expires(job):
            return True
        return any(self.tubes[tube].clears.any_within(job.birth.low, moment) for tube in job.places)

    def _check_life(self, job):
        number = job.number
        sure = [end for end in job.ends if end.is_sure]
        if len(sure) > 1:
            self.report("returned", f"job {number} was ended twice: {sure[0].call!r} and {sure[1].call!r}")
        if job.birth is not None:
            sure += self._sure_clears(job)
        if sure:
            end = min(sure, key=lambda effect: effect.high)
            # A key that is held may be so for longer: the end of a hold waits while the journal takes no more.
            # Of a job whose put was not answered, neither the tube is known nor what was demanded.
            is_held = _word(end) == b"delete" and (job.birth is None or any(terms.hold for terms in job.terms))
            late = next(
                (sight for sight in job.seen if sight.low > end.high and not (is_held and sight.call in job.named)),
                None,
            )
            if late is not None:
                self.report("returned", f"job {number}, after {end.call!r}: {late.call or 'left at the end'!r}")
        birth = job.birth
        if birth is None:
            return
        early = next((sight for sight in job.seen if sight.high < birth.low), None)
        if early is not None:
            self.report("torn", f"job {number} was there before {birth.call!r}: {early.call!r}")
        for absent in job.absent:
            if absent.low > birth.high and not self._may_have_ended(job, absent.high):
                self.report("lost", f"job {number} of {birth.call!r}: {absent.call!r}")
                break
        if number not in self.survivors and not self._may_have_ended(job, self.end) and birth.call.reply is not None:
            self.report("lost", f"job {number} of {birth.call!r} is not there at the end")

    def _sure_clears(self, job):
        """The clears that have certainly ended a job: nobody can have held it then."""
        clears = self.tubes[job.tube].clears.all
        if not clears or job.moves:
            return []
        first = min((effect.low for effect in job.reservations), default=NEVER)
        unknown = [*job.unknown_holds, *(hold for hold in self.unknown_holds if job.tube in hold.tubes)]
        return [
            clear
            for clear in clears
            if clear.is_sure
            and job.birth.high < clear.low
            and first > clear.high
            and not any(hold.start <= clear.high and hold.end >= clear.low for hold in unknown)
        ]

    def _check_bodies(self, job):
        by_body = {effect.body: effect for effect in job.bodies}
        for sight in job.seen:
            given = by_body.get(sight.body)
            if given is None:
                continue
            if given.low > sight.high:
                self.report("torn", f"job {job.number} had its body before {given.call!r}: {sight.call!r}")
            for later in job.bodies:
                if later.high < sight.low and given.high < later.low:
                    self.report("torn", f"job {job.number} has the body from before {later.call!r}: {sight.call!r}")
                    break

    def _check_due(self, job):
        """No job is handed out before its time, while it is buried, or while its tube is paused."""
        events = [effect for effect in job.reservations if not effect.is_chosen]
        survivor = self.survivors.get(job.number)
        if survivor is not None and survivor.state == "ready":
            events.append(Effect(self.end, self.end))
        if job.birth is None:
            return
        tube = self.tubes[job.tube]
        for event in events:
            others = [effect for effect in job.reservations if effect.call is not event.call]
            candidates = _latest(job.dues + others, event)
            since = max((effect.low for effect in candidates if effect.high < event.low), default=-NEVER)
            if candidates and not any(self.tubes[name].kicks.any_within(since, event.high) for name in job.places):
                latest = event.high + self.skew
                if all(effect.low + effect.due * (1 - self.drift) > latest for effect in candidates):
                    what = "is ready" if event.call is None else f"{event.call!r}"
                    self.report("early", f"job {job.number} after {candidates[-1].call!r}: {what}")
            if event.call is not None and tube.pauses and not job.moves:
                self._check_pause(job, tube, event)

    def _check_pause(self, job, tube, event):
        candidates = _latest(tube.pauses, event)
        since = max((pause.low for pause in candidates if pause.high < event.low), default=None)
        if since is None:
            return
        shard = self.shard_of(job.tube)
        if any(takeover.ended >= since and takeover.concerns(shard) for takeover in self.history.takeovers):
            return  # a pause ends with its leader
        if all(pause.low + pause.due * (1 - self.drift) > event.high + self.skew for pause in candidates):
            self.report("early", f"job {job.number} while {candidates[-1].call!r}: {event.call!r}")

    def _check_holders(self, job):
        ttrs = [effect.ttr for effect in job.bodies]
        if not job.reservations or not ttrs:
            return
        lows = [effect.low for effect in job.reservations]
        for effect in job.reservations:
            hold = self._hold(job, effect, min(ttrs))
            for other in job.reservations[bisect_right(lows, hold.start) : bisect_left(lows, hold.end)]:
                if other.call is not hold.call and other.high < hold.end:
                    self.report("shared", f"job {job.number}: {hold.call!r} and {other.call!r}")
            for miss in self.misses[hold.call.client, job.number]:
                if miss.low > hold.start and miss.high < hold.end:
                    text = f"job {job.number} was taken from its holder: {hold.call!r}, then {miss.call!r}"
                    self.report("shared", text)

    def _hold(self, job, effect, ttr):
        """From when to when the client has certainly held the job that it has been given."""
        client = effect.call.client
        whose = client, job.number
        start = effect.high
        end = effect.low + ttr * (1 - self.drift)
        again = min(
            (other.low for other in job.reservations if other.call.client == client and other.low > start),
            default=NEVER,
        )
        for touch in self.touches[whose]:
            if start <= touch.low < again:
                end = max(end, touch.low + ttr * (1 - self.drift))
        end = min([end, *(moment for moment in self.own[whose] if moment >= effect.low)])
        leaving = self.history.leavings.get(client)
        if leaving is not None:
            end = min(end, leaving.now if leaving.by_itself else self.last_heard[client])
        shard = job.number % self.shards
        for takeover in self.history.takeovers:
            if takeover.ended >= effect.low and takeover.concerns(shard):
                end = min(end, takeover.began)
        for cut in self.history.cuts:
            if cut.noticed >= effect.low and cut.concerns(client, shard):
                end = min(end, cut.began)
        return Hold(start, end, effect.call)

    def _check_keys(self):
        for (tube, key), jobs in self.keys.items():
            jobs.sort(key=lambda job: job.birth.low)
            if any(job.moves for job in jobs):
                continue  # who goes to a dead tube takes the key along
            for before, after in pairwise(jobs):
                born = after.birth
                if before.birth.high >= born.low:
                    continue
                if not self._may_have_ended(before, born.high):
                    text = f"{tube} {key}: job {before.number} lives, and {born.call!r}"
                    self.report("keyed", text)
            latest, whose = -NEVER, None  # who was seen last
            for job in jobs:
                if latest > job.birth.high and whose.birth.high < job.birth.low:
                    self.report("keyed", f"{tube} {key}: job {whose.number} was there after {job.birth.call!r}")
                last = max((sight.low for sight in job.seen), default=-NEVER)
                if last > latest:
                    latest, whose = last, job

    def _check_held(self):
        """While a key is held, it is given to nobody."""
        for (tube, key), jobs in self.keys.items():
            clears = self.tubes[tube].clears
            for before in jobs:
                hold = min(terms.hold for terms in before.terms)
                end = next((end for end in before.ends if end.is_sure and _word(end) == b"delete"), None)
                if not hold or end is None or before.moves:
                    continue
                free = end.low + hold * (1 - self.drift) - self.skew
                for after in jobs:
                    born = after.birth
                    if before.birth.high < born.low and born.high < free and not clears.any_within(end.low, born.high):
                        self.report(
                            "held", f"{tube} {key}: job {before.number} of {end.call!r} holds it: {born.call!r}"
                        )

    def _check_tries(self, job):
        """A job is given up when it has failed as often as it may, and not before."""
        if job.birth is None:
            return
        survivor = self.survivors.get(job.number)
        if survivor is not None and survivor.tube not in ("", *job.places):
            self.report("misplaced", f"job {job.number} of {job.birth.call!r} is in {survivor.tube}")
        elif survivor is not None and job.moves and survivor.tube == job.places[1]:
            self._check_failures(job, Effect(self.end, self.end), "is in the dead tube")
        resets = [effect for effect in job.dues if _word(effect) == b"kick-job"]
        resets += [kick for name in job.places for kick in self.tubes[name].kicks.all]
        if survivor is not None and survivor.tries >= 0 and survivor.tube == job.tube and len(job.terms) == 1:
            since = max((reset.high for reset in resets), default=-NEVER)
            least = sum(release.low > since for release in job.releases)
            over = survivor.tries >= job.limit and survivor.state != "buried"
            if job.limit != NEVER and (
                survivor.tries < least or over or not self._may_have_failed(job, survivor.tries)
            ):
                self.report("tries", f"job {job.number} of {job.birth.call!r} has {survivor.tries} tries at the end")
        if job.moves:
            return
        for release in job.releases:
            if release.call.reply == b"BURIED":
                self._check_failures(job, release, f"{release.call!r}")
            elif len(job.terms) == 1 and job.limit != NEVER:
                since = max((reset.high for reset in resets if reset.low <= release.high), default=-NEVER)
                before = [other for other in job.releases if other.low > since and other.high < release.low]
                if release.low > since and len(before) + 1 >= job.limit:
                    self.report("tries", f"job {job.number} of {job.birth.call!r} has failed before: {release.call!r}")

    def _check_failures(self, job, event, what):
        """A job that has been given up by then may have failed so often: nobody fails without having reserved."""
        if job.moves and event.high >= self._expires(job):
            return
        if not self._may_have_failed(job, job.limit, event.high):
            count = sum(effect.low <= event.high for effect in job.reservations)
            self.report("tries", f"job {job.number} of {job.birth.call!r}, reserved {count} times: {what}")

    def _may_have_failed(self, job, count, moment=NEVER):
        """Whether a job may have failed `count` times by a moment."""
        if job.unknown_holds or any(
            hold.start <= moment and not hold.tubes.isdisjoint(job.places) for hold in self.unknown_holds
        ):
            return True
        return sum(effect.low <= moment for effect in job.reservations) >= count

    def _check_groups(self):
        """A job that comes after a group waits as long as a job of the group is left, and no longer."""
        members = defaultdict(list)
        for job in self.jobs.values():
            for group in {attributes_of(each.call.line).get("group") for each in job.bodies} - {None}:
                members[group].append(job)
        for job in self.jobs.values():
            if "after" in job.demands and len(job.bodies) == 1:
                self._check_after(job, members[job.demands["after"].partition(b":")[0]])
        asked = Counter(attributes_of(call.line).get("group") for call in self.history.calls if call.body is not None)
        for name, found in self.groups.items():
            self._check_count(name, found, members[name], asked[name])

    def _check_after(self, job, members):
        survivor = self.survivors.get(job.number)
        state = "" if survivor is None else survivor.state
        is_untouched = len(job.dues) == 1 and not job.unknown_holds and not job.reservations
        waits = state == "delayed" and is_untouched and not job.birth.due
        if waits and members and not any(each.number in self.survivors or each.ttl != NEVER for each in members):
            self.report("open", f"job {job.number} of {job.birth.call!r} waits for a group without jobs")
        events = [effect for effect in job.reservations if not effect.is_chosen][:1]
        if not events and state == "ready" and is_untouched:
            events = [Effect(self.end, self.end)]
        for event in events:
            if len(_latest(job.dues, event)) > 1 or job.dues[0] is not job.birth:
                continue
            if any(effect.low <= event.high for effect in job.dues[1:]):
                continue
            if any(self.tubes[name].kicks.any_within(job.birth.low, event.high) for name in job.places):
                continue
            for member in members:
                if member.birth.high < job.birth.low and not self._may_have_left(member, event.high):
                    what = event.call or "it is ready"
                    self.report("early", f"job {job.number} while {member.birth.call!r} is left: {what!r}")
                    break

    def _may_have_left(self, member, moment):
        """Whether a job may have left its group by a moment."""
        is_whole = len(member.bodies) == 1 and not self._may_have_ended(member, moment)
        return not is_whole or self._may_have_failed(member, member.limit, moment)

    def _check_count(self, name, found, members, asked):
        """A group counts the jobs that have left it; `asked` is the number of puts that have named it."""
        left = [job for job in members if job.number in self.survivors]
        if any(len(job.bodies) > 1 or job.moves or job.ttl != NEVER for job in members):
            return
        ended = sum(int(found.get(f"{end}-jobs", 0)) for end in ("done", "cancelled", "expired", "dead"))
        known = sum(job.birth.is_sure for job in members)
        if (found.get("state") == "open") != bool(left) or not known <= ended + len(left) <= asked:
            self.report("counted", f"{len(left)} of {len(members)} jobs of group {name!r} are left: {found}")

    def _check_limits(self):
        """Clients never have more jobs of a limit at a time than it allows."""
        changes = defaultdict(list)  # (tube, limit) -> (moment, by how much)
        for job in self.jobs.values():
            if "limit" not in job.demands or len(job.bodies) > 1 or job.moves:
                continue
            for effect in job.reservations:
                hold = self._hold(job, effect, job.birth.ttr)
                if hold.start < hold.end:
                    changes[job.tube, job.demands["limit"]] += [(hold.start, 1), (hold.end, -1)]
        for (tube, limit), moments in changes.items():
            most = max(accumulate(change for _, change in sorted(moments)))
            if most > int(limit.rpartition(b":")[2]):
                self.report("exceeded", f"{most} of {limit!r} in {tube}")

    def _check_order(self):
        covers = defaultdict(Effects)
        for hold in self.unknown_holds:
            for name in hold.tubes:
                covers[name].append(Effect(hold.start, hold.end))
        for name, tube in self.tubes.items():
            self._check_order_of(tube, covers[name])

    def _check_order_of(self, tube, covers):
        starts = []  # (start, key, end, job) of each time in which a job was certainly ready
        queries = []  # (low, high, least key that the job may have had, call)
        for job in tube.jobs:
            for effect, priority in job.starts:
                if effect.is_sure:
                    changes = [other for other in job.touched + tube.clears.all if other.call is not effect.call]
                    end = min((other.low for other in changes if other.high >= effect.low), default=NEVER)
                    end = min(end, self._expires(job))
                    if end > effect.high:
                        starts.append((effect.high, (priority, job.number), end, job.number))
            settings = [effect for effect in job.dues if _word(effect) in SETTING_PRIORITY]
            for effect in job.reservations:
                if not effect.is_chosen and not job.moves:  # else it may have been reserved in the dead tube
                    priority = min((setting.priority for setting in _latest(settings, effect)), default=0)
                    queries.append((effect.low, effect.high, (priority, job.number), effect.call))
        starts.sort(key=lambda start: start[:3])
        queries.sort(key=lambda query: query[:3])
        ready = []  # (key, end, job), sorted
        upcoming = iter(starts)
        following = next(upcoming, None)
        for low, high, key, call in queries:
            while following is not None and following[0] <= low:
                insort(ready, following[1:])
                following = next(upcoming, None)
            if covers.any_within(low, high):
                continue  # somebody who was not told may hold it
            place = 0
            while place < len(ready) and ready[place][0] < key:
                if ready[place][1] < low:
                    del ready[place]
                    continue
                if ready[place][1] > high:
                    self.report("order", f"job {ready[place][2]} was ready before {call!r}")
                    break
                place += 1


def _latest(effects, event):
    """Those of the effects of which each may have been the last one before an event."""
    effects = [effect for effect in effects if effect.low <= event.high]
    since = max((effect.low for effect in effects if effect.high < event.low), default=-NEVER)
    return [effect for effect in effects if effect.high >= since]


def _was_cut(call, cut, shard):
    """Whether a reserve that was answered may have waited at a shard when its node lost the leader, and so was given
    again."""
    return cut.began <= call.answered and call.sent <= cut.ended and cut.concerns(call.client, shard)


def _word(effect):
    return effect.call.line.partition(b" ")[0]


def _replaces(effect):
    return "replace" in attributes_of(effect.call.line)


def attributes_of(line):
    """What a put demands, by name."""
    words = line.split()
    if words[0] == b"put-with":
        return {name.decode(): value for name, _, value in (word.partition(b"=") for word in words[5:])}
    found = {} if words[0] == b"put" else {"key": words[1]}
    return found | ({"replace": b"1"} if words[0] == REPLACE else {})


def terms_of(attributes):
    """The same, as Terms."""
    spans = {name: nanoseconds(attributes.get(name, b"0")) for name in ("backoff", "ttl", "hold")}
    return Terms(int(attributes.get("tries", 0)), **spans)


def nanoseconds(seconds):
    """A duration of the protocol, which has at most nine digits after the point."""
    whole, _, digits = seconds.partition(b".")
    return int(whole) * SECOND + int((digits + b"000000000")[:9])


def problems_of(
    history,
    survivors,
    end,
    *,
    flight=None,
    notice=None,
    drift=0.0,
    skew=0,
    shards=1,
    policies=None,
    wall=0,
    groups=None,
):
    """What no server can have said that keeps its promises: a sentence each.

    Args:
        survivors: id -> Survivor of all jobs that are left at the end.
        end: the moment when they were looked for; everything had been answered, or its client was gone.
        flight: nanoseconds that a reply to a reserve may be on its way at most, or None if nobody knows.
        notice: nanoseconds after which a server has certainly noticed that a client is gone, or None.
        drift: by which part of a duration the clocks may be wrong.
        skew: by how many nanoseconds the clocks of two leaders may differ.
        shards: how many the server has.
        policies: Terms of the tubes that have a policy, by name.
        wall: the wall clock minus that of the history, in nanoseconds.
        groups: what stats-group says of each group at the end, by its name.
    """
    policies, groups = policies or {}, groups or {}
    return Analysis(history, survivors, end, flight, notice, drift, skew, shards, policies, wall, groups).run()


def kinds_of(problems):
    """How many problems there are of each kind."""
    return Counter(problem.partition(":")[0] for problem in problems)
