"""Which settings of listeners, users and tubes go together: what must be refused, and what deserves a warning.

A rule that concerns one value alone is in its kind. Must never open a file or a socket.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from beanstalk_server.access.patterns import ALL_TUBES
from beanstalk_server.access.policies import Policies
from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.settings.config import (
    ConfigError,
    ListenerConfig,
    Mistake,
    TubeConfig,
    UserConfig,
    label_of,
    option,
)
from beanstalk_server.settings.kinds import interval_of

if TYPE_CHECKING:
    from beanstalk_server.settings.config import Config

OF_ONE_LISTENER: Final = ("listen", "port", "tls_cert", "tls_key", "tls_client_ca", "token_file")
"""The options that describe a listener, where there is no [[listener]]."""

_OPTION_OF_KEY: Final = {"address": "listen", "auth": "token_file"}
"""Of the keys of a listener that is made from options, those that have another name there."""


def of_config(config: Config) -> list[Mistake]:
    """What does not go together in a whole configuration."""
    mistakes = []
    if config.listeners:
        for name in OF_ONE_LISTENER:
            value = getattr(config, name)
            if value != type(config).__dataclass_fields__[name].default:
                mistakes.append(Mistake(option(name), beside_listeners(value)))
    else:
        try:
            config.all_listeners()
        except ConfigError as error:
            for key, said in error.mistakes:
                name = _OPTION_OF_KEY.get(key, key.replace("-", "_"))
                mistakes.append(Mistake(option(name), said))
    listeners = {f"listener {number}": each for number, each in enumerate(config.listeners, 1)}
    if listeners and all(each.is_http for each in config.listeners):
        mistakes.append(Mistake("listener", "each has the protocol 'http': must be one for clients, too"))
    http = config.http_listener()
    if http is not None:
        listeners[option("http")] = http
    names = [each.name for each in config.users]
    return mistakes + of_users(config.users) + of_listeners(listeners, names)


def beside_listeners(value: object) -> str:
    """What is wrong with an option of one listener, where there is a [[listener]]."""
    return f"{value!r} beside a [[listener]], which has its own: must be left out"


def of_listener(listener: ListenerConfig) -> list[Mistake]:
    """What does not go together in one listener; the places are keys."""
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
            "'certificate' of clients that are not asked for one: "
            "must have a tls-client-ca, or proxy-protocol from a proxy that asks",
        )
    if listener.auth == "peer" and not listener.path:
        refuse("auth", f"'peer' at {listener.address!r}: must listen on a UNIX socket, unix:PATH")
    if listener.auth == "peer" and listener.proxy_protocol:
        refuse("auth", "'peer' behind a proxy, which would be the peer of all: must be 'certificate' or 'token'")
    if listener.user and listener.auth != "none":
        refuse("user", f"{listener.user!r} with auth = {listener.auth!r}: must be left out, or auth must be 'none'")
    if listener.trusted and not listener.proxy_protocol:
        refuse("trusted", f"{list(listener.trusted)} without PROXY headers: must have proxy-protocol = true")
    if listener.trusted and listener.path:
        refuse(
            "trusted",
            f"{list(listener.trusted)} at {listener.address!r}: must be left out; a UNIX socket has no network",
        )
    if listener.proxy_protocol and not listener.trusted and not listener.path:
        refuse(
            "proxy-protocol",
            'true without a network that may send PROXY headers: must have trusted = ["127.0.0.0/8"], say',
        )
    return mistakes


def of_listeners(listeners: Mapping[str, ListenerConfig], names: Collection[str]) -> list[Mistake]:
    """What does not go together in several listeners.

    Args:
        listeners: by what a message calls them.
        names: the users that there are.
    """
    mistakes = []
    for label, each in listeners.items():
        if each.user and each.user not in names:
            mistakes.append(Mistake(f"{label}: user", f"{each.user!r} is not here: must be the name of a [[user]]"))
    bound = [(label, repr(each.address), _place(each)) for label, each in listeners.items() if each.port or each.path]
    return mistakes + _twice("address", bound)


def of_users(users: Iterable[UserConfig]) -> list[Mistake]:
    """What does not go together in several users: each has its own name, tokens and uids."""
    labelled = [(f'user "{each.name}"', each) for each in users]
    return [
        *_twice("name", [(label, repr(each.name), each.name) for label, each in labelled]),
        *_twice("token-sha256", [(label, "a token", one) for label, each in labelled for one in each.token_sha256]),
        *_twice("uid", [(label, str(one), one) for label, each in labelled for one in each.uid]),
    ]


def of_tube(tube: TubeConfig) -> list[Mistake]:
    """What does not go together in one [[tube]]; the places are keys."""
    mistakes = []
    if tube.burst > 1 and not tube.rate:
        mistakes.append(Mistake("burst", f"{tube.burst} without a rate: must be left out, or rate be given"))
    if 0 < tube.backoff_max < tube.backoff:
        mistakes.append(
            Mistake("backoff-max", f"{tube.backoff_max:g} below the first delay: must be {tube.backoff:g} or more")
        )
    if tube.dead_tube in tube.match:
        mistakes.append(
            Mistake("dead-tube", f"{tube.dead_tube!r} is what the section is for: must be the name of another tube")
        )
    return mistakes


def _twice(key: str, values: Iterable[tuple[str, str, Hashable]]) -> list[Mistake]:
    """Which values are given again: each is what has it, how a message shows it, and what it is."""
    first: dict[Hashable, str] = {}
    mistakes = []
    for label, shown, value in values:
        if value in first:
            mistakes.append(Mistake(f"{label}: {key}", f"{shown} is that of {first[value]}, too: must be given once"))
        first.setdefault(value, label)
    return mistakes


def _place(listener: ListenerConfig) -> Hashable:
    """What an address stands for: two ways of writing one are the same."""
    if listener.path:
        return os.path.normpath(listener.path)
    try:
        return ipaddress.ip_address(listener.host), listener.port
    except ValueError:
        return listener.host.lower(), listener.port


def stays_here(listener: ListenerConfig) -> bool:
    """Whether what comes and goes there does not leave this machine.

    A host name does, unless it is `localhost`: who knows where it leads tomorrow.
    """
    if listener.path or listener.host.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(listener.host)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return bool((mapped or address).is_loopback)


def warnings(config: Config) -> list[str]:
    """What is allowed, and probably not meant: each in one line."""
    found = []
    users = config.users
    has_tokens = bool(config.token_file) or any(each.token_sha256 for each in users)
    nobody = {
        "token": not has_tokens and "no [[user]] has a token-sha256",
        "certificate": not users and "there is no [[user]]",
        "peer": not any(each.uid for each in users) and "no [[user]] has a uid",
    }
    for number, each in enumerate(config.all_listeners(), 1):
        place = f"listener {number}" if config.listeners else f"{option('listen')} {config.listen}"
        if each == config.http_listener():
            place = f"{option('http')} {config.http}"
        if users and each.auth == "none" and not each.user:
            whoever = "whoever has a certificate" if each.tls_client_ca else "whoever connects there"
            what = "see all metrics" if each.is_http else "do everything"
            found.append(f"{place}: there are users, but {whoever} may {what}: it has neither auth nor user")
        reason = nobody.get(each.auth)
        if reason:
            found.append(f"{place}: nobody can use it: auth is {each.auth!r}, and {reason}")
        if any(network.endswith("/0") for network in each.trusted):
            found.append(f"{place}: everybody's PROXY header is believed, because trusted is {list(each.trusted)}")
        key = each.tls_key or each.tls_cert
        if key and _mode(key) & stat.S_IROTH:
            found.append(f"{place}: everybody on this machine can read the key in {key}")
    return found + _of_policies(config)


def _of_policies(config: Config) -> list[str]:
    """The same, of the policies of tubes."""
    found = []
    places: dict[str, str] = {}  # what each pattern has been given for first
    policies = Policies(config.tubes)
    for index, each in enumerate(config.tubes):
        label = label_of(each.match)
        earlier = {places.get(pattern) or places.get(ALL_TUBES) for pattern in each.match}
        if None not in earlier:
            found.append(f"{label}: counts for no tube: {' and '.join(sorted(filter(None, earlier)))} comes before it")
        for pattern in each.match:
            places.setdefault(pattern, label)
        if each.max_job_size > config.max_job_size:
            found.append(
                f"{label}: max-job-size {each.max_job_size}: the server takes {config.max_job_size} bytes at most "
                f"({option('max_job_size')})"
            )
        tick = round(config.tick * MILLISECOND)
        if each.rate and interval_of(each.rate) * each.burst < tick:
            found.append(
                f"{label}: rate {each.rate} with a burst of {each.burst}: will be less, because the server looks each "
                f"{config.tick:g} ms ({option('tick')}): should have a burst of {-(-tick // interval_of(each.rate))}"
            )
        if each.dead_tube:
            found += _of_dead_tube(label, index, config.tubes, policies)
    return found


def _of_dead_tube(label: str, index: int, tubes: Sequence[TubeConfig], policies: Policies) -> list[str]:
    """What is probably not meant with the dead tube of a section: jobs there that are not left in peace."""
    name = tubes[index].dead_tube
    found = policies.section(name)
    if found == index:
        return [f"{label}: dead-tube: {name!r} has this policy itself: should have a [[tube]] of its own before it"]
    seen = {index}
    while found >= 0 and tubes[found].dead_tube and found not in seen:
        seen.add(found)
        found = policies.section(tubes[found].dead_tube)
    if found == index:
        return [f"{label}: dead-tube: jobs come back from {name!r}, whose dead tubes lead here: should end somewhere"]
    return []


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0
