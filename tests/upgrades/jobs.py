"""Puts jobs in every state into a server, and tells what it has: the same calls for servers of all versions.

python tests/upgrades/jobs.py put HOST:PORT FEATURE …     put the jobs of these FEATURES
python tests/upgrades/jobs.py tell HOST:PORT              write what the server has, as JSON
"""

import json
import re
import sys

from harness.caller import Caller

FOREVER = 4294967295
"""Seconds that no test outlives: the data is read years after it was written."""

LATE = 4294967295
"""A moment in the year 2106, as Unix time."""

PASSES = {"age", "time-left", "pause-time-left", "file", "oldest-ready", "overdue", "expires-in"}
"""Statistics that depend on the moment or the files."""

OF_SESSIONS = re.compile("cmd-|total-|current-(using|waiting|watching)|.*-per-second$")
"""Statistics of tubes that count since the start."""

TUBES = "plain", "t" * 100, "keyed", "terms", "dead", "labels", "paused", "tokens"
GROUPS = "open", "unknown"
TOKENS = "token-1", "token-2"


class Server:
    """One connection."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self.caller = Caller((host, int(port)))

    def ask(self, line, reply=""):
        """Give a command; return its reply, which must begin with these words."""
        self.caller.send(line if isinstance(line, bytes) else line.encode() + b"\r\n")
        answer = self.caller.line().decode().rstrip("\r\n")
        assert answer.startswith(reply), (line, answer)
        return answer

    def put(self, body, words="put 10 0 60", tube="plain", more=""):
        """Put a job; return its id."""
        self.ask(f"use {tube}", "USING")
        line = f"{words} {len(body)}{more}\r\n".encode()
        return int(self.ask(line + body + b"\r\n", "INSERTED").split()[1])

    def put_with(self, body, attributes, tube="labels"):
        return self.put(body, "put-with 10 0 60", tube, f" {attributes}")

    def reserve(self, job_id, *then):
        """Reserve a job of any tube by its id, also where reserve-job is unknown, and give these commands."""
        answer = self.ask(f"reserve-job {job_id}")
        if answer == "BAD_FORMAT":  # beanstalkd takes it for a malformed reserve
            answer = self.ask("reserve-with-timeout 0", f"RESERVED {job_id} ")
        assert answer.startswith(f"RESERVED {job_id} "), answer
        self.caller.read(int(answer.split()[2]) + 2)
        for line, reply in then:
            self.ask(line.format(job_id), reply)
        return job_id

    def text(self, line):
        """The YAML that answers a command, or None."""
        answer = self.ask(line)
        return self.caller.read(int(answer.split()[1]) + 2).decode() if answer.startswith("OK") else None

    def stats(self, line):
        text = self.text(line)
        return text and dict(re.findall(r'^([a-z-]+): "?(.*?)"?\r?$', text, re.MULTILINE))


def put(server, features):
    """Put the jobs of these features."""
    for tube in TUBES:
        server.ask(f"watch {tube}", "WATCHING")
    for feature in features:
        FEATURES[feature](server)


def put_plain(server):
    """What beanstalkd has had since its binlog."""
    first = server.put(b"first put, last buried")
    other = server.put(b"first buried")
    for job_id in (first, other):
        server.reserve(job_id)
    for job_id in (other, first):
        server.ask(f"bury {job_id} 4294967295", "BURIED")
    server.reserve(server.put(b"released with a delay"), (f"release {{}} 3 {FOREVER}", "RELEASED"))
    server.reserve(server.put(b"deleted"), ("delete {}", "DELETED"))
    server.put(b"\xff\0\r\n", f"put 0 {FOREVER} 4294967295", "t" * 100)
    server.put(b"")
    server.put(b"x" * 600, "put 4294967295 0 1")
    server.put(b"reserved", "put 0 0 3600")
    server.ask("reserve-with-timeout 0", "RESERVED")  # and so until the server stops
    server.caller.read(len("reserved\r\n"))


def put_keyed(server):
    server.put(b"has a key", "put-keyed name 10 0 60", "keyed")
    gone = server.put(b"cancelled", "put-keyed gone 10 5 60", "keyed")
    server.ask(f"cancel {gone}", "CANCELLED")
    server.ask(b"replace-keyed name 9 %d 60 3\r\nnew\r\n" % FOREVER, "REPLACED")


def put_terms(server):
    server.put_with(b"demanded", f"key=all tries=5 backoff=2 ttl={FOREVER} hold=4", "terms")
    server.put_with(b"at", f"at={LATE}", "terms")
    held = server.put_with(b"its key is held", f"key=held hold={FOREVER}", "terms")
    server.reserve(held, ("delete {}", "DELETED"))
    tried = server.put_with(b"tried once", "tries=3 backoff=1000000000", "terms")
    server.reserve(tried, ("release {} 5 0", "RELEASED"))
    buried = server.put_with(b"tried for the last time", "tries=1", "terms")
    server.reserve(buried, ("release {} 5 0", "BURIED"))


def put_labels(server):
    server.put_with(b"share", "share=customer limit=user:2")
    for group in ("open", "ended"):
        server.reserve(server.put_with(b"done", f"group={group}"), ("delete {}", "DELETED"))
        server.put_with(b"in the group", f"group={group} after=unknown:wait")
    server.put_with(b"after", "after=open:wait")
    server.put_with(b"after a group that has ended", "after=ended:wait")
    server.ask("cancel-group ended", "CANCELLED_GROUP 1")


def put_pauses(server):
    server.put(b"in a paused tube", tube="paused")
    server.ask(f"pause-tube paused {FOREVER}", "PAUSED")


def put_tokens(server):
    server.put_with(b"its token is taken", f"once=token-1:{FOREVER}", "tokens")
    gone = server.put_with(b"gone", f"key=k once=token-2:{FOREVER}", "tokens")
    server.reserve(gone, ("delete {}", "DELETED"))


FEATURES = {
    "plain": put_plain,
    "keyed": put_keyed,
    "terms": put_terms,
    "labels": put_labels,
    "pauses": put_pauses,
    "tokens": put_tokens,
}


def tell(server, last=60):
    """What a server has, as far as it stays so when the server is restarted.

    Args:
        last: the highest id that is looked for.
    """
    jobs, tubes, groups = {}, {}, {}
    for job_id in range(1, last):
        answer = server.ask(f"peek {job_id}")
        if answer.startswith("FOUND"):
            body = server.caller.read(int(answer.split()[2]) + 2)[:-2].decode("latin-1")
            stats = server.stats(f"stats-job {job_id}")
            jobs[str(job_id)] = {"body": body} | _lasting(stats)
    for tube in TUBES:
        stats = server.stats(f"stats-tube {tube}")
        if stats is not None:
            tubes[tube] = _lasting(stats) | {"pause": str(stats["pause"] != "0")}
    if server.text("stats-group unknown") is not None:
        groups = {group: _lasting(server.stats(f"stats-group {group}")) for group in GROUPS}
    return {"jobs": jobs, "tubes": tubes, "groups": groups}


def as_text(told):
    return json.dumps(told, indent=1, sort_keys=True) + "\n"


def _lasting(stats):
    return {name: value for name, value in stats.items() if name not in PASSES and not OF_SESSIONS.match(name)}


def main(what, address, *features):
    server = Server(address)
    if what == "put":
        put(server, features)
    else:
        print(as_text(tell(server)), end="")


if __name__ == "__main__":
    main(*sys.argv[1:])
