"""Whatever the policies of tubes are: the one that gives commands of the protocol gets replies of the protocol only."""

from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual import World

from beanstalk_server.queue.policy import Policy
from beanstalk_server.queue.units import SECOND

REPLIES = {
    "put": "INSERTED BURIED EXPECTED_CRLF JOB_TOO_BIG DRAINING OUT_OF_MEMORY",
    "reserve-with-timeout": "RESERVED TIMED_OUT DEADLINE_SOON",
    "reserve-job": "RESERVED NOT_FOUND",
    "delete": "DELETED NOT_FOUND",
    "release": "RELEASED BURIED NOT_FOUND",
    "bury": "BURIED NOT_FOUND",
    "touch": "TOUCHED NOT_FOUND",
    "peek": "FOUND NOT_FOUND",
    "peek-ready": "FOUND NOT_FOUND",
    "peek-delayed": "FOUND NOT_FOUND",
    "peek-buried": "FOUND NOT_FOUND",
    "kick": "KICKED",
    "kick-job": "KICKED NOT_FOUND",
    "stats-job": "OK NOT_FOUND",
    "stats-tube": "OK NOT_FOUND",
    "pause-tube": "PAUSED NOT_FOUND",
    "use": "USING",
    "watch": "WATCHING",
}
"""The replies that beanstalkd's doc/protocol.txt names, by command."""

TUBES = ["default", "a", "b", "dead"]

limits = st.integers(0, 3)
durations = st.sampled_from([0, 0, SECOND, 3 * SECOND])
policies = st.builds(
    Policy,
    max_jobs=limits,
    max_bytes=st.sampled_from([0, 4, 9]),
    max_delay=durations,
    max_job_size=st.sampled_from([0, 3]),
    max_tries=limits,
    dead_tube=st.sampled_from(["", "dead", "default"]),
    backoff=durations,
    backoff_max=durations,
    ttl=durations,
    key_hold=durations,
    max_reserved=limits,
    interval=durations,
    burst=st.integers(1, 3),
)
tubes = st.sampled_from(TUBES)
ids = st.integers(1, 9)
delays = st.sampled_from([0, 0, 0, 2, 9])
lines = st.one_of(
    st.builds("put 7 {} {} 2\r\nxy".format, delays, st.integers(1, 3)),
    st.builds("put 7 {} 60 4\r\nwxyz".format, delays),
    st.just("reserve-with-timeout 0"),
    st.builds("release {} 7 {}".format, ids, delays),
    st.builds("bury {} 7".format, ids),
    st.builds("{} {}".format, st.sampled_from("reserve-job delete touch peek kick-job stats-job".split()), ids),
    st.sampled_from(["peek-ready", "peek-delayed", "peek-buried", "kick 2"]),
    st.builds("{} {}".format, st.sampled_from(["use", "watch", "stats-tube"]), tubes),
    st.builds("pause-tube {} {}".format, tubes, st.integers(0, 2)),
)
steps = st.one_of(lines, lines, lines, lines, st.sampled_from([0.5, 1.5, 4]))


@settings(max_examples=examples(30))
@given(demanded=st.dictionaries(tubes, policies), steps=st.lists(st.tuples(st.booleans(), steps), max_size=60))
def test_a_client_of_the_protocol_gets_replies_of_the_protocol(demanded, steps):
    world = World(policies=demanded)
    clients = [world.connect(), world.connect()]
    for other, step in steps:
        if not isinstance(step, str):
            world.sleep(step)
            continue
        client = clients[other]
        reply = client.send(step.encode() + b"\r\n")
        words = REPLIES[step.split()[0]].split()
        assert reply.split()[0].decode() in words, (step, reply)
        if reply.startswith((b"RESERVED", b"FOUND", b"OK")):
            size = int(reply.split(b"\r\n")[0].split()[-1])
            assert len(reply) == reply.index(b"\r\n") + 2 + size + 2
        else:
            assert reply.endswith(b"\r\n")
            assert reply.count(b"\r\n") == 1
    world.check()
