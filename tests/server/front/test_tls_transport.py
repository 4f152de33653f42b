"""TLS on one connection, without sockets: OpenSSL's client on one side, and a protocol that records on the other."""

import ssl

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from rounds import Rounds, SteppingClock, Transport
from tls_peers import DAY, TODAY, Files, TlsClient, client_certificate, client_context, records

from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.server.front.client_hello import offered_protocols
from beanstalk_server.server.front.tls import (
    HELLO_LIMIT,
    NO_APPLICATION_PROTOCOL,
    PIECE,
    READ,
    RECORD,
    TlsTransport,
)
from beanstalk_server.server.turns import ROUND_QUANTUM

TLS_1_2, TLS_1_3 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3
PLAIN_READ = 256_000  # what uvloop reads at once


class Plain(Transport):
    """A plain transport that records."""

    def __init__(self):
        super().__init__()
        self.writes = 0
        self.ended = False

    def write(self, data):
        super().write(data)
        self.writes += 1

    def writelines(self, pieces):
        self.write(b"".join(pieces))

    def write_eof(self):
        self.ended = True

    def set_write_buffer_limits(self, high=None, low=None):
        self.limit = high

    def get_write_buffer_size(self):
        return 17

    def get_extra_info(self, name, default=None):
        return {"peername": ("10.0.0.1", 1)}.get(name, default)


class Recorder:
    """A protocol that records; `on_data` may do more."""

    def __init__(self):
        self.calls = []
        self.received = b""
        self.ended = 0
        self.lost = None
        self.stays_open = True
        self.on_data = lambda: None

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        assert data and not self.ended and self.lost is None
        self.calls.append(len(data))
        self.received += data
        self.on_data()

    def eof_received(self):
        self.ended += 1
        return self.stays_open

    def pause_writing(self):
        self.calls.append("pause")

    def resume_writing(self):
        self.calls.append("resume")

    def connection_lost(self, error):
        self.lost = (error,)


class Meeting:
    """A client and a TlsTransport, with nothing between them but what a test lets through."""

    def __init__(self, context, client=None, rounds=None):
        self.rounds = rounds or Rounds()
        self.client = client or TlsClient()
        self.protocol = Recorder()
        self.failures = []
        self.ready = 0
        self.plain = Plain()
        self.tls = TlsTransport(context, self.rounds.turns, self.on_ready, lambda _, why: self.failures.append(why))
        self.tls.connection_made(self.plain)

    def on_ready(self, tls):
        assert tls is self.tls
        self.ready += 1
        tls.set_protocol(self.protocol)
        self.protocol.connection_made(tls)

    def send(self, data, size=0):
        """Let the server receive these bytes, this many at a time, and work on them."""
        for start in range(0, len(data), size or len(data) or 1):
            self.tls.data_received(data[start : start + (size or len(data))])
            self.rounds.loop.settle()

    def answer(self):
        """Let the client receive what the server has written."""
        data, self.plain.written = self.plain.written, b""
        self.client.give(data)
        return data

    def shake_hands(self, size=0):
        self.client.give(b"")
        while (data := self.client.take()) and not self.failures:
            self.send(data, size)
            self.answer()
        return self

    def say(self, data, size=0):
        """Let the server receive what the client says."""
        self.send(self.client.write(data), size)

    def hang_up(self):
        """Let the server see the end of the connection."""
        assert self.tls.eof_received() or self.plain.closed
        self.rounds.loop.settle()

    def lose(self, error=None):
        self.tls.connection_lost(error)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return Files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def context(files):
    return files.context()


@pytest.fixture(scope="module")
def mutual(files):
    return files.context(mutual=True)


@pytest.fixture(params=[TLS_1_2, TLS_1_3], ids=["TLS 1.2", "TLS 1.3"])
def version(request):
    return request.param


@pytest.fixture
def meeting(context, version):
    return Meeting(context, TlsClient(client_context(version=version))).shake_hands()


# The handshake


