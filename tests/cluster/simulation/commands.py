"""Random commands."""

PUTTING = ("put", "put-keyed", "replace-keyed")


def command(rng, known, client, number):
    """Any command, mostly about a job of which the client knows, and the body of a put, or None.

    Args:
        known: ids.
        client, number: together they make a body that no other put has.
    """
    tube = rng.choice(("default", "default", "other"))
    key = rng.choice(("k", "l", "m"))
    job = rng.choice(known[-4:]) if known and rng.random() < 0.95 else rng.randrange(1, 50)
    delay = rng.choice(("0", "0", "0", "0.05", "1"))
    body = b"%d-%d" % (client, number)
    if rng.random() < 0.05:
        body += b"-" * rng.choice((1000, 20000))
    fields = f"{rng.randrange(3)} {delay} {rng.choice((1, 2, 60))} {len(body)}"
    lines = [
        *[f"put {fields}"] * 6,
        *[f"put-keyed {key} {fields}"] * 2,
        f"replace-keyed {key} {fields}",
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
    rare = [f"clear-tube {tube}", f"pause-tube {tube} 0.1"]
    line = rng.choice(rare) if rng.random() < 0.01 else rng.choice(lines)
    return line.encode(), body if line.split()[0] in PUTTING else None


def ids_in(call):
    """The ids that an answered call has told."""
    found = [number for number, _ in call.jobs]
    if call.reply.startswith((b"INSERTED", b"REPLACED", b"EXISTS")):
        found.append(int(call.reply.split()[1]))
    return found
