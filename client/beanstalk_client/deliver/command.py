"""The command line of `beanstalk-deliver`: its options, its errors, and the deliverer that it runs."""

from __future__ import annotations

import argparse
import contextlib
import functools
import ssl
import sys
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from beanstalk_client.address import VISIBLE_TOKEN, has_token, read_target
from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.consumers import FORCE_AFTER, GRACE, run
from beanstalk_client.deliver.addresses import Guard, Network
from beanstalk_client.deliver.signatures import Secrets
from beanstalk_client.deliver.slots import DeliverySlots
from beanstalk_client.deliver.verdicts import Rules
from beanstalk_client.program import (
    COUNT,
    NUMBER,
    SECONDS,
    SOME_SECONDS,
    Kind,
    UsageError,
    add_common_options,
    add_option,
    run_program,
    server_errors,
    whole,
)

if TYPE_CHECKING:
    from beanstalk_client.deliver.serving import Deliverer

PROGRAM: Final = "beanstalk-deliver"

FILE: Final = Kind("FILE", Path)

LARGEST_FILE: Final = 1_000_000
"""Bytes of a file of secrets, or with a token."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Send HTTP requests when they are due. Each job of a tube is one request, as JSON.",
        epilog="SIGTERM or SIGINT: reserve no more jobs, wait for running requests, and give back the rest after "
        "--grace. A second signal gives them back at once. SIGHUP: reload the secrets.",
    )
    group = parser.add_argument_group("jobs")
    add = functools.partial(add_option, group)
    add("--tube", Kind("NAME", str), None, "tube of the jobs; repeatable", action="append", required=True)
    add(
        "--server",
        Kind("ADDRESS", str),
        None,
        "address of the job server: HOST:PORT, unix:PATH, beanstalk://… or, with TLS, beanstalks://…; repeatable "
        "for the nodes of a cluster (default: 127.0.0.1:11300)",
        action="append",
    )
    add("--token-file", FILE, None, "file with the token for the job server")
    add("--server-ca", FILE, None, "PEM file of CAs for the job server's certificate")
    add("--grace", SECONDS, GRACE, "grace period: time that running requests have to finish after a stop signal")

    add = functools.partial(add_option, parser.add_argument_group("concurrency"))
    add("--at-once", COUNT, 100, "maximum number of running requests")
    add("--per-host", COUNT, 10, "maximum number of running requests to one host")
    add(
        "--waiting",
        COUNT,
        200,
        "maximum number of jobs that wait because their host is at its --per-host limit; one host may have a "
        "quarter of them; further jobs are released with a delay",
    )

    group = parser.add_argument_group("one attempt")
    add = functools.partial(add_option, group)
    timeout = "maximum time of an attempt, including redirects; a job may set a shorter one"
    add("--timeout", SOME_SECONDS, 30.0, timeout)
    add("--connect-timeout", SOME_SECONDS, 10.0, "maximum time to connect, including DNS and TLS")
    add("--redirects", NUMBER, 3, "maximum number of redirects")
    response = "maximum size of the body that is read from a response"
    add("--max-response", NUMBER._replace(metavar="BYTES"), 65_536, response)
    add("--ca", FILE, None, "PEM file of CAs for receivers' certificates (default: the system's CAs)")
    group.add_argument(
        "--proxy-from-environment",
        action="store_true",
        help="use HTTP_PROXY, HTTPS_PROXY and NO_PROXY; the proxy then resolves host names, and must check the "
        "addresses",
    )
    secrets = "file of secrets that sign requests: on each line, a pattern of hosts and one or more secrets"
    add("--secrets", FILE, None, secrets)

    add = functools.partial(add_option, parser.add_argument_group("retries"))
    add("--tries", NUMBER, 12, "maximum number of attempts; then the job is buried (0: no limit)")
    add("--backoff", SOME_SECONDS, 5.0, "delay before the second attempt; doubles with each further one")
    add("--backoff-max", SOME_SECONDS, 43_200.0, "maximum of this delay")
    add("--retry-after-max", SOME_SECONDS, 86_400.0, "maximum delay that a receiver can set with Retry-After")

    group = parser.add_argument_group("allowed destinations", "By default, all public addresses are allowed.")
    add = functools.partial(add_option, group, default=[], action="append")
    pattern, net = Kind("PATTERN", str), Kind("NET", _network)
    allowed_hosts = "pattern of allowed hosts, such as *.example.com; repeatable (default: all hosts)"
    add("--allow-host", pattern, help=allowed_hosts)
    add("--forbid-host", pattern, help="pattern of forbidden hosts; repeatable")
    port = Kind("N", whole(1, 65_535, "port"))
    add("--allow-port", port, help="allowed port; repeatable (default: all ports)")
    group.add_argument(
        "--allow-private",
        action="store_true",
        help="also allow private networks (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, fc00::/7)",
    )
    allowed_networks = "allowed network besides public addresses, such as 127.0.0.0/8; repeatable"
    add("--allow-net", net, help=allowed_networks)
    add("--forbid-net", net, help="forbidden network; overrides all other options; repeatable")
    add_common_options(parser, parser.add_argument_group("log"))
    return parser


def make_deliverer(options: argparse.Namespace) -> Deliverer:
    """The sender that a command line asks for.

    Raises:
        UsageError: it cannot be.
    """
    try:
        from beanstalk_client.deliver.sending import Limits, RequestSender
        from beanstalk_client.deliver.serving import Deliverer
    except ImportError as error:
        raise UsageError(str(error)) from None
    addresses = tuple(options.server or ["127.0.0.1:11300"])
    token = _read(options.token_file, "--token-file").strip() if options.token_file else ""
    if any(map(has_token, addresses)):
        sys.stderr.write(f"beanstalk-deliver: {VISIBLE_TOKEN} --token-file\n")
    server_tls: ssl.SSLContext | bool = False
    if options.server_ca:
        server_tls = _trusting(options.server_ca, "--server-ca")
    tls = _trusting(options.ca, "--ca") if options.ca else None
    try:
        read_target(addresses, tls=server_tls, token=token)
    except ValueError as error:
        raise UsageError(f"--server: {error}") from None
    for tube in options.tube:
        if options.tube.count(tube) > 1:
            raise UsageError(f"--tube: {tube} is named twice")
    guard = Guard(
        allowed_hosts=options.allow_host,
        forbidden_hosts=options.forbid_host,
        allowed_ports=options.allow_port,
        allow_private=options.allow_private,
        allowed_networks=options.allow_net,
        forbidden_networks=options.forbid_net,
    )
    limits = Limits(
        timeout=options.timeout,
        connect_timeout=options.connect_timeout,
        redirects=options.redirects,
        response=options.max_response,
    )

    def read_secrets() -> Secrets:
        try:
            return Secrets.parse(_read(options.secrets, "--secrets"))
        except ValueError as error:
            raise UsageError(f"--secrets: {options.secrets}: {error}") from None

    secrets = read_secrets() if options.secrets else None

    def connect() -> AsyncClient[bytes]:
        return AsyncClient(addresses, encoding=None, tls=server_tls, token=token)

    def make_sender() -> RequestSender:
        return RequestSender(
            guard,
            secrets=secrets,
            limits=limits,
            tls=tls,
            proxies_of_environment=options.proxy_from_environment,
        )

    return Deliverer(
        connect,
        options.tube,
        make_sender,
        DeliverySlots(options.at_once, options.per_host, options.waiting),
        Rules(
            tries=options.tries,
            backoff=options.backoff,
            backoff_max=options.backoff_max,
            retry_after_max=options.retry_after_max,
        ),
        read_secrets=read_secrets if options.secrets else None,
        grace=options.grace,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Send requests until a stop signal; return the exit status."""
    return run_program(make_parser(), _run, arguments, FORCE_AFTER)


def _run(options: argparse.Namespace, _: Sequence[str]) -> int:
    deliverer = make_deliverer(options)
    _allow_many_connections()
    with server_errors("the job server"):
        run(deliverer.run())
    return 0


def _allow_many_connections() -> None:
    """Use as many files as this process may: each connection is one."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def _trusting(path: Path, option: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=str(path))
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"{option}: {path}: {error.strerror or error}") from None


def _read(path: Path, option: str) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            raise UsageError(f"{option}: {path}: longer than {LARGEST_FILE} bytes")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option}: {path}: {getattr(error, 'strerror', None) or 'not UTF-8'}") from None


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a network, such as 10.0.0.0/8 or fd00::/8") from None
