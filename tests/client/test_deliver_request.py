"""What a job may say, and what is refused before anything is sent."""

import base64
import json

import pytest
from beanstalk_client.deliver.request import LONGEST_URL, METHODS, Request, RequestError, check_url
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as some

URL = "https://example.com/hook?a=b"


def body(**members):
    return json.dumps({"url": URL, **members}).encode()


def refusal(job):
    with pytest.raises(RequestError) as refused:
        Request.from_body(job)
    message = str(refused.value)
    assert message.isascii() and message.isprintable() and len(message) < 300
    return message


def test_a_url_is_enough():
    request = Request.from_body(body())
    assert (request.url, request.host, request.port) == (URL, "example.com", 443)
    assert (request.method, request.headers, request.body, request.timeout, request.id) == ("POST", {}, b"", None, "")


def test_what_a_producer_makes_is_what_the_sender_reads():
    made = Request(URL, method="PUT", headers={"X-Order": "17"}, body="grüße", timeout=2.5, id="order-17")
    read = Request.from_body(made.to_body())
    assert made.to_text() == made.to_body().decode()
    for name in Request.__slots__:
        assert getattr(read, name) == getattr(made, name)


def test_each_request_has_an_id_of_its_own():
    made = Request(URL)
    assert made.id and made.id != Request(URL).id
    assert Request.from_body(made.to_body()).id == made.id


def test_json_has_its_content_type():
    request = Request(URL, json={"ä": [1, None]})
    assert (request.body, request.headers) == ('{"ä":[1,null]}'.encode(), {"Content-Type": "application/json"})
    assert Request(URL, json=0, headers={"content-type": "x/y"}).headers == {"content-type": "x/y"}


@given(some.binary())
def test_every_body_arrives_as_it_is(content):
    assert Request.from_body(Request(URL, body=content).to_body()).body == content


def test_bytes_that_are_no_text_are_base64():
    assert json.loads(Request(URL, body=b"\xff\x00").to_body())["body_base64"] == "/wA="
    assert Request.from_body(body(body_base64="/wA=")).body == b"\xff\x00"


def test_no_request_shows_what_may_be_secret():
    assert repr(Request("https://example.com/secret", headers={"Authorization": "s"})) == (
        "<Request POST to example.com:443>"
    )


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (b"", "not JSON"),
        (b"\xff", "not UTF-8"),
        (b"[]", "not a JSON object"),
        (b'"https://example.com"', "not a JSON object"),
        (b"{}", "must have a url"),
        (b'{"url": NaN}', "NaN is not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"url": "https://a.example/", "url": "https://b.example/"}', "duplicate name"),
        (body(urls=1), "unknown name 'urls'"),
        (body(url=17), "url must be a string"),
        (body(method="TRACE"), "method must be one of"),
        (body(method="get"), "method must be one of"),
        (body(method=["GET"]), "method must be one of"),
        (body(method="GET", body="x"), "a GET request cannot have a body"),
        (body(headers=["a"]), "headers must be an object"),
        (body(headers={"a": 1}), "value of the header a"),
        (body(headers={"a b": "1"}), "not a valid header name"),
        (body(headers={"": "1"}), "not a valid header name"),
        (body(headers={"A": "1", "a": "2"}), "duplicate header a"),
        (body(headers={"a": "1\r\nb: 2"}), "value of the header a"),
        (body(headers={"a": "1\n"}), "value of the header a"),
        (body(headers={"a": " 1"}), "value of the header a"),
        (body(headers={"a": "\x00"}), "value of the header a"),
        (body(headers={"a": "ä"}), "value of the header a"),
        (body(headers={"a\n": "1"}), "not a valid header name"),
        (body(headers={"a" * n: "" for n in range(1, 80)}), "at most 64 headers"),
        (body(headers={"a": "x" * 20_000}), "16384 bytes"),
        (body(body=1), "body must be a string"),
        (body(body={"a": 1}), "body must be a string"),
        (body(body="\ud800"), "surrogate"),
        (body(body="a", body_base64="YQ=="), "body and body_base64 cannot be combined"),
        (body(body_base64="a"), "not base64"),
        (body(body_base64="YQ\n=="), "not base64"),
        (body(body_base64=1), "must be a string"),
        (body(timeout=0), "timeout"),
        (body(timeout=-1), "timeout"),
        (body(timeout=True), "timeout"),
        (body(timeout="1"), "timeout"),
        (body(timeout=1e99), "timeout"),
        (body(id="a.b"), "id must have"),
        (body(id="a" * 129), "id must have"),
        (body(id="a\n"), "id must have"),
        (body(id=1), "id must have"),
    ],
)
def test_what_is_no_request_is_refused_with_the_reason(job, said):
    assert said in refusal(job)


@pytest.mark.parametrize(
    "name",
    "Host content-length Transfer-Encoding connection keep-alive te Trailer upgrade expect proxy-authorization "
    "Webhook-Id webhook-signature webhook-timestamp HTTP2-Settings Proxy-Connection".split(),
)
def test_a_job_may_not_set_what_belongs_to_the_connection_or_to_the_signature(name):
    assert "must not set" in refusal(body(headers={name: "x"}))


