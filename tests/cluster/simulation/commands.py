"""Random commands, and tubes with a policy that they may be about."""

import json
from typing import NamedTuple
from zlib import crc32

from tests.histories import SECOND, Terms

PUTTING = ("put", "put-keyed", "replace-keyed", "put-with")
TUBES = ("default", "default", "other")
OF_SHARDS = 4
"""Tubes that commands are about, at the most, if there are shards: so few that clients meet there."""


def tubes_of(shards):
    """Names of tubes, which are of several shards if there are several; one that comes twice is chosen more often."""
    if shards == 1:
        return TUBES
    found = {crc32(b"default") % shards: "default"}
    for number in range(100 * shards):
        if len(found) < min(shards, OF_SHARDS):
            name = f"t{number}"
            found.setdefault(crc32(name.encode()) % shards, name)
    return "default", *found.values()


DEAD = "dead"


class PolicedTube(NamedTuple):
    """The policy of a tube, as TubeConfig has it."""

    max_tries: int | None = None
    backoff: float | None = None
    dead_tube: str | None = None
    ttl: float | None = None
    key_hold: float | None = None


def policed_tubes(shards):
    """Policies by the names of their tubes: one gives its jobs up to the dead tube, one has its dead tube in another
    shard, if there are several, and one lets its jobs expire and holds their keys."""

    names = [f"tried{number}" for number in range(100 * shards)]
    found = {next(name for name in names if is_near(name, shards)): PolicedTube(3, 0.05, DEAD)}
    if shards > 1:
        found[next(name for name in names if not is_near(name, shards))] = PolicedTube(max_tries=2, dead_tube=DEAD)
    return found | {"brief": PolicedTube(ttl=3.0, key_hold=2.0)}


def terms_of(policed, shards):
    """What the policies of these tubes demand: a dead tube counts in its own shard only."""

    return {
        name: Terms(
            policy.max_tries or 0,
            round((policy.backoff or 0) * SECOND),
            round((policy.ttl or 0) * SECOND),
            round((policy.key_hold or 0) * SECOND),
            policy.dead_tube if policy.dead_tube and is_near(name, shards) else "",
        )
        for name, policy in policed.items()
    }


def is_near(name, shards):
    """Whether the dead tube is of the shard of this one."""
    return crc32(name.encode()) % shards == crc32(DEAD.encode()) % shards


def policies_text(policed):
    """These policies, as a configuration file has them."""
    lines = []
    for name, policy in policed.items():
        values = {"match": name} | values_of(policy)
        lines += ["[[tube]]", *(f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines)


def values_of(policy):
    """What a policy demands, by the names that TubeConfig has."""
    return {name: value for name, value in policy._asdict().items() if value is not None}


def attributes(rng, key, moment, group=""):
    """What a put-with may demand; and whether it demands a moment of the wall clock.

    Args:
        key: that the job may have; of the same name is the limit that it may have.
        moment: what the wall clock says, in nanoseconds; 0 if it is not known.
        group: the name of a group that it may belong to, or come after; none with shards, as it has a shard, too.
    """
    found = []
    if rng.random() < 0.6:
        found.append(f"key={key}")
        found += ["replace=1"] * (rng.random() < 0.3) + [f"hold={rng.choice((0.5, 3))}"] * (rng.random() < 0.6)
    if rng.random() < 0.6:
        found.append(f"tries={rng.choice((1, 2, 3))}")
    if rng.random() < 0.3:
        found.append(f"backoff={rng.choice((0.2, 2))}")
    if rng.random() < 0.3:
        found.append(f"ttl={rng.choice((1, 5))}")
    if rng.random() < 0.2:
        found.append(f"limit={key}:{'klm'.find(key) + 1 or 2}")
    follows = bool(group) and rng.random() < 0.2
    if follows:
        found.append(rng.choice((f"after={group}", f"after={group}:wait")))
    elif group and rng.random() < 0.3:
        found.append(f"group={group}")
    is_at = moment > 0 and not follows and rng.random() < 0.3
    if is_at:
        at = moment + rng.choice((-1, 0, 1, 3)) * SECOND
        found.append(f"at={at // SECOND}.{at % SECOND:09}")
    rng.shuffle(found)
    return " ".join(found), is_at


def command(rng, known, client, number, tubes=TUBES, policed=(), moment=0):
    """Any command, mostly about a job of which the client knows, and the body of a put, or None.

    Args:
        known: ids.
        client, number: together they make a body that no other put has.
        tubes: as `tubes_of` has them.
        policed: names of tubes with a policy.
        moment: what the wall clock says, in nanoseconds.
    """
    tube = rng.choice((*policed, DEAD)) if policed and rng.random() < 0.3 else rng.choice(tubes)
    key = rng.choice(("k", "l", "m"))
    job = rng.choice(known[-4:]) if known and rng.random() < 0.95 else rng.randrange(1, 50)
    delay = rng.choice(("0", "0", "0", "0.05", "1"))
    body = b"%d-%d" % (client, number)
    if rng.random() < 0.05:
        body += b"-" * rng.choice((1000, 20000))
    fields = f"{rng.randrange(3)} {delay} {rng.choice((1, 2, 60))} {len(body)}"
    group = f"{key}{number // 40}" if len(tubes) == len(TUBES) else ""
    demands, is_at = attributes(rng, key, moment, group)
    lines = [
        *[f"put {fields}"] * 6,
        *[f"put-keyed {key} {fields}"] * 2,
        f"replace-keyed {key} {fields}",
        *[f"put-with {' '.join(['0', '0' if is_at else delay, *fields.split()[2:], demands]).rstrip()}"] * 3,
        f"redrive {DEAD} {rng.randrange(5)}",
        *["reserve-with-timeout 1"] * 5,
        "reserve",
        "reserve-batch 3 0",
        f"reserve-job {job}",
        *[f"delete {job}"] * 4,
        *[f"release {job} {rng.randrange(3)} {delay}"] * 2,
        f"bury {job} {rng.randrange(3)}",
        f"touch {job}",
        f"kick {rng.randrange(3)}",
        f"kick-job {job}",
        f"cancel {job}",
        f"cancel-keyed {key}",
        f"reschedule {job} {delay}",
        f"reschedule-keyed {key} {delay}",
        f"peek {job}",
        f"peek-keyed {key}",
        "peek-ready",
        "peek-delayed",
        "peek-buried",
        f"stats-job {job}",
        "stats",
        f"use {tube}",
        f"watch {tube}",
        f"ignore {tube}",
    ]
    if len(tubes) > len(TUBES):
        lines += ["reserve-with-timeout 0"] * 3
        lines += [
            "reserve-batch 3 1",
            "list-tubes",
            "stats-tubes - 3",
            f"list-jobs {tube} ready 0 2",
            f"stats-tube {tube}",
        ]
    rare = [f"clear-tube {tube}", f"pause-tube {tube} 0.1"]
    line = rng.choice(rare) if rng.random() < 0.01 else rng.choice(lines)
    return line.encode(), body if line.split()[0] in PUTTING else None


def ids_in(call):
    """The ids that an answered call has told."""
    found = [number for number, _ in call.jobs]
    if call.reply.startswith((b"INSERTED", b"REPLACED", b"EXISTS")):
        found.append(int(call.reply.split()[1]))
    return found
