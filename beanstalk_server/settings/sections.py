"""Declares the sections of a configuration (listeners, users, policies of tubes), and checks their values together.

A rule that concerns one value alone is in its kind. Must never open a file or a socket.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from operator import attrgetter
from typing import Final

from beanstalk_server.settings import kinds
from beanstalk_server.settings.declaration import ConfigError, Mistake, options_of, setting, take_values

LARGEST_JOB_SIZE: Final = 1 << 30
"""The largest value that beanstalkd takes for -z, in bytes."""

HTTP: Final = "http"

LOOPBACK_NETWORK: Final = 127
"""The first byte of every loopback address of IPv4."""

LOOPBACK_IPV6: Final = bytes(15) + b"\x01"

MAPPED: Final = bytes(10) + b"\xff\xff"
"""The prefix of an address of IPv6 that stands for one of IPv4."""

TLS_CERT: Final = "PEM file with the TLS certificate and its chain; enables TLS"
TLS_KEY: Final = "PEM file with the private key of the certificate (default: the certificate's file)"
TLS_CLIENT_CA: Final = "PEM file of CAs; clients must have a certificate from one of them"
"""Of a listener, whether its keys or options describe it."""

KEY: Final = attrgetter("key")
"""What messages call a value of a section."""

_PATTERNS: Final = kinds.Several(kinds.PATTERN)
_COUNT: Final = kinds.whole("", 0, 1 << 50)  # more than a server has


@dataclass(frozen=True, kw_only=True)
class ListenerConfig:
    """One `[[listener]]`: where clients connect, and how they authenticate there.

    Raises:
        ConfigError: bad values, or values that do not go together; the places are keys.
    """

    address: str = setting(MISSING, kinds.ADDRESS, "address to listen on: host:port, [v6]:port or unix:PATH")
    protocol: str = setting(
        "beanstalk",
        kinds.choice("", ("beanstalk", HTTP)),
        "protocol: beanstalk for clients, http for metrics and health",
    )
    tls_cert: str = setting("", kinds.FILE, TLS_CERT)
    tls_key: str = setting("", kinds.FILE, TLS_KEY)
    tls_client_ca: str = setting("", kinds.FILE, TLS_CLIENT_CA)
    auth: str = setting(
        "none",
        kinds.choice("", ("none", "token", "certificate", "peer")),
        "how clients authenticate: none, by token, by the name in their certificate, or by the uid of the socket's "
        "peer",
    )
    user: str = setting("", kinds.NAME_OR_NONE, 'user of all clients of this listener, with `auth = "none"`')
    proxy_protocol: bool = setting(False, kinds.SWITCH, "expect a PROXY header, version 1 or 2, from each client")
    trusted: tuple[str, ...] = setting((), kinds.Several(kinds.NETWORK), "networks that may send a PROXY header")
    malformed_put: str = setting(
        "auto",
        kinds.choice("", ("auto", "continue", "close")),
        "after a malformed put: read its body as commands (continue, as beanstalkd does), or close the connection "
        "(auto: close if clients authenticate)",
    )
    hosts: tuple[str, ...] = setting(
        (), kinds.Several(kinds.HOST), 'with `protocol = "http"`: further names accepted in the Host header'
    )

    def __post_init__(self) -> None:
        take_values(self, LISTENER_KEYS, KEY)
        if any(getattr(self, each.name) != each.default for each in LISTENER_KEYS if each.name != "address"):
            mistakes = _of_listener(self)  # an open listener has nothing to check
            if mistakes:
                raise ConfigError(*mistakes)

    @property
    def path(self) -> str:
        """The path of its UNIX socket, or ""."""
        return self.address.removeprefix(kinds.UNIX) if self.address.startswith(kinds.UNIX) else ""

    @property
    def host(self) -> str:
        """Its host name or address, without brackets, or ""."""
        host = "" if self.path else self.address.rpartition(":")[0]
        return host[1:-1] if host.startswith("[") else host

    @property
    def port(self) -> int | str:
        """Its TCP port, by number or by the name of a service; 0 if it has none."""
        port = "0" if self.path else self.address.rpartition(":")[2]
        return int(port) if port.isdecimal() else port

    @property
    def closes_after_put(self) -> bool:
        """Whether a malformed put closes the connection."""
        return self.malformed_put == "close" or (self.malformed_put == "auto" and self.auth != "none")

    @property
    def is_http(self) -> bool:
        """Whether it is for operators, and not for clients."""
        return self.protocol == HTTP

    @property
    def place(self) -> tuple[str, int | str]:
        """Its path, or its port, without the host."""
        return self.path, self.port


@dataclass(frozen=True, kw_only=True)
class UserConfig:
    """One `[[user]]`: how it is recognized, and its rights, each a list of patterns of tube names.

    Raises:
        ConfigError: bad values; the places are keys.
    """

    name: str = setting(MISSING, kinds.NAME, "name in the log, and in the user's certificates")
    token_sha256: tuple[str, ...] = setting((), kinds.Several(kinds.TOKEN_HASH), "SHA-256 hashes of the user's tokens")
    uid: tuple[int, ...] = setting(
        (), kinds.Several(kinds.UID), 'system users that authenticate as this user, with `auth = "peer"`'
    )
    produce: tuple[str, ...] = setting((), _PATTERNS, "tubes that the user may put to")
    consume: tuple[str, ...] = setting((), _PATTERNS, "tubes that the user may reserve from")
    inspect: tuple[str, ...] = setting((), _PATTERNS, "tubes that the user may inspect")
    admin: tuple[str, ...] = setting(
        (), _PATTERNS, "tubes that the user may kick, pause, clear and redrive; `*` also allows drain and list-clients"
    )

    def __post_init__(self) -> None:
        take_values(self, USER_KEYS, KEY)


@dataclass(frozen=True, kw_only=True)
class TubeConfig:
    """One `[[tube]]`: the policy of the tubes that match it, unless they match an earlier one.

    Durations are in seconds, or a `timedelta`. 0 stands for no limit, and for nothing of the kind.

    Raises:
        ConfigError: bad values, or values that do not go together; the places are keys.
    """

    match: tuple[str, ...] = setting(
        MISSING, kinds.Several(kinds.PATTERN, 1), "tubes of this policy; first match applies"
    )
    max_jobs: int = setting(0, _COUNT, "maximum number of jobs in the tube; puts beyond it are refused")
    max_bytes: int = setting(
        0, kinds.size(0, 1 << 50), "maximum total size of the bodies in the tube; puts beyond it are refused"
    )
    max_delay: float = setting(0, kinds.DURATION, "maximum delay of a put")
    max_job_size: int = setting(0, kinds.size(0, LARGEST_JOB_SIZE), "maximum size of a job's body; at most -z")
    max_tries: int = setting(
        0,
        kinds.whole("", 0, (1 << 32) - 1),
        "maximum failed attempts; then the job is buried, or moved to the dead tube",
    )
    count_disconnects: bool = setting(True, kinds.SWITCH, "count the disconnect of a worker as a failed attempt")
    dead_tube: str = setting("", kinds.TUBE_OR_NONE, "tube for jobs that have failed too often or have expired")
    backoff: float = setting(0, kinds.DURATION, "delay after the first failed attempt; doubles with each further one")
    backoff_max: float = setting(0, kinds.DURATION, "maximum delay between attempts")
    ttl: float = setting(
        0, kinds.DURATION, "maximum time that a job is ready; then it is deleted, or moved to the dead tube"
    )
    key_hold: float = setting(0, kinds.DURATION, "time that a key stays taken after its job is done")
    max_held_keys: int = setting(
        0,
        _COUNT,
        "maximum number of keys held by `key-hold`; puts that would hold one more are refused (0: `max-jobs`)",
    )
    max_reserved: int = setting(0, _COUNT, "maximum number of reserved jobs")
    rate: str = setting("", kinds.RATE, "maximum rate of reserves")
    burst: int = setting(
        1,
        kinds.whole("", 1, 1_000_000),
        "burst size of `rate`: maximum number of reserves without a pause between them",
    )
    share: str = setting(
        "",
        kinds.SEPARATOR_OR_NONE,
        "separator in a job's key: the part before it is the job's share, unless the job sets one",
    )
    weight: int = setting(
        1, kinds.whole("", 1, 10_000), "weight of the tube with reserve-mode, for clients that set no weight"
    )
    measures: bool = setting(
        False, kinds.SWITCH, "measure the wait time, run time and lateness of jobs, for the tube's percentiles"
    )

    def __post_init__(self) -> None:
        take_values(self, TUBE_KEYS, KEY)
        mistakes = _of_tube(self)
        if mistakes:
            raise ConfigError(*mistakes)


LISTENER_KEYS: Final = options_of(ListenerConfig)
USER_KEYS: Final = options_of(UserConfig)
TUBE_KEYS: Final = options_of(TubeConfig)


def label_of(match: Sequence[str]) -> str:
    """The label of the `[[tube]]` with these patterns in messages."""
    return f'tube "{match[0]}"' + (", …" if len(match) > 1 else "")


def _of_listener(listener: ListenerConfig) -> list[Mistake]:
    """The values of one listener that exclude each other; the places are keys."""
    mistakes = []

    def refuse(key: str, said: str) -> None:
        mistakes.append(Mistake(key, said))

    if listener.tls_key and not listener.tls_cert:
        refuse("tls-key", f"{listener.tls_key!r} without a certificate: tls-cert must name its file")
    if listener.tls_client_ca and not listener.tls_cert:
        refuse("tls-client-ca", f"{listener.tls_client_ca!r} without TLS: tls-cert must name the server's certificate")
    if listener.auth == "token" and not listener.tls_cert and not stays_here(listener):
        refuse(
            "auth",
            f"'token' without TLS at {listener.address!r}, where others could read the tokens: "
            "must have a tls-cert, or listen on a loopback address or a UNIX socket",
        )
    if listener.auth == "certificate" and not (listener.tls_client_ca or listener.proxy_protocol):
        refuse(
            "auth",
            "'certificate' without client certificates: "
            "must have a tls-client-ca, or proxy-protocol with a proxy that verifies certificates",
        )
    if listener.auth == "peer" and not listener.path:
        refuse("auth", f"'peer' at {listener.address!r}: must listen on a UNIX socket, unix:PATH")
    if listener.auth == "peer" and listener.proxy_protocol:
        refuse(
            "auth",
            "'peer' with proxy-protocol, where the proxy is the peer of every client: must be 'certificate' or 'token'",
        )
    if listener.user and listener.auth != "none":
        refuse("user", f"{listener.user!r} with auth = {listener.auth!r}: must be left out, or auth must be 'none'")
    if listener.trusted and not listener.proxy_protocol:
        refuse("trusted", f"{list(listener.trusted)} without PROXY headers: must have proxy-protocol = true")
    if listener.trusted and listener.path:
        refuse(
            "trusted",
            f"{list(listener.trusted)} at {listener.address!r}: must be left out; a UNIX socket has no network",
        )
    if listener.hosts and not listener.is_http:
        refuse("hosts", f"{list(listener.hosts)} without HTTP: must have protocol = 'http', or be left out")
    if listener.proxy_protocol and not listener.trusted and not listener.path:
        refuse(
            "proxy-protocol",
            'true without trusted networks: must have trusted, such as ["127.0.0.0/8"]',
        )
    return mistakes


def _of_tube(tube: TubeConfig) -> list[Mistake]:
    """The values of one [[tube]] that exclude each other; the places are keys."""
    mistakes = []
    if tube.burst > 1 and not tube.rate:
        mistakes.append(Mistake("burst", f"{tube.burst} without a rate: must be left out, or have a rate"))
    if 0 < tube.backoff_max < tube.backoff:
        mistakes.append(
            Mistake("backoff-max", f"{tube.backoff_max:g} below the first delay: must be {tube.backoff:g} or more")
        )
    if tube.dead_tube in tube.match:
        mistakes.append(Mistake("", "dead-tube must differ from match"))
    return mistakes


def of_listeners(listeners: Mapping[str, ListenerConfig], names: Collection[str]) -> list[Mistake]:
    """The mistakes among several listeners.

    Args:
        listeners: by the labels that messages use.
        names: of all users.
    """
    mistakes = [
        Mistake(f"{label}: user", f"{each.user!r} is unknown: must be the name of a [[user]]")
        for label, each in listeners.items()
        if each.user and each.user not in names
    ]
    bound = [(label, repr(each.address), _place(each)) for label, each in listeners.items() if each.port or each.path]
    return mistakes + _twice("address", bound)


def of_users(users: Iterable[UserConfig]) -> list[Mistake]:
    """The mistakes among several users: each has its own name, tokens and uids."""
    labelled = [(f'user "{each.name}"', each) for each in users]
    labels = Counter(label for label, _ in labelled)
    return [
        *[Mistake("", f"duplicate {label}") for label, count in labels.items() if count > 1],
        *_twice("token-sha256", [(label, "token", one) for label, each in labelled for one in each.token_sha256]),
        *_twice("uid", [(label, str(one), one) for label, each in labelled for one in each.uid]),
    ]


def _twice(key: str, values: Iterable[tuple[str, str, Hashable]]) -> list[Mistake]:
    """The mistakes of values that are given twice: each value comes with its label and its text for messages."""
    first: dict[Hashable, str] = {}
    mistakes = []
    for label, shown, value in values:
        if value in first:
            mistakes.append(Mistake(f"{label}: {key}", f"duplicate {shown}: {first[value]} has it already"))
        first.setdefault(value, label)
    return mistakes


def _place(listener: ListenerConfig) -> Hashable:
    """The place of an address: two ways of writing one address are the same place."""
    import ipaddress  # few servers have several listeners

    if listener.path:
        return os.path.normpath(listener.path)
    try:
        return ipaddress.ip_address(listener.host), listener.port
    except ValueError:
        return listener.host.lower(), listener.port


def stays_here(listener: ListenerConfig) -> bool:
    """Whether the traffic of a listener does not leave this machine.

    A host name does, unless it is `localhost`, because it may resolve to another address tomorrow.
    """
    if listener.path or listener.host.lower() == "localhost":
        return True
    import socket  # not ipaddress, which a server that has given up its privileges may be unable to load

    for family, host in ((socket.AF_INET, listener.host), (socket.AF_INET6, listener.host.partition("%")[0])):
        try:
            address = socket.inet_pton(family, host).removeprefix(MAPPED)
        except (OSError, ValueError):
            continue
        return address[0] == LOOPBACK_NETWORK if len(address) == 4 else address == LOOPBACK_IPV6
    return False
