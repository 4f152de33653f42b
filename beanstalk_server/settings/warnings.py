"""Warns of settings that are valid, but probably not meant: one line for each.

Must never refuse a setting.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from beanstalk_server.queue.units import MILLISECOND
from beanstalk_server.settings.kinds import interval_of
from beanstalk_server.settings.options import ADDRESS, LOG_LEVELS, OF_A_NODE, Config
from beanstalk_server.settings.sections import ListenerConfig, TubeConfig, label_of, stays_here
from beanstalk_server.tube_names import ALL_TUBES, FirstMatch, is_literal, shard_of


def warnings_of(config: Config, sockets: Sequence[ListenerConfig] = ()) -> list[str]:
    """The warnings for a configuration.

    Args:
        sockets: the listeners, with the addresses of the sockets that systemd has opened; empty if it has opened none.
    """
    found = _of_ignored(config, sockets) if sockets else []
    if config.cluster:
        found += _of_cluster(config)
    else:
        changed = config.changed()
        found += [
            f"{config.place(name)}: has no effect without {config.place('cluster')}"
            for name in OF_A_NODE
            if name in changed
        ]
    found += _of_sections(config, sockets)
    if config.verbosity and config.log_level != LOG_LEVELS[0]:
        found.append(f"{config.place('verbosity')}: has no effect with {config.place('log_level')} {config.log_level}")
    return found


def _of_ignored(config: Config, sockets: Sequence[ListenerConfig]) -> list[str]:
    """The addresses that sockets of systemd replace."""
    given = [(f"{config.place(name)} {getattr(config, name)}") for name in ADDRESS if name in config.changed()]
    pairs = list(zip(config.listeners, sockets, strict=False))
    given += [
        f"listener {number}: address {listener.address}"
        for number, (listener, here) in enumerate(pairs, 1)
        if listener.address != here.address
    ]
    return [f"{each}: ignored, because systemd has opened the sockets (LISTEN_FDS)" for each in given]


def _of_cluster(config: Config) -> list[str]:
    """Settings of a cluster that may lose jobs, or keep them out of their dead tube."""
    found = []
    if not config.replicas:
        found.append(
            f"{config.place('replicas')} 0: if the engine is lost, acknowledged jobs are lost: should be 1 or more"
        )
    if config.shards > 1:
        found += [warning for each in config.tubes if (warning := _of_dead_tube_elsewhere(each, config.shards))]
    return found


def _of_dead_tube_elsewhere(tube: TubeConfig, shards: int) -> str:
    """A warning if the dead tube of a section may be in another shard than its jobs, or ""."""
    dead = tube.dead_tube
    shard = shard_of(dead.encode(), shards)
    if not dead or all(is_literal(each) and shard_of(each.encode(), shards) == shard for each in tube.match):
        return ""
    return (
        f"{label_of(tube.match)}: dead-tube: {dead!r} is in shard {shard}: "
        "jobs of other shards are buried instead, or deleted when they expire"
    )


def _of_sections(config: Config, sockets: Sequence[ListenerConfig]) -> list[str]:
    """Warnings of listeners, users and tubes."""
    found = []
    users = config.users
    has_users = bool(users or config.token_file)
    has_tokens = bool(config.token_file) or any(each.token_sha256 for each in users)
    without_users = {
        "token": not has_tokens and "no [[user]] has a token-sha256",
        "certificate": not users and "no [[user]] exists",
        "peer": not any(each.uid for each in users) and "no [[user]] has a uid",
    }
    for number, each in enumerate(sockets or config.all_listeners(), 1):
        if number <= len(config.listeners):
            place = f"listener {number}"
        elif each.is_http:
            place = f"{config.place('http')} {config.http}"
        else:
            place = f"listener {each.address}" if sockets else f"{config.place('listen')} {config.listen}"
        if not has_users and each.auth == "none" and not (each.is_http or each.tls_client_ca or stays_here(each)):
            found.append(
                f"{place}: every client has all rights, because there are no users: "
                "should have users or a token file, or listen on a loopback address"
            )
        if users and each.auth == "none" and not each.user:
            who = "every client with a certificate" if each.tls_client_ca else "every client of this listener"
            what = "can see all metrics" if each.is_http else "has all rights"
            found.append(f"{place}: {who} {what}, because neither auth nor user is set")
        reason = without_users.get(each.auth)
        if reason:
            found.append(f"{place}: no client can use it: auth is {each.auth!r}, and {reason}")
        if any(network.endswith("/0") for network in each.trusted):
            found.append(f"{place}: accepts PROXY headers from all addresses, because trusted is {list(each.trusted)}")
        key = each.tls_key or each.tls_cert
        if key and _mode(key) & stat.S_IROTH:
            found.append(f"{place}: every user of this machine can read the key in {key}: use chmod o-r")
    return found + _of_policies(config)


def _of_policies(config: Config) -> list[str]:
    """Warnings of the policies of tubes."""
    found = []
    places: dict[str, str] = {}  # the first section of each pattern
    sections = FirstMatch([each.match for each in config.tubes])
    for index, each in enumerate(config.tubes):
        label = label_of(each.match)
        earlier = {places.get(pattern) or places.get(ALL_TUBES) for pattern in each.match}
        if None not in earlier:
            covering = " and ".join(sorted(filter(None, earlier)))
            found.append(f"{label}: applies to no tube: its patterns are already covered by {covering}")
        for pattern in each.match:
            places.setdefault(pattern, label)
        if each.max_job_size > config.max_job_size:
            found.append(
                f"{label}: max-job-size {each.max_job_size}: the limit of the server is {config.max_job_size} bytes "
                f"({config.place('max_job_size')})"
            )
        tick = round(config.tick * MILLISECOND)
        if each.rate and interval_of(each.rate) * each.burst < tick:
            found.append(
                f"{label}: rate {each.rate} with a burst of {each.burst}: the actual rate is lower, because "
                "timers run every "
                f"{config.tick:g} ms ({config.place('tick')}): "
                f"should have a burst of {-(-tick // interval_of(each.rate))}"
            )
        if each.dead_tube:
            found += _of_dead_tube(label, index, config.tubes, sections)
    return found


def _of_dead_tube(label: str, index: int, tubes: Sequence[TubeConfig], sections: FirstMatch) -> list[str]:
    """Warnings of a dead tube whose jobs are moved on, or expire, by a policy of its own."""
    name = tubes[index].dead_tube
    found = sections.of(name)
    if found == index:
        return [f"{label}: dead-tube: {name!r} has the same policy: should have its own [[tube]] before this one"]
    seen = {index}
    while found >= 0 and tubes[found].dead_tube and found not in seen:
        seen.add(found)
        found = sections.of(tubes[found].dead_tube)
    if found == index:
        return [
            f"{label}: dead-tube: {name!r} leads back to this tube: the chain of dead tubes should end in a tube "
            "without a dead-tube"
        ]
    return []


def _mode(path: str) -> int:
    try:
        return os.stat(path).st_mode
    except (OSError, ValueError):
        return 0
