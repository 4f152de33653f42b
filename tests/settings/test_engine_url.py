"""The URL of an engine: what it says, and what is wrong with others."""

import pytest

from beanstalk_server.settings.engine_url import ALONE, CLUSTER, POSTGRESQL, SENTINEL, EngineURL, Host, read_url

GOOD = {
    "redis://localhost": EngineURL(ALONE, (Host("localhost", 6379),)),
    "redis://127.0.0.1:7000/3": EngineURL(ALONE, (Host("127.0.0.1", 7000),), database=3),
    "redis://[::1]:7000": EngineURL(ALONE, (Host("::1", 7000),)),
    "redis://[::1]": EngineURL(ALONE, (Host("::1", 6379),)),
    "redis://h/": EngineURL(ALONE, (Host("h", 6379),)),
    "redis://:secret@h": EngineURL(ALONE, (Host("h", 6379),), password="secret"),
    "redis://queue:p%40ss%2F%25@h": EngineURL(ALONE, (Host("h", 6379),), user="queue", password="p@ss/%"),
    "rediss://h?ca=/etc/ca.pem&cert=/c.pem&key=/k.pem": EngineURL(
        ALONE, (Host("h", 6379),), tls=True, ca="/etc/ca.pem", cert="/c.pem", key="/k.pem"
    ),
    "redis+sentinel://a,b:5000/queue": EngineURL(SENTINEL, (Host("a", 26379), Host("b", 5000)), service="queue"),
    "redis+sentinel://u:p@a/queue/2?sentinel-user=s&sentinel-password=t": EngineURL(
        SENTINEL,
        (Host("a", 26379),),
        user="u",
        password="p",
        service="queue",
        database=2,
        sentinel_user="s",
        sentinel_password="t",
    ),
    "rediss+sentinel://a/queue": EngineURL(SENTINEL, (Host("a", 26379),), tls=True, service="queue"),
    "redis+cluster://a,b,[::2]:7001": EngineURL(CLUSTER, (Host("a", 6379), Host("b", 6379), Host("::2", 7001))),
    "postgresql://a": EngineURL(POSTGRESQL, (Host("a", 5432),)),
    "postgres://u:p%40@a,[::1]:7/queue?sslmode=verify-full&sslrootcert=/ca&sslcert=/c&sslkey=/k": EngineURL(
        POSTGRESQL,
        (Host("a", 5432), Host("::1", 7)),
        *(False, "u", "p@", "queue"),
        ca="/ca",
        cert="/c",
        key="/k",
    ),
    "postgresql:///queue?host=/run/postgresql": EngineURL(POSTGRESQL, (Host("localhost", 5432),), service="queue"),
    "postgresql://a?sslrootcert=system": EngineURL(POSTGRESQL, (Host("a", 5432),)),
    "rediss+cluster://a": EngineURL(CLUSTER, (Host("a", 6379),), tls=True),
}

BAD = {
    "": "redis://",
    "localhost:6379": "redis://",
    "http://h": "redis://",
    "redis+sentinel://h": "service",
    "redis://": "host",
    "redis://a,b": "one host",
    "redis://h:0": "port",
    "redis://h:65536": "port",
    "redis://h:x": "port",
    "redis://::1": "brackets",
    "redis://h/x": "database",
    "redis://h/1/2": "database",
    "redis+cluster://h/1": "database 0",
    "redis://@h": "user or a password",
    "redis://h?ca=/x": "rediss",
    "rediss://h?sentinel-user=x": "sentinel",
    "rediss://h?verify=no": "no options other than",
    "rediss://h?cert=/c": "both",
    "rediss://h?ca=": "value",
    "rediss://h?ca=/a&ca=/b": "once",
    "postgresql://": "host",
    "postgresql://h:x/queue": "port",
    "postgresql://u:p/w@h/queue": "%2F",
    "postgresql://u:p@w@h/queue": "%40",
    "redis://:pass#word@h": "",
    "redis://[h": "redis://",
}


@pytest.mark.parametrize("text", GOOD)
def test_a_url_says_where_the_engine_is(text):
    assert read_url(text) == GOOD[text]


@pytest.mark.parametrize("text", BAD)
def test_what_is_wrong_with_a_url_is_told_in_one_line(text):
    with pytest.raises(ValueError, match=f"^must .*{BAD[text]}") as raised:
        read_url(text)
    assert "\n" not in str(raised.value)


def test_no_password_is_shown():
    for text in ("redis://queue:secret@h:1/2", "redis+sentinel://queue:secret@a,b/s/3?sentinel-password=secret"):
        url = read_url(text)
        assert "secret" not in f"{url} {url!r}"
    with pytest.raises(ValueError, match="port") as raised:
        read_url("redis://queue:secret@h:port")
    assert "secret" not in str(raised.value)


def test_a_url_is_shown_as_it_was_given():
    for text in (
        "redis://queue@h:1/2",
        "rediss+sentinel://a:1,[::1]:2/service",
        "redis+cluster://a:1",
        "postgresql://u@a:1,b:2/queue",
    ):
        assert str(read_url(text)) == text
