"""Any commands with any replies in any pieces: the protocol's state machine beside one that is obviously right."""

import hypothesis.strategies as st
from beanstalk_client import errors
from beanstalk_client.commands import make
from beanstalk_client.job import Job
from beanstalk_client.protocol import Protocol
from beanstalk_client.session import Session
from effort import examples
from hypothesis import given, settings

IDS = st.integers(0, 2**64 - 1)
BODIES = st.one_of(
    st.binary(max_size=40), st.just(b"\r\n"), st.just(b"RESERVED 1 1\r\nx\r\n"), st.binary(min_size=300, max_size=300)
)
ERRORS = sorted(errors.REPLIES)


def plain(result):
    if isinstance(result, list):
        return [plain(one) for one in result]
    return (
        (result.id, result.body)
        if isinstance(result, Job)
        else type(result)
        if isinstance(result, Exception)
        else result
    )


@st.composite
def exchanges(draw):
    """A command, the reply that a server gives, the result, and the reservations that it begins and ends."""
    kind = draw(
        st.sampled_from(["put", "reserve", "batch", "delete", "release", "peek", "use", "watch", "kick", "error"])
    )
    job_id, body = draw(IDS), draw(BODIES)
    if kind == "put":
        return make.put(body), b"INSERTED %d\r\n" % job_id, job_id, set(), set()
    if kind == "reserve":
        return (
            make.reserve(),
            b"RESERVED %d %d\r\n%b\r\n" % (job_id, len(body), body),
            (job_id, body),
            {job_id},
            set(),
        )
    if kind == "batch":
        jobs = draw(st.lists(st.tuples(IDS, BODIES), min_size=1, max_size=4))
        reply = b"RESERVED_BATCH %d\r\n" % len(jobs)
        reply += b"".join(b"RESERVED %d %d\r\n%b\r\n" % (number, len(text), text) for number, text in jobs)
        return make.reserve_batch(9), reply, jobs, {number for number, _ in jobs}, set()
    if kind == "delete":
        return make.delete(job_id), b"DELETED\r\n", None, set(), {job_id}
    if kind == "release":
        return make.release(job_id), b"BURIED\r\n", errors.BuriedError, set(), {job_id}
    if kind == "peek":
        return make.peek(job_id), b"FOUND %d %d\r\n%b\r\n" % (job_id, len(body), body), (job_id, body), set(), set()
    if kind == "use":
        return make.use("t"), b"USING t\r\n", "t", set(), set()
    if kind == "watch":
        return make.watch("t"), b"WATCHING 7\r\n", 7, set(), set()
    if kind == "kick":
        return make.kick(1), b"KICKED 0\r\n", 0, set(), set()
    word = draw(st.sampled_from(ERRORS))
    command = draw(st.sampled_from([make.put(b"x"), make.reserve_job(5), make.touch(5), make.stats()]))
    return command, word + b"\r\n", errors.REPLIES[word], set(), set()


@settings(max_examples=examples(100))
@given(st.lists(exchanges(), max_size=12), st.data())
def test_any_conversation_in_any_pieces(conversation, data):
    session = Session()
    protocol = Protocol(session)
    wire = b"".join(reply for _, reply, _, _, _ in conversation)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=30)))
    starts = []  # where each reply begins
    for _, reply, _, _, _ in conversation:
        starts.append((starts[-1][1] if starts else 0, (starts[-1][1] if starts else 0) + len(reply)))
    sent, done = 0, []
    for begin, end in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        # Commands are sent any time before their replies come.
        least = sum(1 for start, _ in starts if start < end)
        for command, *_ in conversation[sent : (sent := max(sent, data.draw(st.integers(least, len(conversation)))))]:
            protocol.send(command)
        done += protocol.receive(wire[begin:end])
        assert len(done) == sum(1 for _, finish in starts if finish <= end)
        assert protocol.pending == sent - len(done)
        if protocol.pending and not protocol.is_in_reply:
            assert protocol.missing == 1
    assert [plain(result) for _, result in done] == [result for _, _, result, _, _ in conversation]
    held = set()
    for _, _, _, begun, ended in conversation:
        held = (held | begun) - ended
    assert session.reserved == held
    assert not protocol.is_lost


@settings(max_examples=examples(100))
@given(st.lists(exchanges(), min_size=1, max_size=4), st.binary(max_size=60), st.data())
def test_any_bytes_are_read_the_same_in_any_pieces_and_raise_nothing(conversation, noise, data):
    wire = b"".join(reply for _, reply, _, _, _ in conversation)
    at = data.draw(st.integers(0, len(wire)))
    wire = wire[:at] + noise + wire[at + data.draw(st.integers(0, 3)) :]
    found = []
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=20)))
    for pieces in ([wire], [wire[a:b] for a, b in zip([0, *cuts], [*cuts, len(wire)], strict=True)]):
        protocol = Protocol(Session())
        for command, *_ in conversation:
            protocol.send(command)
        done = [each for piece in pieces for each in protocol.receive(piece)]
        found.append(([plain(result) for _, result in done], protocol.is_lost, protocol.session.reserved))
    assert found[0] == found[1]