@pytest.mark.parametrize("size", [0, 1, 7, 100])
def test_a_client_is_ready_after_its_handshake_however_its_bytes_are_cut(context, version, size):
    meeting = Meeting(context, TlsClient(client_context(version=version))).shake_hands(size)
    assert meeting.ready == 1 and meeting.client.connected and not meeting.failures
    meeting.say(b"hello")
    meeting.tls.write(b"welcome")
    meeting.answer()
    assert (meeting.protocol.received, meeting.client.received) == (b"hello", b"welcome")
    assert meeting.plain.reading


def test_nothing_is_made_for_a_client_that_has_sent_nothing(context):
    meeting = Meeting(context)
    assert meeting.tls._ssl is None
    meeting.hang_up()
    assert meeting.failures == ["disconnected before the handshake"] and meeting.plain.closed


def test_a_step_of_a_handshake_is_a_turn_and_nothing_is_read_until_it_was_taken(context):
    meeting = Meeting(context)
    meeting.tls.data_received(meeting.client.hello())
    assert not meeting.plain.written and not meeting.plain.reading
    meeting.rounds.loop.settle()
    assert meeting.plain.written and meeting.plain.reading


def test_handshakes_leave_half_of_a_round_to_others_but_one_is_done_in_each(context):
    rounds = Rounds()
    meetings = [Meeting(context, rounds=rounds) for _ in range(40)]
    rounds.turns.clock = SteppingClock(rounds.loop, MILLISECOND // 5)
    for meeting in meetings:
        meeting.tls.data_received(meeting.client.hello())
    answered = 0
    for _ in range(5):
        rounds.loop.go_round()
        before, answered = answered, sum(bool(meeting.plain.written) for meeting in meetings)
        assert 1 <= answered - before <= 4
        assert rounds.turns.budget > ROUND_QUANTUM // 4, "a client that sends something now has its turn at once"
    rounds.turns.clock = SteppingClock(rounds.loop, 20 * MILLISECOND)
    for _ in range(3):
        rounds.loop.go_round()
        before, answered = answered, sum(bool(meeting.plain.written) for meeting in meetings)
        assert answered - before == 1
    rounds.loop.settle()
    assert all(meeting.plain.written for meeting in meetings)


def test_others_are_served_while_handshakes_wait_though_each_takes_longer_than_a_round(context):
    rounds = Rounds()
    caller = rounds.connect()
    meetings = [Meeting(context, rounds=rounds) for _ in range(40)]
    rounds.turns.clock = SteppingClock(rounds.loop, 2 * MILLISECOND)
    for meeting in meetings:
        meeting.tls.data_received(meeting.client.hello())
    for _ in range(10):
        rounds.loop.go_round()
        answer = caller.send(b"list-tube-used\r\n")
        rounds.loop.go_round()
        assert answer + caller.read() == b"USING default\r\n"
    assert sum(not meeting.plain.written for meeting in meetings) > 10
    rounds.loop.settle()


def test_what_follows_the_handshake_at_once_is_handed_over_after_it(context, version):
    meeting = Meeting(context, TlsClient(client_context(version=version)))
    meeting.send(meeting.client.hello())
    meeting.answer()
    if version == TLS_1_2:
        meeting.send(meeting.client.take())
        meeting.answer()
    meeting.send(meeting.client.take() + meeting.client.write(b"stats\r\n" * 10_000))
    assert meeting.ready == 1
    assert meeting.protocol.received == b"stats\r\n" * 10_000


def test_a_handshake_and_its_end_in_one_piece_are_served_to_the_end(context):
    meeting = Meeting(context)
    meeting.send(meeting.client.hello())
    meeting.answer()
    client = meeting.client
    meeting.tls.data_received(client.take() + client.write(b"stats\r\n") + client.close_notify())
    meeting.tls.eof_received()
    meeting.rounds.loop.settle()
    assert meeting.ready == 1 and not meeting.failures
    assert meeting.protocol.received == b"stats\r\n" and meeting.protocol.ended == 1


# Who is let in


def test_the_names_of_a_client_are_those_of_its_certificate(mutual):
    certificate = client_certificate("billing.example.org", "billing@example.org", common_name="billing")
    meeting = Meeting(mutual, TlsClient(client_context(certificate))).shake_hands()
    assert meeting.tls.names() == ["billing.example.org", "billing@example.org", "billing"]


def test_a_client_that_needs_no_certificate_has_no_names(meeting):
    assert meeting.tls.names() == []


@pytest.mark.parametrize(
    ("certificate", "reason"),
    [
        (None, "no certificate"),
        (client_certificate("billing", by="another"), "certificate refused: unable to get local issuer certificate"),
        (client_certificate("billing", expires=TODAY - DAY), "certificate refused: certificate has expired"),
    ],
    ids=["none", "another authority", "expired"],
)
def test_a_client_without_a_good_certificate_is_refused_with_an_alert(mutual, version, certificate, reason):
    meeting = Meeting(mutual, TlsClient(client_context(certificate, version=version))).shake_hands()
    assert meeting.failures == [reason]
    assert meeting.ready == 0 and meeting.plain.closed
    assert "ALERT" in meeting.client.error
    meeting.lose()
    assert len(meeting.failures) == 1


def test_a_client_takes_its_connection_up_again_with_a_ticket_and_keeps_its_names(mutual, version):
    trust = client_context(client_certificate("billing"), version=version)
    first = Meeting(mutual, TlsClient(trust)).shake_hands()
    first.tls.write(b"x")
    first.answer()
    again = Meeting(mutual, TlsClient(trust, first.client.tls.session)).shake_hands()
    assert again.client.tls.session_reused
    assert again.tls.names() == ["billing"]


def test_a_ticket_of_an_earlier_context_is_worth_nothing(files, mutual, version):
    trust = client_context(client_certificate("billing"), version=version)
    first = Meeting(mutual, TlsClient(trust)).shake_hands()
    first.tls.write(b"x")
    first.answer()
    again = Meeting(files.context(mutual=True), TlsClient(trust, first.client.tls.session)).shake_hands()
    assert again.ready and not again.client.tls.session_reused


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1:DeprecationWarning")
def test_tls_1_1_is_refused(context):
    trust = client_context()
    trust.minimum_version = trust.maximum_version = ssl.TLSVersion.TLSv1_1
    trust.set_ciphers("ALL@SECLEVEL=0")
    meeting = Meeting(context, TlsClient(trust)).shake_hands()
    assert meeting.failures == ["handshake failed: unsupported protocol"]
    assert meeting.client.error == "TLSV1_ALERT_PROTOCOL_VERSION"


def test_a_client_that_does_not_trust_the_server_is_a_failure_too(context, version):
    meeting = Meeting(context, TlsClient(client_context(trusts="another", version=version)))
    meeting.send(meeting.client.hello())
    meeting.answer()
    assert meeting.client.error == "CERTIFICATE_VERIFY_FAILED"
    meeting.send(meeting.client.take())
    assert meeting.failures == ["handshake failed: tlsv1 alert unknown ca"]


# ALPN


@pytest.mark.parametrize(
    ("offered", "chosen"), [([], None), (["beanstalk"], "beanstalk"), (["h2", "beanstalk"], "beanstalk")]
)
def test_a_client_that_offers_our_protocol_or_none_is_served(context, offered, chosen):
    meeting = Meeting(context, TlsClient(client_context(alpn=offered))).shake_hands()
    assert meeting.ready == 1
    assert meeting.client.tls.selected_alpn_protocol() == chosen


def test_a_client_that_offers_other_protocols_only_is_refused(context, version):
    meeting = Meeting(context, TlsClient(client_context(alpn=["h2", "http/1.1"], version=version)))
    meeting.send(meeting.client.hello())
    assert meeting.plain.written == NO_APPLICATION_PROTOCOL
    assert meeting.failures == ["no supported ALPN protocol offered"] and meeting.plain.closed
    meeting.answer()
    assert "alert no application protocol" in meeting.client.error.lower().replace("_", " ")


def hello(**keywords):
    return TlsClient(client_context(**keywords)).hello()


def test_the_protocols_of_a_hello_are_found_and_nothing_in_less_than_a_hello(version):
    data = hello(alpn=["h2", "beanstalk"], version=version)
    assert offered_protocols(data) == [b"h2", b"beanstalk"]
    assert offered_protocols(hello(version=version)) == []
    for end in range(5, len(data)):
        assert offered_protocols(data[:end]) in ([], [b"h2", b"beanstalk"])


@given(st.binary(max_size=300))
def test_any_bytes_have_protocols_or_none(data):
    for received in (data, hello()[:5] + data):
        assert all(protocol in received for protocol in offered_protocols(received))


# What is not TLS


@pytest.mark.parametrize("data", [b"stats\r\n", b"GET / HTTP/1.1\r\n\r\n", b"\x80\x2e\x01", b"\x16\x02", b"\0"])
def test_a_client_that_does_not_speak_tls_is_told_nothing(context, data):
    meeting = Meeting(context)
    meeting.send(data)
    assert meeting.failures == ["not TLS"]
    assert meeting.plain.closed and not meeting.plain.written


def test_a_hello_that_goes_on_for_ever_ends(context):
    meeting = Meeting(context)
    meeting.send(b"\x16\x03\x01\x40\x00" + b"\x01\x0f\xff\xff" + bytes(16380))
    for _ in range(20):
        if meeting.failures:
            break
        meeting.send(b"\x16\x03\x01\x40\x00" + bytes(16384))
    assert meeting.failures == ["handshake failed: excessive message size"]
    assert meeting.plain.closed


def test_more_than_a_hello_before_an_answer_is_too_much(context):
    meeting = Meeting(context)
    meeting.send(hello() + bytes(HELLO_LIMIT))
    assert meeting.failures == ["too many bytes before the handshake"]


def test_a_record_that_claims_too_much_is_refused_at_once(context):
    meeting = Meeting(context)
    meeting.send(b"\x16\x03\x01\xff\xff" + hello()[5:])
    assert meeting.failures and meeting.plain.closed


@settings(max_examples=examples(100))
@given(st.data())
def test_a_hello_that_is_damaged_somewhere_fails_or_waits_for_more_and_nothing_else(context, data):
    whole = bytearray(hello())
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    end = data.draw(st.integers(1, len(whole)))
    meeting = Meeting(context)
    meeting.send(bytes(whole[:end]))
    if not meeting.failures:
        meeting.hang_up()
    assert len(meeting.failures) == 1
    assert meeting.plain.closed


@given(st.binary(min_size=1, max_size=200))
def test_random_bytes_after_a_hello_fail_or_wait_for_more_and_nothing_else(context, data):
    meeting = Meeting(context)
    meeting.send(meeting.client.hello())
    meeting.send(data)
    if not meeting.failures:
        meeting.hang_up()
    assert len(meeting.failures) == 1


# Reading


@settings(max_examples=examples(25))
@given(st.lists(st.tuples(st.integers(1, 40_000), st.integers(1, 40_000)), max_size=12), st.booleans(), st.data())
def test_what_is_sent_is_what_is_received_however_it_is_cut(context, exchanges, pauses, data):
    meeting = Meeting(context).shake_hands()
    stream = b""
    said = answered = b""
    for size, reply in exchanges:
        word = bytes([len(said) % 251]) * size
        said += word
        stream += meeting.client.write(word)
        word = bytes([len(answered) % 251]) * reply
        answered += word
        meeting.tls.write(word)
        meeting.answer()
    while stream:
        end = data.draw(st.integers(1, max(1, min(len(stream), PLAIN_READ))))
        if pauses:
            meeting.tls.pause_reading()
        meeting.tls.data_received(stream[:end])
        if pauses:
            before = len(meeting.protocol.received)
            meeting.rounds.loop.settle()
            assert len(meeting.protocol.received) == before
            meeting.tls.resume_reading()
        meeting.rounds.loop.settle()
        stream = stream[end:]
    assert meeting.protocol.received == said
    assert meeting.client.received == answered
    assert meeting.plain.reading and not meeting.failures


def test_all_records_of_one_read_are_handed_over_in_few_pieces(meeting):
    meeting.say(b"x" * 1_000_000, PLAIN_READ)
    assert len(meeting.protocol.received) == 1_000_000
    assert max(meeting.protocol.calls) <= READ + RECORD
    assert len(meeting.protocol.calls) <= 1_000_000 // READ + 8


def test_many_small_records_are_handed_over_together(meeting):
    meeting.send(b"".join(meeting.client.write(b"ignore x\r\n") for _ in range(500)))
    assert meeting.protocol.received == b"ignore x\r\n" * 500
    assert len(meeting.protocol.calls) < 20


def test_records_of_one_byte_do_not_hold_the_others(meeting):
    """A round's budget is spent on them as on commands, and the rest is done in turns."""
    rounds = meeting.rounds
    rounds.turns.clock = SteppingClock(rounds.loop, MILLISECOND // 10)
    meeting.tls.data_received(b"".join(meeting.client.write(b"x") for _ in range(5_000)))
    got = len(meeting.protocol.received)
    assert 0 < got < 2_500
    assert not meeting.plain.reading
    caller = rounds.connect()
    caller.send(b"list-tube-used\r\n")
    rounds.loop.go_round()
    rounds.loop.go_round()
    assert caller.read()
    assert len(meeting.protocol.received) < 5_000
    rounds.loop.settle()
    assert len(meeting.protocol.received) == 5_000
    assert meeting.plain.reading


def test_many_clients_whose_records_wait_have_their_turns_one_after_the_other(context):
    """What gets the bytes that were decrypted in a turn asks for more turns, which must not begin within this one."""
    rounds = Rounds()
    meetings = [Meeting(context, rounds=rounds) for _ in range(200)]
    for meeting in meetings:
        meeting.protocol = rounds.connect().connection
        meeting.shake_hands()
    rounds.turns.budget = 0
    for meeting in meetings:
        meeting.tls.data_received(meeting.client.write(b"put 0 0 60 1\r\n") + meeting.client.write(b"x\r\n"))
    rounds.loop.settle()
    for meeting in meetings:
        meeting.answer()
    assert {meeting.client.received[:9] for meeting in meetings} == {b"INSERTED "}


def test_while_nobody_reads_what_has_come_stays_encrypted_and_nothing_more_is_read(meeting):
    stream = meeting.client.write(b"x" * 1_000_000)
    meeting.protocol.on_data = meeting.tls.pause_reading
    meeting.tls.data_received(stream[:PLAIN_READ])
    assert not meeting.plain.reading
    assert len(meeting.protocol.received) <= READ + RECORD
    meeting.rounds.loop.settle()
    assert len(meeting.protocol.calls) == 1
    meeting.protocol.on_data = lambda: None
    meeting.tls.resume_reading()
    assert len(meeting.protocol.calls) == 1, "nothing is handed over in the midst of another call"
    meeting.rounds.loop.settle()
    meeting.send(stream[PLAIN_READ:], PLAIN_READ)
    assert len(meeting.protocol.received) == 1_000_000


def test_a_round_without_a_budget_leaves_records_to_the_next(meeting):
    meeting.rounds.turns.budget = 0
    meeting.tls.data_received(meeting.client.write(b"x" * 40_000))
    assert not meeting.protocol.received and not meeting.plain.reading
    meeting.rounds.loop.settle()
    assert len(meeting.protocol.received) == 40_000 and meeting.plain.reading


def test_openssl_keeps_no_more_memory_after_a_large_body_than_before(meeting):
    given = []
    incoming = meeting.tls._incoming

    class Watched:
        pending = property(lambda _: incoming.pending)
        read = staticmethod(incoming.read)

        def write(self, data):
            given.append(len(data))
            return incoming.write(data)

    meeting.tls._incoming = Watched()
    meeting.say(b"x" * 1_000_000, PLAIN_READ)
    assert len(meeting.protocol.received) == 1_000_000
    assert max(given) <= PIECE + 256 + 5


# The end of the input


def test_a_close_notify_ends_the_input_and_replies_still_come(meeting):
    meeting.say(b"reserve\r\n")
    meeting.send(meeting.client.close_notify())
    assert meeting.protocol.ended == 1 and not meeting.plain.closed
    assert not meeting.plain.reading
    before = len(meeting.plain.written)
    meeting.tls.write(b"RESERVED 1 1\r\nx\r\n")
    meeting.tls.close()
    assert len(meeting.plain.written) - before > 20 and meeting.plain.closed


def test_a_client_of_tls_1_3_reads_its_replies_after_its_close_notify(context):
    meeting = Meeting(context).shake_hands()
    meeting.send(meeting.client.write(b"reserve\r\n") + meeting.client.close_notify())
    meeting.tls.write(b"TIMED_OUT\r\n")
    meeting.tls.close()
    meeting.answer()
    assert meeting.client.received == b"TIMED_OUT\r\n" and meeting.client.ended


def test_what_follows_a_close_notify_is_dropped(meeting):
    meeting.send(meeting.client.close_notify() + b"\x17\x03\x03\x00\x05hello")
    meeting.tls.data_received(b"stats\r\n")
    assert meeting.protocol.ended == 1 and not meeting.protocol.received


def test_a_protocol_that_does_not_stay_open_is_closed_at_the_end_of_the_input(meeting):
    meeting.protocol.stays_open = False
    meeting.send(meeting.client.close_notify())
    assert meeting.plain.closed
    meeting.answer()
    assert meeting.client.ended


def test_the_end_of_the_connection_without_a_close_notify_ends_the_input_after_whole_records(meeting):
    stream = meeting.client.write(b"delete 1\r\n") + meeting.client.write(b"delete 2\r\n")
    meeting.tls.data_received(stream[:-1])
    assert meeting.tls.eof_received(), "replies may still have to be sent"
    assert meeting.protocol.received == b"delete 1\r\n" and meeting.protocol.ended == 1


def test_the_end_of_the_connection_comes_after_what_was_not_read_yet(meeting):
    meeting.tls.pause_reading()
    meeting.tls.data_received(meeting.client.write(b"x" * 100_000))
    assert meeting.tls.eof_received()
    assert not meeting.protocol.ended
    meeting.tls.resume_reading()
    meeting.rounds.loop.settle()
    assert len(meeting.protocol.received) == 100_000 and meeting.protocol.ended == 1


def test_a_record_that_was_changed_on_its_way_ends_the_connection_after_those_before_it(meeting):
    stream = meeting.client.write(b"delete 1\r\n")
    bad = bytearray(meeting.client.write(b"delete 2\r\n"))
    bad[-1] ^= 1
    meeting.send(stream + bytes(bad))
    assert meeting.protocol.received == b"delete 1\r\n"
    assert meeting.plain.closed and not meeting.protocol.ended
    meeting.answer()
    assert "ALERT_BAD_RECORD_MAC" in meeting.client.error
    meeting.lose()
    assert isinstance(meeting.protocol.lost[0], ssl.SSLError)


def test_plain_bytes_after_the_handshake_end_the_connection(meeting):
    meeting.send(b"stats\r\nstats\r\n")
    meeting.send(b"x" * 20_000)
    assert meeting.plain.closed and not meeting.protocol.received


def test_a_hello_amid_the_data_ends_the_connection(context):
    meeting = Meeting(context).shake_hands()
    meeting.send(hello())
    assert meeting.plain.closed and not meeting.protocol.ended


# Writing


@pytest.mark.parametrize("size", [100, 100_000])
def test_a_reply_is_full_records_and_one_write(meeting, size):
    meeting.plain.writes = 0
    meeting.tls.write(b"x" * size)
    assert meeting.plain.writes == 1
    assert len(records(meeting.plain.written)) == -(-size // RECORD)
    meeting.answer()
    assert meeting.client.received == b"x" * size


def test_flow_control_is_that_of_the_plain_transport(meeting):
    meeting.tls.set_write_buffer_limits(1 << 18)
    assert meeting.plain.limit == 1 << 18
    meeting.tls.pause_writing()
    meeting.tls.resume_writing()
    assert meeting.protocol.calls == ["pause", "resume"]
    assert meeting.tls.get_write_buffer_size() == 17


def test_before_there_is_a_protocol_flow_control_concerns_nobody(context):
    meeting = Meeting(context)
    meeting.tls.pause_writing()
    meeting.tls.resume_writing()
    assert meeting.shake_hands().ready == 1 and meeting.protocol.calls == []


def test_nothing_is_written_after_the_end(meeting):
    meeting.tls.write(b"")
    meeting.tls.close()
    written = meeting.plain.written
    meeting.tls.write(b"late")
    meeting.tls.close()
    assert meeting.plain.written == written
    meeting.tls.data_received(b"late")
    assert not meeting.protocol.received
    meeting.answer()
    assert meeting.client.ended, "there was a close_notify"


def test_what_comes_with_a_close_does_not_disturb_it(meeting):
    meeting.tls.pause_reading()
    meeting.tls.data_received(meeting.client.write(b"x" * 100))
    meeting.tls.close()
    meeting.answer()
    assert meeting.client.ended and meeting.client.error is None


def test_a_server_that_ends_its_output_still_reads(meeting):
    meeting.tls.pause_reading()
    meeting.tls.data_received(meeting.client.write(b"before"))
    meeting.tls.write(b"UNAUTHORIZED\r\n")
    meeting.tls.write_eof()
    meeting.tls.write(b"late")
    meeting.tls.resume_reading()
    meeting.rounds.loop.settle()
    data = meeting.client.write(b" and after")
    meeting.answer()
    assert meeting.client.received == b"UNAUTHORIZED\r\n" and meeting.client.ended
    assert meeting.plain.ended and not meeting.plain.closed
    meeting.send(data)
    assert meeting.protocol.received == b"before and after"
    meeting.tls.close()
    assert meeting.plain.closed and not meeting.plain.written


def test_an_abort_sends_nothing(meeting):
    meeting.plain.written = b""
    meeting.tls.abort()
    assert meeting.plain.aborted and not meeting.plain.written
    meeting.tls.write(b"late")


# What is left


def test_those_who_hang_up_before_they_are_known_are_closed_in_turns(context):
    rounds = Rounds()
    meetings = [Meeting(context, rounds=rounds) for _ in range(40)]
    rounds.turns.clock = SteppingClock(rounds.loop, MILLISECOND // 5)
    for meeting in meetings:
        assert meeting.tls.eof_received()
    assert not any(meeting.failures for meeting in meetings)
    rounds.loop.go_round()
    assert 1 <= sum(len(meeting.failures) for meeting in meetings) <= 4
    rounds.loop.settle()
    assert all(meeting.failures == ["disconnected before the handshake"] for meeting in meetings)


def test_what_openssl_holds_for_connections_that_are_lost_at_once_is_released_in_turns(context):
    rounds = Rounds()
    meetings = [Meeting(context, rounds=rounds).shake_hands() for _ in range(20)]
    rounds.turns.budget = 50
    for meeting in meetings:
        meeting.lose()
    assert all(meeting.protocol.lost for meeting in meetings)
    assert 0 < sum(meeting.tls._ssl is None for meeting in meetings) < 10
    rounds.loop.settle()
    assert all(meeting.tls._ssl is None for meeting in meetings)


def test_whoever_is_above_is_told_that_the_connection_is_gone(meeting):
    error = ConnectionResetError()
    meeting.lose(error)
    assert meeting.protocol.lost == (error,)
    assert meeting.tls.get_protocol() is None and not meeting.failures


def test_a_connection_that_is_lost_in_its_handshake_is_a_failure(context):
    meeting = Meeting(context)
    meeting.send(hello())
    meeting.lose(ConnectionResetError())
    assert meeting.failures == ["the connection was lost"]
    meeting.rounds.loop.settle()


def test_a_turn_after_the_end_does_nothing(context):
    meeting = Meeting(context)
    meeting.tls.data_received(meeting.client.hello())
    meeting.tls.abort()
    meeting.rounds.loop.settle()
    assert not meeting.plain.written


def test_an_owner_that_fails_closes_the_connection(context, caplog):
    meeting = Meeting(context)

    def fail(_):
        raise ZeroDivisionError

    meeting.tls._on_ready = fail
    meeting.shake_hands()
    assert meeting.plain.aborted
    assert "this is a bug in the server" in caplog.text


def test_what_the_plain_transport_knows_is_known_above(meeting):
    assert meeting.tls.get_extra_info("peername") == ("10.0.0.1", 1)
    assert meeting.tls.get_extra_info("nothing", 7) == 7
    assert meeting.tls.is_reading() and not meeting.tls.is_closing()
    assert not meeting.tls.is_slow()
