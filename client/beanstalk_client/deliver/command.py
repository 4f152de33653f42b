"""The command line of `beanstalk-deliver`: what it means, and what a person is told who has made a mistake in it."""

from __future__ import annotations

import argparse
import contextlib
import ssl
import sys
from collections.abc import Sequence
from ipaddress import ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Final

from beanstalk_client import signals
from beanstalk_client.address import VISIBLE_TOKEN, has_token, read_target
from beanstalk_client.asynchronous import AsyncClient
from beanstalk_client.consumers import FORCE_AFTER, run
from beanstalk_client.deliver.addresses import Guard, Network
from beanstalk_client.deliver.signatures import Secrets
from beanstalk_client.deliver.turns import Turns
from beanstalk_client.deliver.verdicts import Rules
from beanstalk_client.errors import Error
from beanstalk_client.events import reason_of
from beanstalk_client.logs import add_log_options, complain, start_log
from beanstalk_client.version import VERSION

if TYPE_CHECKING:
    from beanstalk_client.deliver.serving import Deliverer

PROGRAM: Final = "beanstalk-deliver"

USAGE: Final = 2
FAILED: Final = 1

LARGEST_FILE: Final = 1_000_000
"""Bytes of a file of secrets, or with a token."""


class UsageError(Exception):
    """The command line cannot be followed; the message says why, in one line."""


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        description="Send HTTP requests when they are due. Each job of a tube is one request, as JSON.",
        epilog="SIGTERM or SIGINT: reserve no more jobs, wait for running requests, and release the rest after "
        "--grace. A second signal releases them at once. SIGHUP: read the secrets again.",
    )
    add = parser.add_argument_group("jobs").add_argument
    add("--tube", metavar="NAME", action="append", required=True, help="tube of the jobs; repeatable")
    add(
        "--server",
        metavar="ADDRESS",
        action="append",
        help="address of the job server: HOST:PORT, unix:PATH, beanstalk://… or, with TLS, beanstalks://…; repeatable "
        "for the nodes of a cluster (default: 127.0.0.1:11300)",
    )
    add("--token-file", metavar="FILE", type=Path, help="file with the token for the job server")
    add("--server-ca", metavar="FILE", type=Path, help="PEM file of CAs for the job server's certificate")
    add(
        "--grace",
        metavar="SECONDS",
        type=_seconds,
        default=30.0,
        help="time for running requests after a stop signal (default: 30)",
    )
    add = parser.add_argument_group("concurrency").add_argument
    add("--at-once", metavar="N", type=_count, default=100, help="maximum number of running requests (default: 100)")
    add(
        "--per-host",
        metavar="N",
        type=_count,
        default=10,
        help="maximum number of running requests to one host (default: 10)",
    )
    add(
        "--waiting",
        metavar="N",
        type=_count,
        default=200,
        help="maximum number of jobs that wait because their host is at its --per-host limit; one host may have a "
        "quarter of them; further jobs are released with a delay (default: 200)",
    )
    add = parser.add_argument_group("one attempt").add_argument
    add(
        "--timeout",
        metavar="SECONDS",
        type=_some_seconds,
        default=30.0,
        help="maximum time of an attempt, with redirects; a job may set a shorter one (default: 30)",
    )
    add(
        "--connect-timeout",
        metavar="SECONDS",
        type=_some_seconds,
        default=10.0,
        help="maximum time to connect, with DNS and TLS (default: 10)",
    )
    add("--redirects", metavar="N", type=_number, default=3, help="maximum number of redirects (default: 3)")
    add(
        "--max-response",
        metavar="BYTES",
        type=_number,
        default=65_536,
        help="maximum size of the body that is read from a response (default: 65536)",
    )
    add(
        "--ca",
        metavar="FILE",
        type=Path,
        help="PEM file of CAs for receivers' certificates (default: the system's CAs)",
    )
    add(
        "--proxy-from-environment",
        action="store_true",
        help="use HTTP_PROXY, HTTPS_PROXY and NO_PROXY; the proxy then looks up addresses, and must check them",
    )
    add(
        "--secrets",
        metavar="FILE",
        type=Path,
        help="file of secrets that sign requests: on each line, a pattern of hosts and one or more secrets",
    )
    add = parser.add_argument_group("retries").add_argument
    add(
        "--tries",
        metavar="N",
        type=_number,
        default=12,
        help="maximum number of attempts; then the job is buried (0: no limit; default: 12)",
    )
    add(
        "--backoff",
        metavar="SECONDS",
        type=_some_seconds,
        default=5.0,
        help="delay before the second attempt; doubles with each further one (default: 5)",
    )
    add(
        "--backoff-max",
        metavar="SECONDS",
        type=_some_seconds,
        default=43_200.0,
        help="maximum of this delay (default: 43200)",
    )
    add(
        "--retry-after-max",
        metavar="SECONDS",
        type=_some_seconds,
        default=86_400.0,
        help="maximum delay that a receiver can set with Retry-After (default: 86400)",
    )
    add = parser.add_argument_group(
        "allowed destinations", "By default, all public addresses are allowed."
    ).add_argument
    add(
        "--allow-host",
        metavar="PATTERN",
        action="append",
        default=[],
        help="pattern of allowed hosts, such as *.example.com; repeatable (default: all hosts)",
    )
    add("--forbid-host", metavar="PATTERN", action="append", default=[], help="pattern of forbidden hosts; repeatable")
    add(
        "--allow-port",
        metavar="N",
        type=_port,
        action="append",
        default=[],
        help="allowed port; repeatable (default: all ports)",
    )
    add(
        "--allow-private",
        action="store_true",
        help="allow private networks, too (10.0.0.0/8, 172.16.0.0/12, 192.168.0.0/16, 100.64.0.0/10, fc00::/7)",
    )
    add(
        "--allow-net",
        metavar="NET",
        type=_network,
        action="append",
        default=[],
        help="allowed network besides public addresses, such as 127.0.0.0/8; repeatable",
    )
    add(
        "--forbid-net",
        metavar="NET",
        type=_network,
        action="append",
        default=[],
        help="forbidden network; overrides all other options; repeatable",
    )
    add = parser.add_argument_group("log").add_argument
    add_log_options(add)
    parser.add_argument("--version", action="version", version=f"beanstalk-client {VERSION}")
    return parser


