"""Reads and writes the job of a delivery: a request to a URL, as JSON, with every check that needs no network.

    {"url": "https://example.com/hook", "method": "POST", "headers": {"Content-Type": "text/plain"}, "body": "hello"}

Producers make bodies with it and the sender reads them with it, so both refuse the same things. It is strict where
two readers of a URL or of a header might differ: what is refused here cannot be smuggled through an HTTP library. Must
never know a queue, a socket, an HTTP library.
"""

from __future__ import annotations

import base64
import binascii
import json as json_format
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from beanstalk_client.errors import shown

METHODS: Final = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
"""What a job may ask for. CONNECT and TRACE are for proxies and for debugging."""

LONGEST_URL: Final = 4096
"""Bytes."""

MOST_HEADERS: Final = 64
"""Header fields of a job."""

LONGEST_HEADERS: Final = 16_384
"""Bytes of all names and values of a job's header fields."""

LONGEST_ID: Final = 128
"""Characters."""

SENDERS_HEADERS: Final = frozenset(
    {
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "webhook-id",
        "webhook-signature",
        "webhook-timestamp",
    }
)
"""Header fields that a job may not set: the connection's own (RFC 9110, section 7.6.1), and those of the signature."""

_URL_CHARACTERS: Final = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+", re.ASCII)
_NAME: Final = re.compile(
    r"(?=.{1,253}\.?\Z)[a-z0-9_](?:[a-z0-9_-]{0,62})(?:\.[a-z0-9_][a-z0-9_-]{0,62})*\.?", re.ASCII
)
_UNRESERVED: Final = re.compile(r"%(?:2[DdEe]|3[0-9]|4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe])", re.ASCII)
_SEPARATORS: Final = re.compile(r"[/\\]")
_NUMBER: Final = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]+", re.ASCII)
_OCTET: Final = r"(?:0|[1-9][0-9]?|1[0-9]{2}|2[0-4][0-9]|25[0-5])"
_IPV4: Final = re.compile(rf"{_OCTET}(?:\.{_OCTET}){{3}}", re.ASCII)
_IPV6: Final = re.compile(r"[0-9a-f:.]{2,45}", re.ASCII)
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+\-.^_`|~]+", re.ASCII)
_FIELD_VALUE: Final = re.compile(r"(?:[!-~](?:[\t -~]*[!-~])?)?", re.ASCII)
_ID: Final = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_ID}}}", re.ASCII)

_MEMBERS: Final = ("url", "method", "headers", "body", "body_base64", "timeout", "id")


class RequestError(ValueError):
    """This is no request that may be sent; says what is wrong, in one line."""


class Request:
    """A request that is to be sent.

    Attributes:
        url: where to, without its fragment, its path in normal form.
        host: the host of it, in lower case: a name without a final dot, an IPv4 address in dotted decimal, or an IPv6
            address without brackets.
        port: the port of it.
        method: one of METHODS.
        headers: the header fields, names as given.
        body: what is sent; empty: nothing.
        timeout: seconds that all of it may take, redirects included; None: as long as the sender is set to.
        id: what receivers know it by, the same in each attempt; "": the sender derives one from the job.
    """

    __slots__ = ("body", "headers", "host", "id", "method", "port", "timeout", "url")

    def __init__(
        self,
        url: str,
        *,
        method: str = "POST",
        headers: Mapping[str, str] | None = None,
        body: str | bytes = b"",
        json: Any = None,
        timeout: float | None = None,
        id: str | None = None,
    ) -> None:
        """Make one, or refuse to.

        Args:
            url: http or https, in ASCII as it goes over the wire: names in Punycode, other characters percent-encoded.
            body: what is sent; a str in UTF-8.
            json: sent as JSON instead of a body, with `Content-Type: application/json` unless the headers have one.
            timeout: seconds, above 0. The sender has a limit of its own.
            id: letters, digits, "-" and "_". None: a new one, at random; "": none, so that the sender derives one.

        Raises:
            RequestError: something of it may not be sent.
        """
        self.url: str
        self.host: str
        self.port: int
        self.url, self.host, self.port = check_url(url)
        self.method: str = _checked_method(method)
        self.headers: dict[str, str] = _checked_headers({} if headers is None else headers)
        if not isinstance(body, (str, bytes, bytearray)):
            raise RequestError(f"body must be str or bytes, not {type(body).__name__}; json=… takes other values")
        self.body: bytes = body.encode() if isinstance(body, str) else bytes(body)
        if json is not None:
            if self.body:
                raise RequestError("body and json cannot be combined")
            self.body = json_format.dumps(json, ensure_ascii=False, separators=(",", ":")).encode()
            if not any(name.lower() == "content-type" for name in self.headers):
                self.headers["Content-Type"] = "application/json"
        if self.body and self.method in ("GET", "HEAD"):
            raise RequestError(f"a {self.method} request cannot have a body")
        self.timeout: float | None = _checked_timeout(timeout)
        self.id: str = f"msg_{secrets.token_hex(16)}" if id is None else _checked_id(id)

    def __repr__(self) -> str:
        """Without what may be secret: the path, the headers, the body."""
        return f"<Request {self.method} to {self.host}:{self.port}>"

    def to_body(self) -> bytes:
        """The body of the job, for a client whose bodies are bytes."""
        return self.to_text().encode()

    def to_text(self) -> str:
        """The body of the job, for a client whose bodies are text in UTF-8."""
        members: dict[str, Any] = {"url": self.url}
        if self.method != "POST":
            members["method"] = self.method
        if self.headers:
            members["headers"] = self.headers
        if self.body:
            try:
                members["body"] = self.body.decode()
            except UnicodeDecodeError:
                members["body_base64"] = base64.b64encode(self.body).decode()
        if self.timeout is not None:
            members["timeout"] = self.timeout
        if self.id:
            members["id"] = self.id
        return json_format.dumps(members, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_body(cls, body: bytes) -> Request:
        """Read the body of a job.

        Raises:
            RequestError: it cannot be read, or what it says may not be sent.
        """
        members = _read(body)
        for name in members:
            if name not in _MEMBERS:
                raise RequestError(f"unknown name {_shown(name)}: must be one of {', '.join(_MEMBERS)}")
        if "url" not in members:
            raise RequestError("a request must have a url")
        if "body" in members and "body_base64" in members:
            raise RequestError("body and body_base64 cannot be combined")
        headers = members.get("headers")
        if headers is not None and not isinstance(headers, dict):
            raise RequestError("headers must be an object of names and values")
        return cls(
            members["url"],
            method=members.get("method", "POST"),
            headers=headers,
            body=_decoded(members["body_base64"]) if "body_base64" in members else _text(members.get("body", "")),
            timeout=members.get("timeout"),
            id=members.get("id", ""),
        )


def check_url(url: str) -> tuple[str, str, int]:
    """Check a URL that a request, or the answer to one, leads to.

    Returns:
        The URL without its fragment and with its path in normal form, its host as `Request.host`, its port.

    Raises:
        RequestError: it is no URL that may be asked for.
    """
    if not isinstance(url, str):
        raise RequestError("url must be a string")
    if len(url) > LONGEST_URL:
        raise RequestError(f"url must have at most {LONGEST_URL} bytes")
    if not _URL_CHARACTERS.fullmatch(url):
        raise RequestError(
            "url must have only the characters of RFC 3986: percent-encode others, and write host names in Punycode"
        )
    url = url.partition("#")[0]
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise RequestError(f"url cannot be read: {_shown(error)}") from None
    if parts.scheme not in ("http", "https"):
        raise RequestError(f"url must begin with http:// or https://, not with {_shown(parts.scheme or url[:16])}")
    if "@" in parts.netloc:
        raise RequestError("url must not have a user or password: use the header Authorization")
    digits = parts.netloc.rpartition("]")[2].partition(":")[2]
    if digits and not _DIGITS.fullmatch(digits):  # Python 3.9 takes 8_0 and +80 for 80
        raise RequestError(f"url must have a port in digits, not {_shown(digits)}")
    if port is None:
        if parts.netloc.endswith(":"):
            raise RequestError("url must have a port after the colon, or no colon")
        port = 443 if parts.scheme == "https" else 80
    elif port == 0:
        raise RequestError("url must not have the port 0")
    host = _checked_host(parts.netloc)
    origin = len(parts.scheme) + 3 + len(parts.netloc)
    path, mark, query = url[origin:].partition("?")
    return f"{url[:origin]}{_normal_path(path)}{mark}{query}", host, port


def decode_unreserved(path: str) -> str:
    """Decode what needs no percent-encoding, `%2e` for one (RFC 3986, section 6.2.2.2)."""
    return _UNRESERVED.sub(lambda found: unquote(found[0]), path)


def _normal_path(path: str) -> str:
    """A path without dot segments (RFC 3986, section 5.2.4): what is matched with patterns is what receivers see."""
    segments = decode_unreserved(path).split("/")
    kept: list[str] = []
    for segment in segments[1:]:
        if segment == "..":
            del kept[-1:]
        elif segment != ".":
            kept.append(segment)
    if segments[-1] in (".", ".."):
        kept.append("")
    path = decoded = "".join(f"/{segment}" for segment in kept)
    for _ in range(3):  # some receivers, and what stands before them, decode more than once
        decoded = unquote(decoded)
    # Some take an encoded slash or a backslash for a slash, and what follows ";" for no part of the segment.
    if any(segment.partition(";")[0] in (".", "..") for segment in _SEPARATORS.split(decoded)):
        raise RequestError("url must not have a segment .. or . that is encoded or has parameters")
    return path


def _checked_host(netloc: str) -> str:
    """The host of `host:port`, in one of the three forms that all software reads the same way."""
    if netloc.startswith("["):
        host, bracket, rest = netloc[1:].lower().partition("]")
        if not bracket or (rest and not rest.startswith(":")) or not _IPV6.fullmatch(host) or not _is_ipv6(host):
            raise RequestError(f"url must have an IPv6 address in its brackets, not {_shown(host)}")
        return host
    host = netloc.partition(":")[0].lower()
    if not _NAME.fullmatch(host):
        raise RequestError(f"url must have a host: {_shown(host)} is neither a name nor an address")
    host = host.removesuffix(".")
    # What ends in a number is an address to those who open connections, in octal, hexadecimal or with fewer parts.
    if _NUMBER.fullmatch(host.rpartition(".")[2]) and not _IPV4.fullmatch(host):
        raise RequestError(f"url must have an IPv4 address in dotted decimal, not {_shown(host)}")
    return host


def _is_ipv6(host: str) -> bool:
    from ipaddress import AddressValueError, IPv6Address

    try:
        IPv6Address(host)
    except AddressValueError:
        return False
    return True


def _checked_method(method: object) -> str:
    if not isinstance(method, str) or method not in METHODS:
        raise RequestError(f"method must be one of {', '.join(METHODS)}, not {_shown(method)}")
    return method


def _checked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    checked: dict[str, str] = {}
    known = set()
    size = 0
    fields: Mapping[Any, Any] = headers
    for name, value in fields.items():
        if not isinstance(name, str) or not _TOKEN.fullmatch(name):
            raise RequestError(f"{_shown(name)} is not a valid header name")
        if name.lower() in SENDERS_HEADERS:
            raise RequestError(f"a job must not set the header {name}: the sender sets it")
        if name.lower() in known:
            raise RequestError(f"duplicate header {name}")
        # The value is not shown: it may be a password.
        if not isinstance(value, str) or not _FIELD_VALUE.fullmatch(value):
            raise RequestError(
                f"the value of the header {name} must be printable ASCII, and must not begin or end with a blank"
            )
        known.add(name.lower())
        size += len(name) + len(value)
        checked[name] = value
    if len(checked) > MOST_HEADERS or size > LONGEST_HEADERS:
        raise RequestError(
            f"a request must have at most {MOST_HEADERS} headers, and at most {LONGEST_HEADERS} bytes of them in total"
        )
    return checked


def _checked_timeout(timeout: object) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout < 1e6:
        raise RequestError(f"timeout must be a number of seconds above 0, not {_shown(timeout)}")
    return timeout


def _checked_id(id: object) -> str:
    if not isinstance(id, str) or (id and not _ID.fullmatch(id)):
        raise RequestError(f"id must have at most {LONGEST_ID} letters, digits, - and _, not {_shown(id)}")
    return id


def _read(body: bytes) -> dict[str, Any]:
    """The members of a body; RequestError if it is no JSON object."""
    try:
        members = json_format.loads(body.decode(), object_pairs_hook=_object, parse_constant=_no_constant)
    except RequestError:
        raise
    except UnicodeDecodeError:
        raise RequestError("the body is not UTF-8") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {_shown(error)}") from None
    if not isinstance(members, dict):
        raise RequestError("the body is not a JSON object")
    return members


def _object(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, whose names are each there once: readers differ in which of two they take."""
    members = dict(pairs)
    if len(members) < len(pairs):
        raise RequestError("duplicate name in a JSON object")
    return members


def _no_constant(name: str) -> Any:
    raise RequestError(f"{name} is not JSON")


def _text(body: object) -> bytes:
    if not isinstance(body, str):
        raise RequestError("body must be a string; use body_base64 for bytes that are not text")
    try:
        return body.encode()
    except UnicodeEncodeError:
        raise RequestError("body must be valid Unicode, without lone surrogates") from None


def _decoded(body: object) -> bytes:
    if not isinstance(body, str):
        raise RequestError("body_base64 must be a string")
    try:
        return base64.b64decode(body.encode("ascii"), validate=True)
    except (UnicodeEncodeError, binascii.Error):
        raise RequestError("body_base64 is not base64") from None


def _shown(what: object) -> str:
    """Something of a job in a message."""
    return f"'{shown(what, 60)}'"
