"""What stands before every page: hosts, origins, forms and sessions."""

import asyncio

import pytest
from beanstalk_client.console.security import (
    LIFE,
    MAX_ATTEMPTS,
    MAX_ATTEMPTS_OF_ADDRESS,
    MAX_PAUSE,
    MAX_SESSIONS,
    PAUSE,
    SPACING,
    Attempts,
    Forms,
    Sessions,
    fingerprint,
    is_good_host,
    is_trusted,
    network_of,
    refusal,
    set_cookie,
)
from hypothesis import given
from hypothesis import strategies as st

GOOD_HOSTS = "127.0.0.1 127.0.0.1:11380 [::1]:11380 10.1.2.3 localhost:1 queue.example.com".split()
BAD_HOSTS = """
queue evil.local evil.internal jobs.svc evil.localhost evil.example 127.0.0.1.evil.example queue.example.com.evil [
x:y:z
""".split()


def test_a_host_is_an_address_localhost_or_a_name_of_the_console():
    assert [
        host for host in [*GOOD_HOSTS, *BAD_HOSTS, "", "a b.c"] if is_good_host(host, ["queue.example.com"])
    ] == GOOD_HOSTS


GOOD = {"host": "127.0.0.1:11380"}


@pytest.mark.parametrize(
    ("method", "headers", "is_taken"),
    [
        ("GET", {}, True),
        ("GET", {"sec-fetch-site": "none"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}, True),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"}, False),
        ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
        ("GET", {"host": "evil.example"}, False),
        ("POST", {}, True),
        ("POST", {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1:11380"}, True),
        ("POST", {"sec-fetch-site": "cross-site"}, False),
        ("POST", {"sec-fetch-site": "same-site"}, False),
        ("POST", {"sec-fetch-site": "none"}, False),
        ("POST", {"origin": "https://evil.example"}, False),
        ("POST", {"origin": "null"}, False),
        ("POST", {"origin": "http://["}, False),
        ("POST", {"origin": "http://127.0.0.1:9"}, False),
        ("DELETE", {"sec-fetch-site": "cross-site"}, False),
    ],
)
def test_which_requests_are_taken(method, headers, is_taken):
    assert (refusal(method, GOOD | headers, []) is None) == is_taken


@given(st.text(min_size=1), st.text(min_size=1), st.text())
def test_the_value_of_a_form_fits_its_own_cookie_only(cookie, other, value):
    forms = Forms()
    assert forms.fits(cookie, forms.value(cookie))
    assert other.encode("utf-8", "replace") == cookie.encode("utf-8", "replace") or not forms.fits(
        other, forms.value(cookie)
    )
    assert not forms.fits(cookie, value) and not forms.fits("", forms.value(""))
    assert not Forms().fits(cookie, forms.value(cookie))


def test_a_session_ends_after_its_life_or_when_its_user_signs_out():
    now = [0.0]
    sessions = Sessions(lambda: now[0])
    cookie, session = sessions.begin("secret-token")
    assert sessions.find(cookie) is session and "secret" not in repr(session) + session.name
    other, _ = sessions.begin("another-token", "Ada")
    sessions.end(other)
    assert sessions.find(other) is None and sessions.tokens() == {"secret-token"}
    now[0] = LIFE
    assert sessions.find(cookie) is None and sessions.tokens() == set() and len(sessions) == 0


def test_the_number_of_sessions_is_bounded():
    sessions = Sessions()
    cookies = [sessions.begin("token")[0] for _ in range(MAX_SESSIONS + 1)]
    assert len(sessions) == MAX_SESSIONS and sessions.find(cookies[0]) is None and sessions.find(cookies[-1])


def test_who_signs_in_often_signs_out_no_other_user():
    sessions = Sessions()
    cookie, _ = sessions.begin("another token")
    for _ in range(MAX_SESSIONS + 1):
        sessions.begin("token")
    assert len(sessions) == MAX_SESSIONS and sessions.find(cookie)


def test_a_cookie_is_out_of_reach_of_scripts_and_other_sites():
    assert set_cookie("/queue", "x", secure=True).endswith("Path=/queue; HttpOnly; SameSite=Strict; Secure")
    assert "Path=/;" in set_cookie("", "x", secure=False) and "Secure" not in set_cookie("", "x", secure=False)


def test_a_fingerprint_tells_tokens_apart_and_nothing_of_them():
    assert fingerprint("a") != fingerprint("b") and len(fingerprint("a" * 100)) == len("token 12345678")


@pytest.mark.parametrize(
    ("peer", "is_so"), [("127.0.0.1", True), ("", True), ("::1", True), ("10.0.0.1", False), ("example.com", False)]
)
def test_the_proxy_comes_from_a_trusted_network(peer, is_so):
    assert is_trusted(peer, ["127.0.0.0/8", "::1/128"]) == is_so


async def test_checks_of_tokens_wait_for_a_place_and_no_address_takes_those_of_others():
    attempts, over, begun = Attempts(), asyncio.Event(), []

    async def check(address):
        async with attempts.place(address):
            begun.append(address)
            await over.wait()

    checks = [asyncio.create_task(check("192.0.2.1")) for _ in range(200)]
    checks.append(asyncio.create_task(check("192.0.2.2")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert begun == ["192.0.2.1"] * MAX_ATTEMPTS_OF_ADDRESS + ["192.0.2.2"]
    checks += [asyncio.create_task(check(f"198.51.100.{number}")) for number in range(100)]
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(begun) == MAX_ATTEMPTS and len(attempts) == 301
    over.set()
    await asyncio.gather(*checks)
    assert len(begun) == 301 and len(attempts) == 0


def test_answers_to_wrong_tokens_are_spaced_however_many_there_are():
    now = [100.0]
    attempts = Attempts(lambda: now[0])
    assert attempts.pause() == PAUSE
    assert [attempts.pause() for _ in range(200)] == pytest.approx([PAUSE + n * SPACING for n in range(1, 201)])
    assert max(attempts.pause() for _ in range(10_000)) == MAX_PAUSE
    now[0] += 2 * MAX_PAUSE
    assert attempts.pause() == PAUSE


@pytest.mark.parametrize(
    ("peer", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
    ],
)
def test_what_counts_as_one_client(peer, network):
    assert network_of(peer) == network
