"""Defines every option of the server: its name, its default, its valid values and its text in the help.

An option is a field of `Config`. The command line, the environment, the config file, the checks, `--help` and the
table of docs/config.md are all derived from that field, so a new option is just a new field. Options with a short form
are beanstalkd's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from beanstalk_server.settings import kinds
from beanstalk_server.settings.declaration import ConfigError, Mistake, options_of, setting, take_values, within
from beanstalk_server.settings.sections import (
    HTTP,
    LARGEST_JOB_SIZE,
    TLS_CERT,
    TLS_CLIENT_CA,
    TLS_KEY,
    ListenerConfig,
    TubeConfig,
    UserConfig,
    of_listeners,
    of_users,
)
from beanstalk_server.version import PROTOCOL, PROTOCOLS

LARGEST_SEGMENT_SIZE: Final = 1 << 37
"""Bytes. A segment of this size has fewer than 2^31 puts, so that a job can number its own in four bytes."""

OF_A_NODE: Final = ("cluster_name", "shards", "replicas", "lease_ttl", "advertise", "unsafe_engine")
"""The options that have a use only for a node of a cluster."""

LONGEST_TTL: Final = 300
"""The largest value of --lease-ttl."""

NEVER_SYNC: Final = "never"
"""The value of --sync-interval that -F stands for."""

LOG_LEVELS: Final = ("info", "warning", "error", "critical")

NO_SERVICE: Final = "no such service: must be a number from 0 to 65535, or the name of a service"

ADDRESS: Final = ("listen", "port")
"""The options in whose place systemd may open sockets."""

OF_ONE_LISTENER: Final = (*ADDRESS, "tls_cert", "tls_key", "tls_client_ca", "token_file")
"""The options that describe a listener, where there is no [[listener]]."""

_OPTION_OF_KEY: Final = {"address": "listen", "auth": "token_file"}
"""The keys of a listener that is made from options of other names."""

RELOADED: Final = (*OF_ONE_LISTENER, "http", "keepalive", "max_connections", "idle_timeout")
"""The options that SIGHUP changes, beside the sections."""

_OF_A_DIRECTORY: Final = {
    "binlog": "the engine keeps the jobs",
    "sync_interval": "a reply always waits for the engine and its replicas",
    "salvage": "there is no binlog to salvage",
    "body_threshold": "all bodies stay in memory",
    "body_cache": "all bodies stay in memory",
}
"""The options that only a server with its own directory has, and the reason why a node has none of them."""

LARGEST_IN_AN_ENGINE: Final = 1 << 28
"""Bytes of a segment, and of a job. A string of Redis has 512 MiB at most, and so has an argument of a script."""

EVERYWHERE: Final = ("0.0.0.0", "::", "0")
"""Hosts that can be listened at, and not connected to."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of a server, its listeners, its users and the policies of its tubes.

    A path may also be a `pathlib.Path`, a size a text with a unit ("64MiB"), a time in milliseconds a `timedelta`.

    Raises:
        ConfigError: bad values, or values that do not go together.
    """

    listen: str = setting(
        "127.0.0.1", kinds.LISTEN, "host name or address to listen on, or unix:PATH for a UNIX socket", short="-l"
    )
    port: int | str = setting(11300, kinds.PORT, "TCP port to listen on (0: any free port)", short="-p")
    tls_cert: str = setting("", kinds.FILE, TLS_CERT)
    tls_key: str = setting("", kinds.FILE, TLS_KEY)
    tls_client_ca: str = setting("", kinds.FILE, TLS_CLIENT_CA)
    token_file: str = setting("", kinds.FILE, "file of SHA-256 hashes; clients must send a token with one of them")
    user: str = setting(
        "",
        kinds.text("USER", "the name of a user"),
        "user to run as after the sockets are open",
        short="-u",
        renamed="run-as",  # in a config file, `user` is the list of [[user]]
    )
    binlog: str = setting(
        "", kinds.DIRECTORY, "directory of the binlog, which keeps the jobs across restarts", short="-b"
    )
    sync_interval: float | str = setting(
        0,
        kinds.milliseconds(0, 1 << 31, NEVER_SYNC),  # at most 24 days
        "interval between syncs of the binlog (0: sync before each reply; never: only when a file is full)",
        short="-f",
        also=("-F", NEVER_SYNC),
    )
    segment_size: int = setting(10485760, kinds.size(1, LARGEST_SEGMENT_SIZE), "size of a binlog file", short="-s")
    body_threshold: int = setting(
        256,
        kinds.size(0, LARGEST_JOB_SIZE),
        "maximum size of a body in memory; with -b, larger ones are read from disk",
    )
    body_cache: int = setting(
        16777216, kinds.size(0, LARGEST_SEGMENT_SIZE), "size of the cache for bodies that are read from disk"
    )
    salvage: bool = setting(False, kinds.SWITCH, "start with a damaged binlog; unreadable jobs are lost")
    cluster: str = setting(
        "",
        kinds.ENGINE_URL,
        "URL of the Redis, Valkey or PostgreSQL server that keeps the jobs; makes this server a node of a cluster",
    )
    cluster_name: str = setting("beanstalk", kinds.CLUSTER_NAME, "name of the cluster; several can share an engine")
    shards: int = setting(
        1,
        kinds.whole("S", 1, 1024),  # more than a cluster has machines to lead them
        "number of shards of the cluster; must be the same on all nodes, and cannot be changed",
    )
    replicas: int = setting(1, kinds.whole("N", 0, 100), "number of replicas of the engine that must confirm a change")
    lease_ttl: int = setting(
        10,
        kinds.whole("S", 2, LONGEST_TTL, "a number of seconds"),  # in the last of them, a node hands nothing out
        "lease time: seconds without a renewal until another node takes over",
    )
    advertise: str = setting(
        "",
        kinds.HOST_PORT_OR_NONE,
        "address for connections from other nodes (default: the address used to reach the engine, and a free port)",
    )
    unsafe_engine: bool = setting(False, kinds.SWITCH, "start even if the engine's settings risk losing jobs")
    io_processes: int = setting(
        0,
        kinds.whole("N", 0, 64),  # more than one process with the jobs can keep busy
        "number of I/O processes for sockets and TLS (0: none)",
    )
    keepalive: int | str = setting(
        "60:15:4",
        kinds.KEEPALIVE,
        "TCP keepalive: seconds without data until the first probe, between probes, and number of probes (0: none)",
    )
    max_connections: int = setting(
        0,
        kinds.whole("N", 0, 1 << 24),  # more than a machine has
        "maximum number of client connections; others wait until one closes (0: only the limit on open files)",
    )
    idle_timeout: int = setting(
        0,
        kinds.whole("S", 0, kinds.LONGEST_DURATION, "a number of seconds"),
        "seconds without a command until a client is disconnected, unless it waits for a job or has one "
        "reserved (0: never)",
    )
    http: str = setting(
        "",
        kinds.ADDRESS_OR_NONE,
        "address of the HTTP server with metrics and health: host:port, [v6]:port or unix:PATH",
    )
    http_tubes: int = setting(
        1000,
        kinds.whole("N", 0, 100_000),  # more tubes than Prometheus should have series of
        "maximum number of tubes with their own metrics; the rest are summed",
    )
    http_hosts: str = setting(
        "", kinds.HOSTS, "names accepted in the Host header of requests to --http, besides IP addresses and localhost"
    )
    max_job_size: int = setting(
        65535, kinds.size(0, LARGEST_JOB_SIZE, lowers=True), "maximum size of a job's body", short="-z"
    )
    max_memory: int = setting(
        0,
        kinds.size(0, 1 << 50),  # more than a machine has
        "maximum memory of all jobs; puts beyond it are refused (0: no limit)",
    )
    group_ttl: int = setting(
        3600,
        kinds.whole("S", 0, kinds.LONGEST_DURATION, "a number of seconds"),
        "seconds until a group of jobs that has ended is forgotten",
    )
    tick: float = setting(
        0.25,
        kinds.milliseconds(0.001, 1000),  # no longer than the safety margin of a reservation
        "precision of delays and timeouts",
    )
    compat: str = setting(
        PROTOCOL,
        kinds.choice("VERSION", PROTOCOLS),
        "beanstalkd version whose behaviour applies where versions differ",
    )
    verbosity: int = setting(0, kinds.COUNT, "log connections; given twice, also log commands", short="-V")
    slow_ms: float = setting(
        0,
        kinds.milliseconds(0, 60_000),  # what takes longer is not slow, but stuck
        "threshold in milliseconds for logging turns, commits, event loop stalls and late timers (0: log none)",
    )
    log_format: str = setting(
        "text", kinds.choice("FORMAT", ("text", "json")), "log format: lines of text, or one JSON object per line"
    )
    log_level: str = setting("info", kinds.choice("LEVEL", LOG_LEVELS), "minimum log level; -V logs at info")
    listeners: tuple[ListenerConfig, ...] = ()
    """The `[[listener]]` sections. With any, the options that describe one listener must not be given."""
    users: tuple[UserConfig, ...] = ()
    """The `[[user]]` sections; `all_users` has those of the token file, too."""
    tubes: tuple[TubeConfig, ...] = ()
    """The `[[tube]]` sections, in their order: the first that matches a tube counts."""
    file: str = field(default="", compare=False)
    """The config file that this was read from, or ""."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where each option was given, by its name: a flag, a variable or a key of the config file. Messages show it."""

    def __post_init__(self) -> None:
        take_values(self, OPTIONS, lambda each: each.place)
        for name in ("listeners", "users", "tubes"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        mistakes = _of_sections(self) + (_beside_cluster(self) if self.cluster else [])
        if mistakes:
            raise ConfigError(*mistakes)

    def place(self, name: str) -> str:
        """The source of the option with this name, or its flags, if it has none."""
        return self.sources.get(name) or option(name)

    def changed(self) -> dict[str, object]:
        """The values that differ from their defaults, by the name of the option, as the log shows them; of sections,
        their number."""
        values = [(each, getattr(self, each.name)) for each in OPTIONS]
        sections = {"listeners": len(self.listeners), "users": len(self.users), "tubes": len(self.tubes)}
        return {each.name: each.kind.logged(value) for each, value in values if value != each.default} | {
            name: count for name, count in sections.items() if count
        }

    def all_listeners(self) -> tuple[ListenerConfig, ...]:
        """The `[[listener]]` sections or, without any, the one that the options describe; and that of --http."""
        http = self.http_listener()
        return self._own_listeners() if http is None else (*self._own_listeners(), http)

    def http_listener(self) -> ListenerConfig | None:
        """The listener of --http."""
        hosts = tuple(self.http_hosts.split(",")) if self.http_hosts else ()
        return ListenerConfig(address=self.http, protocol=HTTP, hosts=hosts) if self.http else None

    def _own_listeners(self) -> tuple[ListenerConfig, ...]:
        if self.listeners:
            return self.listeners
        host = f"[{self.listen}]" if ":" in self.listen or self.listen.startswith("[") else self.listen
        one = ListenerConfig(
            address=self.listen if self.listen.startswith(kinds.UNIX) else f"{host}:{self.port}",
            tls_cert=self.tls_cert,
            tls_key=self.tls_key,
            tls_client_ca=self.tls_client_ca,
            auth="token" if self.token_file else "none",
        )
        return (one,)

    def listeners_at(self, addresses: Sequence[str]) -> tuple[ListenerConfig, ...]:
        """The listeners with the addresses of sockets that are open already, as systemd hands them over.

        The sockets take the place of the addresses of the `[[listener]]` sections, in their order. Without sections,
        the one listener that the options describe is at every socket. One socket more, behind those of the sections, or
        a socket with the port or the path of --http, is that of --http; else its listener comes last, at no socket.

        Raises:
            ConfigError: the numbers of sections and sockets differ, no socket is left for clients, a listener must not
                be at that address, or the sockets come in another order: a client of one listener could use another.
        """
        given = self._own_listeners()
        http = self.http_listener()
        if not self.listeners:
            one = given[0]
            given = tuple(
                [http if http and ListenerConfig(address=each).place == http.place else one for each in addresses]
            )
            if http and one not in given:
                place = self.place("http")
                raise ConfigError(
                    f"LISTEN_FDS: all sockets are at {self.http!r}, the address of {place}: one must be for clients"
                )
        elif http is not None and len(addresses) == len(given) + 1:
            given = (*given, http)
        if len(given) != len(addresses):
            raise ConfigError(
                f"LISTEN_FDS: bad value {len(addresses)}: must be {len(given)}, one socket for each [[listener]]"
            )
        found = []
        for number, (listener, address) in enumerate(zip(given, addresses, strict=True), 1):
            try:
                here = replace(listener, address=address)
            except ConfigError as error:
                raise ConfigError(*within(f"listener {number}", error.mistakes)) from None
            is_elsewhere = here.place != listener.place and here.place in [each.place for each in given]
            if self.listeners and (is_elsewhere or bool(here.path) != bool(listener.path)):
                raise ConfigError(
                    f"LISTEN_FDS: socket {number} is at {address!r}, and listener {number} at {listener.address!r}: "
                    "the sockets must be in the order of the [[listener]] sections"
                )
            found.append(here)
        if http is not None and http not in given:
            found.append(http)
        return tuple(found)


OPTIONS: Final = options_of(Config)
_NAMED: Final = {each.name: each for each in OPTIONS}


def option(name: str) -> str:
    """The flags of the option with this name, as messages show them: -p/--port."""
    return _NAMED[name].place


def _of_sections(config: Config) -> list[Mistake]:
    """The mistakes of sections, together and beside options. Their places name the config file, if there is one."""
    file = f"{config.file}: " if config.file else ""
    mistakes = []
    if config.listeners:
        for name in OF_ONE_LISTENER:
            value, place = getattr(config, name), config.place(name)
            if value != _NAMED[name].default:
                place = place if place.startswith(file) else f"{file}listener: {place}"
                said = f"{value!r} with a [[listener]], which has its own: must be left out"
                mistakes.append(Mistake(place, said))
    else:
        try:
            config.all_listeners()
        except ConfigError as error:
            for key, said in error.mistakes:
                name = _OPTION_OF_KEY.get(key, key.replace("-", "_"))
                mistakes.append(Mistake(config.place(name), said))
    listeners = {f"listener {number}": each for number, each in enumerate(config.listeners, 1)}
    if listeners and all(each.is_http for each in config.listeners):
        mistakes.append(Mistake(f"{file}listener", "every listener has the protocol 'http': one must be for clients"))
    http = config.http_listener()
    if http is not None:
        listeners[config.place("http")] = http
    names = [each.name for each in config.users]
    found = of_listeners(listeners, names) + of_users(config.users)
    of_http = [each for each in found if each.place.startswith(config.place("http"))]
    return mistakes + of_http + within(config.file, [each for each in found if each not in of_http])


def _beside_cluster(config: Config) -> list[Mistake]:
    """The mistakes of options beside --cluster."""
    from beanstalk_server.settings.engine_url import read_url  # most servers are alone

    found: list[tuple[str, str]] = []
    beside = f"with {config.place('cluster')}"
    try:
        read_url(config.cluster)
    except ValueError as error:
        found.append(("cluster", f"bad value (not shown): {error}"))
    for name, reason in _OF_A_DIRECTORY.items():
        value = getattr(config, name)
        if value != _NAMED[name].default:
            given = "given" if value is True else repr(value)
            found.append((name, f"{given} {beside}, where {reason}: must be left out"))
    for name in ("segment_size", "max_job_size"):
        value = getattr(config, name)
        if value > LARGEST_IN_AN_ENGINE:
            found.append((name, f"{value} {beside}: must be at most {LARGEST_IN_AN_ENGINE}"))
    if config.advertise.rpartition(":")[0].strip("[]") in EVERYWHERE:
        found.append(("advertise", f"{config.advertise!r} is a wildcard address: must be a specific address"))
    return [Mistake(config.place(name), said) for name, said in found]
