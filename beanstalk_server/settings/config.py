"""Defines every option of the server: its name, its default, its valid values and its text in the help.

An option is a field of `Config`. The command line, the environment, the config file, the checks, `--help` and the
README's table are all derived from that field, so a new option is just a new field. Options with a short form are
beanstalkd's. The keys of a `[[listener]]`, of a `[[user]]` and of a `[[tube]]` are fields in the same way. Must never
know what the server does with a value.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Final, NamedTuple

from beanstalk_server.settings import kinds
from beanstalk_server.version import PROTOCOL, PROTOCOLS

LARGEST_JOB_SIZE: Final = 1 << 30
"""The largest value that beanstalkd takes for -z, in bytes."""

LARGEST_SEGMENT_SIZE: Final = 1 << 37
"""Bytes. A segment of this size has fewer than 2^31 puts, so that a job can number its own in four bytes."""

LARGEST_MEMORY: Final = 1 << 50
"""Bytes: more than a machine has."""

MOST_COUNTED: Final = 1 << 50
"""More jobs, or bytes of them, than a server has."""

LONGEST_SYNC_INTERVAL: Final = 1 << 31
"""Milliseconds, which is 24 days."""

LONGEST_TICK: Final = 1000
"""Milliseconds: no longer than the safety margin of a reservation, which is a second."""

LONGEST_SLOW: Final = 60_000
"""Milliseconds: what takes longer is not slow, but stuck."""

MOST_REPLICAS: Final = 100
"""More than an engine has."""

MOST_SHARDS: Final = 1024
"""More than a cluster has machines to lead them."""

SHORTEST_LEASE: Final = 2
"""Seconds: a node hands nothing out in the last of them."""

LONGEST_LEASE: Final = 300
"""Seconds for which nobody is served when the machine of a node has died."""

MOST_IO_PROCESSES: Final = 64
"""More than one process with the jobs can keep busy."""

MOST_TRIES: Final = (1 << 32) - 1
MOST_TOKENS: Final = 1_000_000

OF_A_NODE: Final = ("cluster_name", "shards", "replicas", "lease_ttl", "advertise", "unsafe_engine")
"""The options that only a node of a cluster has any use for."""

NEVER_SYNC: Final = "never"
"""The value of --sync-interval that -F stands for."""

LOG_FORMATS: Final = ("text", "json")
LOG_LEVELS: Final = ("info", "warning", "error", "critical")

AUTHS: Final = ("none", "token", "certificate", "peer")
"""How a listener may know its users."""

HTTP: Final = "http"
SPOKEN: Final = ("beanstalk", HTTP)
"""What may be spoken at a listener."""

MOST_TUBE_ROWS: Final = 100_000
"""More tubes than Prometheus should have series of."""


NO_SERVICE: Final = "no such service: must be a number from 0 to 65535, or the name of a service"

BAD_OPTION: Final = 5
"""The exit status for a bad option, value or setting; the same as beanstalkd's."""


class Mistake(NamedTuple):
    """One thing that is wrong with a configuration."""

    place: str
    """The option, variable or key that is wrong: `-p/--port`, `listener 2: tls-cert`; "" if `said` names it."""
    said: str
    """Its value, and what would be right; on one line."""

    def __str__(self) -> str:
        return f"{self.place}: {self.said}" if self.place else self.said


class ConfigError(ValueError):
    """Options or values are bad: each line of the message has the option, the value and what would be right."""

    def __init__(self, *mistakes: Mistake | str) -> None:
        self.mistakes = tuple([Mistake("", each) if isinstance(each, str) else each for each in mistakes])
        super().__init__("\n".join([str(each) for each in self.mistakes]))

    def within(self, section: str) -> list[Mistake]:
        """Its mistakes, where its places are keys of this section."""
        return [Mistake(f"{section}: {place}", said) for place, said in self.mistakes]