def test_the_value_of_a_header_is_not_shown():
    assert "hunter2" not in refusal(body(headers={"Authorization": "hunter2\n"}))


@pytest.mark.parametrize("method", METHODS)
def test_methods(method):
    assert Request.from_body(body(method=method)).method == method


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("http://example.com", "example.com", 80),
        ("HTTP://EXAMPLE.com:8080/A", "example.com", 8080),
        ("https://example.com./", "example.com", 443),
        ("https://xn--bcher-kva.example/", "xn--bcher-kva.example", 443),
        ("https://a_b.example/", "a_b.example", 443),
        ("http://192.0.2.1/", "192.0.2.1", 80),
        ("http://[2001:DB8::1]:81/", "2001:db8::1", 81),
        ("http://[::ffff:192.0.2.1]/", "::ffff:192.0.2.1", 80),
        ("http://1e100.net/", "1e100.net", 80),
        ("http://0x7f.example/", "0x7f.example", 80),
    ],
)
def test_hosts_and_ports(url, host, port):
    assert check_url(url)[1:] == (host, port)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("", ""),
        ("?a/../b", "?a/../b"),
        ("/a/../b/stolen", "/b/stolen"),
        ("/a/%2e%2E/b", "/b"),
        ("/a/.%2e/./b/.", "/b/"),
        ("/../..", "/"),
        ("/a//../b", "/a/b"),
        ("/%61%7E%2d%2Fx%20...;a?%2e%2e", "/a~-%2Fx%20...;a?%2e%2e"),
    ],
)
def test_a_path_is_sent_in_normal_form(path, normal):
    assert Request(f"HTTPS://Example.com:8443{path}").url == f"HTTPS://Example.com:8443{normal}"


@pytest.mark.parametrize(
    "path", ["/a/..%2fb", "/a/..%5Cb", "/a%2f..%2fb", "/a/%252e%252e/b", "/a/..;x/b", "/a/%2e%2e%3b/b", "/a/.%2fb"]
)
def test_a_path_that_receivers_would_normalise_differently_is_refused(path):
    with pytest.raises(RequestError, match=r"a segment \.\. or \."):
        Request(f"https://example.com{path}")


def test_a_fragment_is_left_out():
    assert check_url("https://example.com/a#b")[0] == "https://example.com/a"


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.com",
        "//example.com/",
        "/hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "http:example.com",
        "http:/example.com",
        "http:///example.com",
        "http://",
        "http://:80/",
        "http://user@example.com/",
        "http://user:password@example.com/",
        "http://@example.com/",
        "http://example.com:/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:8_0/",
        "http://example.com:+80/",
        "http://example.com:-1/",
        "http://example.com:80:80/",
        "http://exa mple.com/",
        "http://example.com/ a",
        " http://example.com/",
        "http://example.com/\r\nHost: b",
        "http://example.com\\@127.0.0.1/",
        "http://bücher.example/",
        "http://example.com/ü",
        "http://ex%61mple.com/",
        "http://127.0.0.1%00.example.com/",
        "http://ⓔxample.com/",
        "http://a..b/",
        "http://-a.example/",
        "http://" + "a" * 64 + ".example/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7F.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.01/",
        "http://127.0.0.1.1/",
        "http://256.0.0.1/",
        "http://1.2.3.0x/",
        "http://127.0.0.1../",
        "http://[::1/",
        "http://::1/",
        "http://[::1]x/",
        "http://[fe80::1%25eth0]/",
        "http://[v1.a]/",
        "http://[127.0.0.1]/",
        "http://[::g]/",
        "https://example.com/" + "a" * LONGEST_URL,
    ],
)
def test_urls_that_two_readers_could_read_differently_are_refused(url):
    refusal(body(url=url))


def read(job):
    """The request, or why it is none."""
    try:
        return Request.from_body(job)
    except RequestError as error:
        return str(error)


@given(some.binary(max_size=300))
def test_whatever_a_job_is_it_is_read_or_refused(job):
    request = read(job)
    assert isinstance(request, Request) or request.isascii()


@settings(max_examples=examples(40))
@given(
    some.dictionaries(
        some.sampled_from(["url", "method", "headers", "body", "body_base64", "timeout", "id", "x"]),
        some.one_of(
            some.sampled_from([URL, "GET", "YQ=="]),
            some.text(),
            some.floats(),
            some.booleans(),
            some.none(),
            some.dictionaries(some.text(max_size=5), some.text(max_size=5), max_size=3),
        ),
    )
)
def test_whatever_its_members_are_they_are_read_or_refused(members):
    request = read(json.dumps(members).encode())
    if isinstance(request, Request):
        assert read(request.to_body()).to_body() == request.to_body()
    else:
        assert request.isascii()


def test_a_producer_is_told_at_once():
    with pytest.raises(RequestError, match="cannot be combined"):
        Request(URL, body="a", json=1)
    for body in ({"a": 1}, 5):
        with pytest.raises(RequestError, match=r"body must be str or bytes, not .*json="):
            Request(URL, body=body)
    with pytest.raises(RequestError, match="must not set"):
        Request(URL, headers={"Host": "x"})
    assert base64.b64decode(json.loads(Request(URL, body=bytes(range(256))).to_body())["body_base64"])
