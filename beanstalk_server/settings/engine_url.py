"""Reads the URL of an engine: its servers, their form (alone, Sentinel or Cluster), credentials and TLS files.

    redis://[user:password@]host[:port][/database]
    redis+sentinel://[user:password@]host[:port],host[:port]/service[/database]
    redis+cluster://[user:password@]host[:port],host[:port]
    postgresql://[user:password@]host[:port],host[:port]/database

and `rediss` for each of Redis, which is TLS. User and password are percent-encoded, as in every URL. Options follow a
`?`: `ca`, `cert` and `key` are the paths of PEM files, `sentinel-user` and `sentinel-password` are for Sentinel itself.
Those of PostgreSQL are libpq's, which reads the URL itself: only its hosts and files matter here. Must never open a
connection, and needs no library: options are checked with it before a server starts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

WANTED: Final = (
    "redis://[user:password@]host[:port][/database], or with +sentinel and a /service, or with +cluster; rediss for "
    "TLS; or postgresql://[user:password@]host[:port][,host[:port]…]/database"
)
"""Describes a valid URL; an error message says it after "must be"."""

ALONE: Final = "alone"
SENTINEL: Final = "sentinel"
CLUSTER: Final = "cluster"
POSTGRESQL: Final = "postgresql"

_FORMS: Final = {
    "redis": (ALONE, False),
    "rediss": (ALONE, True),
    "redis+sentinel": (SENTINEL, False),
    "rediss+sentinel": (SENTINEL, True),
    "redis+cluster": (CLUSTER, False),
    "rediss+cluster": (CLUSTER, True),
    "postgresql": (POSTGRESQL, False),
    "postgres": (POSTGRESQL, False),
}

_FILES: Final = {
    ALONE: {"ca": "ca", "cert": "cert", "key": "key"},
    POSTGRESQL: {"ca": "sslrootcert", "cert": "sslcert", "key": "sslkey"},
}
"""The options that name files."""

_PORTS: Final = {ALONE: 6379, SENTINEL: 26379, CLUSTER: 6379, POSTGRESQL: 5432}
_TLS_OPTIONS: Final = ("ca", "cert", "key")
_SENTINEL_OPTIONS: Final = ("sentinel-user", "sentinel-password")


class Host(NamedTuple):
    """The address of a server."""

    name: str
    port: int

    def __str__(self) -> str:
        return f"[{self.name}]:{self.port}" if ":" in self.name else f"{self.name}:{self.port}"


@dataclass(frozen=True)
class EngineURL:
    """The parts of the URL of an engine. Its text has no password."""

    form: str
    """ALONE, SENTINEL, CLUSTER or POSTGRESQL."""
    hosts: tuple[Host, ...]
    """The server, or the first of several to ask."""
    tls: bool = False
    user: str = ""
    password: str = field(default="", repr=False)
    service: str = ""
    """The name of the primary at Sentinel, or of the database of PostgreSQL."""
    database: int = 0
    ca: str = ""
    """The path of the certificates of authorities; "" for those that the system trusts."""
    cert: str = ""
    key: str = ""
    sentinel_user: str = ""
    sentinel_password: str = field(default="", repr=False)

    @property
    def files(self) -> dict[str, str]:
        """The paths of files, by the options that name them."""
        options = _FILES.get(self.form, _FILES[ALONE])
        paths = {"ca": self.ca, "cert": self.cert, "key": self.key}
        return {option: paths[each] for each, option in options.items() if paths[each]}

    def __str__(self) -> str:
        scheme = ("rediss" if self.tls else "redis") + ("" if self.form == ALONE else f"+{self.form}")
        scheme = POSTGRESQL if self.form == POSTGRESQL else scheme
        user = f"{self.user}@" if self.user else ""
        path = "".join(f"/{each}" for each in (self.service, self.database) if each)
        return f"{scheme}://{user}{','.join([str(each) for each in self.hosts])}{path}"


def read_url(text: str) -> EngineURL:
    """Read a URL.

    Raises:
        ValueError: it is not the URL of an engine. The message says what would be right, without the URL.
    """
    try:
        parts = _split(text)
        form, tls = _FORMS[parts.scheme]
    except (ValueError, KeyError):
        raise ValueError(f"must be {WANTED}") from None
    credentials, at, places = parts.netloc.rpartition("@")
    user, _, password = credentials.partition(":")
    if at and not (user or password):
        raise ValueError("must have a user or a password before the @, or no @")
    if form == POSTGRESQL:
        return _postgresql(parts, places, unquote(user), unquote(password))
    hosts = tuple(_host(each, _PORTS[form]) for each in places.split(","))
    if form == ALONE and len(hosts) > 1:
        raise ValueError("must have one host, or +sentinel or +cluster in the scheme")
    service, database = _path(form, parts.path)
    options = _options(form, tls, parts.query)
    if parts.fragment:
        raise ValueError("must not have a #: in a password, write %23")
    others = {name.replace("-", "_"): value for name, value in options.items()}
    return EngineURL(form, hosts, tls, unquote(user), unquote(password), service, database, **others)


def _split(text: str) -> SplitResult:
    """The parts of a URL. The hosts are not given to urlsplit: newer Pythons take brackets for those of one address."""
    scheme, separator, rest = text.partition("://")
    netloc = re.split("[/?#]", rest, maxsplit=1)[0]
    return urlsplit(f"{scheme}{separator}{rest.removeprefix(netloc)}")._replace(netloc=netloc)


def _postgresql(parts: SplitResult, places: str, user: str, password: str) -> EngineURL:
    """What libpq reads from the same URL."""
    if parts.netloc.count("@") > 1 or "@" in parts.path or parts.fragment:
        raise ValueError("must have no /, @ or # in a password: write %2F, %40 and %23")
    if not places and not parts.query:
        raise ValueError("must have a host after the ://")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    names = places or options.get("host", "")
    hosts = tuple(
        Host("localhost", _PORTS[POSTGRESQL]) if each.startswith("/") else _host(each, _PORTS[POSTGRESQL])
        for each in names.split(",")
    )  # the directory of a socket is on this machine
    ca, cert, key = (options.get(option, "") for option in _FILES[POSTGRESQL].values())
    ca = "" if ca == "system" else ca  # those that the system trusts
    return EngineURL(POSTGRESQL, hosts, False, user, password, parts.path.strip("/"), ca=ca, cert=cert, key=key)


def _host(text: str, default: int) -> Host:
    name, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        name, port = text, ""
    if name.startswith("[") and name.endswith("]"):
        name = name[1:-1]
    elif re.search(r"[:\[\]]", name):
        raise ValueError("must have an IPv6 address in brackets: redis://[::1]:6379")
    if not name:
        raise ValueError("must have a host after the ://")
    if not port:
        return Host(name, default)
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65_536):
        raise ValueError("must have a port from 1 to 65535 after each host, or none")
    return Host(name, int(port))


def _path(form: str, path: str) -> tuple[str, int]:
    """The service and the database that the path names."""
    if "@" in path:
        raise ValueError("must have no / in a password: write %2F")
    steps = [unquote(each) for each in path.split("/") if each]
    service = ""
    if form == SENTINEL:
        if not steps:
            raise ValueError("must have the name of the service after the hosts: redis+sentinel://host/service")
        service = steps.pop(0)
    if not steps:
        return service, 0
    database = steps.pop(0)
    if steps or not (database.isascii() and database.isdigit() and len(database) < 6):
        raise ValueError("must end with the number of a database, or have none")
    if form == CLUSTER and int(database):
        raise ValueError("must not have a database with +cluster, which has only database 0")
    return service, int(database)


def _options(form: str, tls: bool, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    known = (_TLS_OPTIONS if tls else ()) + (_SENTINEL_OPTIONS if form == SENTINEL else ())
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name in _TLS_OPTIONS and not tls:
            raise ValueError(f"must have the scheme rediss (TLS) for the option {name}")
        if name in _SENTINEL_OPTIONS and form != SENTINEL:
            raise ValueError(f"must have +sentinel in the scheme for the option {name}")
        if name not in known:
            raise ValueError(f"must have no options other than {', '.join(known) or 'those of TLS and Sentinel'}")
        if name in options or not value:
            raise ValueError(f"must have the option {name} once, with a value")
        options[name] = value
    if ("cert" in options) != ("key" in options):
        raise ValueError("must have both of the options cert and key, or neither")
    return options