class Option(NamedTuple):
    """One option, or one key of a section, as its field defines it."""

    name: str
    default: Any
    """`dataclasses.MISSING` if it must be given, which only keys are."""
    kind: kinds.Kind
    short: str
    """Its short form, or ""."""
    meaning: str
    """What it does, in the words of the help and of the documents."""
    also: tuple[str, str] | None
    """Another short form, and the value that it stands for."""
    renamed: str = ""
    """Its name in a config file, if that is another one."""

    @property
    def key(self) -> str:
        """Its name in a config file."""
        return self.renamed or self.name.replace("_", "-")

    @property
    def flags(self) -> list[str]:
        """Its flags on the command line: the short form, if it has one, and the long form."""
        long = "--" + self.name.replace("_", "-")
        return [self.short, long] if self.short else [long]

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return "BEANSTALK_SERVER_" + self.name.upper()

    def read(self, text: str, source: str) -> object:
        """Return the value of a text.

        Args:
            source: the flag or the variable that the text comes from, for messages.

        Raises:
            ConfigError: the text has no value, or a bad one.
        """
        try:
            value = self.kind.read(text)
            good = text != "" and self.kind.fits(value)  # "": of a shell variable that is not set, say
        except ValueError:
            good = False
        if not good:
            raise ConfigError(Mistake(source, f"bad value {self._shown(text)}: must be {self.kind.wanted}"))
        return value

    def mistakes(self, value: object) -> list[Mistake]:
        """What is wrong with a value from Python."""
        if self.kind.fits(value):
            return []
        return [Mistake("/".join(self.flags), f"bad value {self._shown(value)}: must be {self.kind.wanted}")]

    def _shown(self, value: object) -> str:
        return repr(value) if self.kind.shows else self.kind.shown(value)


def _option(
    default: Any,
    kind: kinds.Kind,
    short: str,
    meaning: str,
    also: tuple[str, str] | None = None,
    renamed: str = "",
) -> Any:
    metadata = {"kind": kind, "short": short, "meaning": meaning, "also": also, "renamed": renamed}
    return field(default=default, metadata=metadata, repr=kind.shows)


def _key(default: Any, kind: kinds.Kind, meaning: str) -> Any:
    metadata = {"kind": kind, "short": "", "meaning": meaning, "also": None}
    return field(default=default, metadata=metadata, repr=kind.shows)


def _take(section: ListenerConfig | UserConfig | TubeConfig, keys: Iterable[Option]) -> None:
    """Replace the values of a section by what they stand for: a single value by a list of it, say.

    Raises:
        ConfigError: bad values.
    """
    mistakes = []
    for each in keys:
        value = getattr(section, each.name)
        wrong = each.kind.mistakes(value)
        mistakes += [Mistake(each.key, said) for said in wrong]
        if not wrong:
            object.__setattr__(section, each.name, each.kind.take(value))
    if mistakes:
        raise ConfigError(*mistakes)


@dataclass(frozen=True, kw_only=True)
class ListenerConfig:
    """One `[[listener]]`: where clients connect, and how they are known there.

    Raises:
        ConfigError: bad values, or values that do not go together; the places are keys.
    """

    address: str = _key(MISSING, kinds.Address(), "where it listens: host:port, [v6]:port or unix:PATH")
    protocol: str = _key(
        "beanstalk",
        kinds.Choice("", SPOKEN),
        "what is spoken there: by clients, or HTTP, for operators: metrics and health",
    )
    tls_cert: str = _key(
        "",
        kinds.File(),
        "file with its certificate and chain, PEM; without it, there is no TLS",
    )
    tls_key: str = _key("", kinds.File(), "file with the certificate's key, if that is not in the same file")
    tls_client_ca: str = _key(
        "",
        kinds.File(),
        "file with the authorities of clients' certificates; then a client must have one",
    )
    auth: str = _key(
        "none",
        kinds.Choice("", AUTHS),
        "how it knows the user: not at all, by a token, by the name in a certificate, or by the uid of a UNIX socket's "
        "peer",
    )
    user: str = _key(
        "",
        kinds.NameOrNone('the name of a [[user]], or ""'),
        'with `auth = "none"`: whoever comes in here is this user',
    )
    proxy_protocol: bool = _key(False, kinds.Switch(), "a PROXY header, version 1 or 2, comes before everything else")
    trusted: tuple[str, ...] = _key((), kinds.Several(kinds.Network()), "the networks that may send a PROXY header")

    def __post_init__(self) -> None:
        _take(self, LISTENER_KEYS)
        if any(getattr(self, each.name) != each.default for each in LISTENER_KEYS if each.name != "address"):
            from beanstalk_server.settings import rules  # an open listener has nothing to check

            mistakes = rules.of_listener(self)
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
    def is_http(self) -> bool:
        """Whether it is for operators, and not for clients."""
        return self.protocol == HTTP

    def is_at(self, other: ListenerConfig) -> bool:
        """Whether both have the same path, or the same port, of whatever host."""
        return (self.path or self.port) == (other.path or other.port) and bool(self.path) == bool(other.path)

    def may_stand_for(self, section: ListenerConfig, among: Sequence[ListenerConfig]) -> bool:
        """Whether a socket that systemd has opened may take the place of a section: it is of the same kind, TCP or
        UNIX, and neither its path nor its port is that of another section."""
        place = self.path or self.port
        return bool(self.path) == bool(section.path) and (
            place == (section.path or section.port) or all(place != (each.path or each.port) for each in among)
        )