def make_deliverer(options: argparse.Namespace) -> Deliverer:
    """The sender that a command line asks for.

    Raises:
        UsageError: it cannot be.
    """
    try:
        from beanstalk_client.deliver.sending import Limits, Sender
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
    if len(set(options.tube)) < len(options.tube):
        raise UsageError("--tube: a tube is named twice")
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
        except UsageError as error:
            raise ValueError(str(error)) from None
        except ValueError as error:
            raise ValueError(f"--secrets: {options.secrets}: {error}") from None

    try:
        secrets = read_secrets() if options.secrets else None
    except ValueError as error:
        raise UsageError(str(error)) from None

    def connect() -> AsyncClient[bytes]:
        return AsyncClient(addresses, encoding=None, tls=server_tls, token=token)

    def make_sender() -> Sender:
        return Sender(
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
        Turns(options.at_once, options.per_host, options.waiting),
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
    """Send what is due until told to stop; return the exit status."""
    return signals.run_program(_main, FORCE_AFTER) if arguments is None else _main(arguments)


def _main(arguments: Sequence[str]) -> int:
    options = make_parser().parse_args(arguments)
    start_log(options)
    try:
        deliverer = make_deliverer(options)
    except UsageError as error:
        return complain(options, PROGRAM, str(error), USAGE)
    _allow_many_connections()
    try:
        run(deliverer.run())
    except (Error, OSError, ValueError) as error:
        return complain(options, PROGRAM, f"the job server: {reason_of(error)}", FAILED)
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
            raise UsageError(f"{option}: {path}: it is longer than {LARGEST_FILE} bytes")
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{option}: {path}: {getattr(error, 'strerror', None) or 'it is not UTF-8'}") from None


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number, 0 or more")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 6 and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r} must be a number, 1 to 99999")
    return int(text)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 0 < int(text) < 65_536):
        raise argparse.ArgumentTypeError(f"{text!r} must be a port, 1 to 65535")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1
    if not 0 <= seconds < 1e9:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds, 0 or more")
    return seconds


def _some_seconds(text: str) -> float:
    seconds = _seconds(text)
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} must be seconds, above 0")
    return seconds


def _network(text: str) -> Network:
    try:
        return ip_network(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} must be a network, such as 10.0.0.0/8 or fd00::/8") from None