@dataclass(frozen=True, kw_only=True)
class UserConfig:
    """One `[[user]]`: how it is recognized, and its rights, each a list of patterns of tube names.

    Raises:
        ConfigError: bad values; the places are keys.
    """

    name: str = _key(MISSING, kinds.Name(), "its name in the log; a certificate with this name is this user's")
    token_sha256: tuple[str, ...] = _key((), kinds.Several(kinds.TokenHash()), "its tokens, each by its SHA-256")
    uid: tuple[int, ...] = _key(
        (), kinds.Several(kinds.Uid()), 'users of the system that are this user where `auth = "peer"`'
    )
    produce: tuple[str, ...] = _key((), kinds.Several(kinds.Pattern()), "tubes that it may put to")
    consume: tuple[str, ...] = _key((), kinds.Several(kinds.Pattern()), "tubes that it may reserve from")
    inspect: tuple[str, ...] = _key((), kinds.Several(kinds.Pattern()), "tubes that it may look into")
    admin: tuple[str, ...] = _key(
        (),
        kinds.Several(kinds.Pattern()),
        "tubes that it may kick, pause, clear and redrive; `*`: it may also drain the server and list its clients",
    )

    def __post_init__(self) -> None:
        _take(self, USER_KEYS)


@dataclass(frozen=True, kw_only=True)
class TubeConfig:
    """One `[[tube]]`: the policy of the tubes that match it, unless they match an earlier one.

    Durations are in seconds, or a `timedelta`. 0 stands for no limit, and for nothing of the kind.

    Raises:
        ConfigError: bad values, or values that do not go together; the places are keys.
    """

    match: tuple[str, ...] = _key(
        MISSING, kinds.Several(kinds.Pattern(), 1), "the tubes that it is for; of several sections, the first counts"
    )
    max_jobs: int = _key(0, kinds.Whole("", 0, MOST_COUNTED), "jobs in the tube; a put beyond it is refused")
    max_bytes: int = _key(0, kinds.Size(0, MOST_COUNTED), "bytes of their bodies; a put beyond it is refused")
    max_delay: float = _key(0, kinds.Duration(), "longest delay that a put may have")
    max_job_size: int = _key(
        0, kinds.Size(0, LARGEST_JOB_SIZE), "size of the largest body that a put may have, if -z allows it"
    )
    max_tries: int = _key(
        0,
        kinds.Whole("", 0, MOST_TRIES),
        "so often a job may be released, run out of time or lose its worker; then it is buried, or goes to the dead "
        "tube",
    )
    dead_tube: str = _key("", kinds.TubeName(), "tube for jobs that have been tried too often, or have expired")
    backoff: float = _key(0, kinds.Duration(), "delay after the first failed try; each further one doubles it")
    backoff_max: float = _key(0, kinds.Duration(), "longest such delay")
    ttl: float = _key(0, kinds.Duration(), "so long a job may be ready; then it is deleted, or goes to the dead tube")
    key_hold: float = _key(0, kinds.Duration(), "so long a key stays taken after its job is done")
    max_held_keys: int = _key(
        0,
        kinds.Whole("", 0, MOST_COUNTED),
        "such keys; a put whose key would be held is refused beyond it; 0: `max-jobs`",
    )
    max_reserved: int = _key(0, kinds.Whole("", 0, MOST_COUNTED), "so many jobs may be reserved at a time")
    rate: str = _key("", kinds.Rate(), "so many jobs may be reserved in a time")
    burst: int = _key(1, kinds.Whole("", 1, MOST_TOKENS), "with a rate: so many may be reserved at once")

    def __post_init__(self) -> None:
        _take(self, TUBE_KEYS)
        from beanstalk_server.settings import rules  # few servers have a [[tube]]

        mistakes = rules.of_tube(self)
        if mistakes:
            raise ConfigError(*mistakes)


@dataclass(frozen=True, kw_only=True)
class Config:
    """The options of a server, its listeners, its users and the policies of its tubes.

    A path may also be a `pathlib.Path`, a size a text with a unit ("64MiB"), a time in milliseconds a `timedelta`.

    Raises:
        ConfigError: bad values, or values that do not go together.
    """

    listen: str = _option(
        "127.0.0.1",
        kinds.Listen(),
        "-l",
        "listen on this host name or address, or on a UNIX socket: unix:PATH",
    )
    port: int | str = _option(11300, kinds.Port(), "-p", "listen on this TCP port; 0 picks a free one")
    tls_cert: str = _option(
        "",
        kinds.File(),
        "",
        "speak TLS with the certificate and chain in this file, PEM",
    )
    tls_key: str = _option("", kinds.File(), "", "the certificate's key, if it is not in the same file")
    tls_client_ca: str = _option(
        "",
        kinds.File(),
        "",
        "serve only clients with a certificate by an authority in this file",
    )
    token_file: str = _option(
        "",
        kinds.File(),
        "",
        "serve only clients with a token whose SHA-256 is in this file",
    )
    user: str = _option(
        "",
        kinds.Text("USER", "the name of a user"),
        "-u",
        "run as this user, with its groups, once the sockets are open",
        renamed="run-as",  # in a config file, `user` is the list of [[user]]
    )
    binlog: str = _option(
        "",
        kinds.Path("DIR", "the path of a directory"),
        "-b",
        "keep the jobs in this directory, so that they survive a restart",
    )
    sync_interval: float | str = _option(
        0,
        kinds.Milliseconds(0, LONGEST_SYNC_INTERVAL, NEVER_SYNC),
        "-f",
        "sync the binlog at least every MS milliseconds; 0: before each reply; never: only when a file is full",
        also=("-F", NEVER_SYNC),
    )
    segment_size: int = _option(10485760, kinds.Size(1, LARGEST_SEGMENT_SIZE), "-s", "size of a binlog file")
    body_threshold: int = _option(
        256,
        kinds.Size(0, LARGEST_JOB_SIZE),
        "",
        "with a binlog, keep a longer body on the disk only, once it has been written",
    )
    body_cache: int = _option(
        16777216,
        kinds.Size(0, LARGEST_SEGMENT_SIZE),
        "",
        "memory for the latest of these bodies, which saves reading them",
    )
    salvage: bool = _option(False, kinds.Switch(), "", "start from a damaged binlog, without the jobs that are lost")
    cluster: str = _option(
        "",
        kinds.EngineURL(),
        "",
        "be a node of a cluster, which keeps the jobs in this Redis or Valkey",
    )
    cluster_name: str = _option(
        "beanstalk", kinds.ClusterName(), "", "name of the cluster, of which an engine may have several"
    )
    shards: int = _option(
        1,
        kinds.Whole("S", 1, MOST_SHARDS),
        "",
        "parts of a cluster's tubes, each of which has a leader of its own; the same for all nodes, and for ever",
    )
    replicas: int = _option(
        1, kinds.Whole("N", 0, MOST_REPLICAS), "", "in a cluster, a change is durable when so many replicas have it"
    )
    lease_ttl: int = _option(
        10,
        kinds.Whole("S", SHORTEST_LEASE, LONGEST_LEASE, "a number of seconds"),
        "",
        "seconds after which another node takes over from one that is not heard of",
    )
    advertise: str = _option(
        "", kinds.HostPort(), "", "where the other nodes reach this one; a free port, if it is not given"
    )
    unsafe_engine: bool = _option(False, kinds.Switch(), "", "start although the engine's settings would lose jobs")
    io_processes: int = _option(
        0,
        kinds.Whole("N", 0, MOST_IO_PROCESSES),
        "",
        "so many processes accept clients and speak TLS, beside the one with the jobs; 0: that one does it",
    )
    http: str = _option(
        "",
        kinds.HttpAddress(),
        "",
        "serve metrics and health over HTTP at this address, for operators: host:port, [v6]:port or unix:PATH",
    )
    http_tubes: int = _option(
        1000,
        kinds.Whole("N", 0, MOST_TUBE_ROWS),
        "",
        "so many tubes have metrics of their own; the others are summed",
    )
    max_job_size: int = _option(
        65535, kinds.JobSize(0, LARGEST_JOB_SIZE), "-z", "size of the largest body that a put may have"
    )
    max_memory: int = _option(
        0, kinds.Size(0, LARGEST_MEMORY), "", "memory that jobs may take; a put beyond it is refused; 0: no limit"
    )
    tick: float = _option(0.25, kinds.Milliseconds(0.001, LONGEST_TICK), "", "precision of delays and timeouts")
    compat: str = _option(
        PROTOCOL, kinds.Choice("VERSION", PROTOCOLS), "", "answer as this version of beanstalkd, where versions differ"
    )
    verbosity: int = _option(0, kinds.Count(), "-V", "log connections; given twice, log commands too")
    stalls: bool = _option(False, kinds.Switch(), "", "log the longest stalls of the event loop")
    slow_ms: float = _option(
        0,
        kinds.Milliseconds(0, LONGEST_SLOW),
        "",
        "log turns, commits, late timers and holds of the event loop that take longer; 0: never",
    )
    log_format: str = _option(
        "text", kinds.Choice("FORMAT", LOG_FORMATS), "", "write the log as lines of text, or as a JSON object a line"
    )
    log_level: str = _option(
        "info", kinds.Choice("LEVEL", LOG_LEVELS), "", "log only what is at least so grave; -V logs at info"
    )
    listeners: tuple[ListenerConfig, ...] = ()
    """The `[[listener]]` sections. With any, the options that describe one listener must not be given."""
    users: tuple[UserConfig, ...] = ()
    """The `[[user]]` sections; `all_users` has those of the token file, too."""
    tubes: tuple[TubeConfig, ...] = ()
    """The `[[tube]]` sections, in their order: the first that matches a tube counts."""
    file: str = field(default="", compare=False)
    """The config file that this was read from, or ""."""

    def __post_init__(self) -> None:
        for each in OPTIONS:
            value = getattr(self, each.name)
            if not isinstance(value, int):
                with contextlib.suppress(ValueError):  # a mistake, as what it is
                    object.__setattr__(self, each.name, each.kind.take(value))
        mistakes = [mistake for each in OPTIONS for mistake in each.mistakes(getattr(self, each.name))]
        if mistakes:
            raise ConfigError(*mistakes)
        if self.listeners or self.users or self.tls_cert or self.tls_key or self.tls_client_ca or self.token_file:
            from beanstalk_server.settings import rules  # a server that lets everybody in has nothing to check

            object.__setattr__(self, "listeners", tuple(self.listeners))
            object.__setattr__(self, "users", tuple(self.users))
            mistakes = rules.of_config(self)
            if mistakes:
                raise ConfigError(*mistakes)
        object.__setattr__(self, "tubes", tuple(self.tubes))
        if self.cluster:
            from beanstalk_server.settings import cluster_rules  # most servers are alone

            mistakes = cluster_rules.of_config(self)
            if mistakes:
                raise ConfigError(*mistakes)

    def changed(self) -> dict[str, object]:
        """The values that differ from their defaults, by the name of the option, as the log shows them; of sections,
        how many there are."""
        values = {each: getattr(self, each.name) for each in OPTIONS}
        changed = {each.name: each.kind.logged(value) for each, value in values.items() if value != each.default}
        sections = {"listeners": len(self.listeners), "users": len(self.users), "tubes": len(self.tubes)}
        return changed | {name: count for name, count in sections.items() if count}

    def all_listeners(self) -> tuple[ListenerConfig, ...]:
        """The `[[listener]]` sections or, without any, the one that the options describe; and that of --http."""
        http = self.http_listener()
        return self._own_listeners() if http is None else (*self._own_listeners(), http)

    def http_listener(self) -> ListenerConfig | None:
        """What --http describes."""
        return ListenerConfig(address=self.http, protocol=HTTP) if self.http else None

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
            ConfigError: there are not as many sections as sockets, a listener may not be at that address, or the
                sockets come in another order: who may use one listener would get in at another.
        """
        given = self._own_listeners()
        http = self.http_listener()
        if not self.listeners:
            given = self._at_sockets(given[0], http, addresses)
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
                raise ConfigError(*error.within(f"listener {number}")) from None
            if self.listeners and not here.may_stand_for(listener, among=given):
                raise ConfigError(
                    f"LISTEN_FDS: socket {number} is at {address!r}, and listener {number} at {listener.address!r}: "
                    "must come in the order of the [[listener]] sections"
                )
            found.append(here)
        if http is not None and http not in given:
            found.append(http)
        return tuple(found)

    def _at_sockets(
        self, one: ListenerConfig, http: ListenerConfig | None, addresses: Sequence[str]
    ) -> tuple[ListenerConfig, ...]:
        """For each of these sockets the listener that the options describe, or that of --http if it is at its place.

        Raises:
            ConfigError: there is none for clients.
        """
        if http is None:
            return (one,) * len(addresses)
        given = tuple([http if ListenerConfig(address=address).is_at(http) else one for address in addresses])
        if one not in given:
            raise ConfigError(f"LISTEN_FDS: all sockets are at {self.http!r}, that of {option('http')}: none is left")
        return given

    def all_users(self) -> tuple[UserConfig, ...]:
        """The `[[user]]` sections, and the users of the token file, which is read now.

        Raises:
            ConfigError: the token file cannot be read, or is bad.
        """
        if not self.token_file:
            return self.users
        from beanstalk_server.settings import rules, token_file

        users = self.users + token_file.read(self.token_file)
        mistakes = rules.of_users(users)
        if mistakes:
            raise ConfigError(*mistakes)
        return users

    def warnings(self) -> list[str]:
        """What is allowed, and probably not meant: each in one line."""
        found = []
        if self.cluster:
            from beanstalk_server.settings import cluster_rules

            found += cluster_rules.warnings(self)
        else:
            changed = self.changed()
            found += [
                f"{option(name)}: means nothing without {option('cluster')}" for name in OF_A_NODE if name in changed
            ]
        if self.listeners or self.users or self.tubes or self.token_file or self.tls_cert or self.http or self.file:
            from beanstalk_server.settings import rules

            found += rules.warnings(self)
        if self.verbosity and self.log_level != LOG_LEVELS[0]:
            found.append(f"{option('verbosity')}: shows nothing with {option('log_level')} {self.log_level}")
        return found


def _options_of(section: type[Config | ListenerConfig | UserConfig | TubeConfig]) -> tuple[Option, ...]:
    return tuple(
        [Option(name=each.name, default=each.default, **each.metadata) for each in fields(section) if each.metadata]
    )


OPTIONS: Final = _options_of(Config)
LISTENER_KEYS: Final = _options_of(ListenerConfig)
USER_KEYS: Final = _options_of(UserConfig)
TUBE_KEYS: Final = _options_of(TubeConfig)


def label_of(match: Sequence[str]) -> str:
    """What messages call the `[[tube]]` with these patterns."""
    return f'tube "{match[0]}"' + (", …" if len(match) > 1 else "")


def option(name: str) -> str:
    """The flags of the option with this name, as messages show them: -p/--port."""
    return next("/".join(each.flags) for each in OPTIONS if each.name == name)
