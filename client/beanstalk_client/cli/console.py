"""Serves the console (`beanstalk console`): on loopback, or on another address with --login or behind a proxy."""

from __future__ import annotations

import argparse
import logging
import os
import socket
import sys
import webbrowser
from typing import Final
from urllib.parse import quote

from beanstalk_client.address import Address, has_token
from beanstalk_client.cli.output import UNAVAILABLE, USAGE, OperatorError
from beanstalk_client.cli.target import METRICS_TOKEN_VARIABLE, client_arguments

DEFAULT_PORT: Final = 11380


def read_listen(text: str) -> tuple[str, int]:
    """The host and the port of --listen.

    Raises:
        OperatorError: it is malformed.
    """
    host, colon, port = text.rpartition(":")
    if not colon:
        host, port = text, str(DEFAULT_PORT)
    host = host.strip("[]") or "127.0.0.1"
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise OperatorError(f"--listen {text}: must be HOST:PORT, with a port from 0 to 65535", USAGE)
    return host, int(port)


def _with_token(url: str) -> str:
    """The URL of a listener for HTTP with the token of the environment, unless it has one."""
    token = os.environ.get(METRICS_TOKEN_VARIABLE, "")
    return url if not token or has_token(url) else url.replace("://", f"://:{quote(token, safe='')}@", 1)


def serve(options: argparse.Namespace) -> int:
    """Serve the console until SIGINT or SIGTERM."""
    from beanstalk_client.console.app import console  # ModuleNotFoundError: the extra is missing, and main says so
    from beanstalk_client.console.serving import make_server

    host, port = read_listen(options.listen)
    is_local = Address(host).is_local  # only this machine can connect to it
    if not is_local and not options.login and not options.behind_proxy:
        raise OperatorError(
            f"--listen {options.listen}: not a loopback address: give --login or --behind-proxy HEADER", USAGE
        )
    if options.listen_key and not options.listen_cert:
        raise OperatorError("--listen-key requires --listen-cert", USAGE)
    if options.login and not is_local and not options.listen_cert:
        print(
            "beanstalk console: warning: tokens are sent without TLS: give --listen-cert, or use a proxy with TLS",
            file=sys.stderr,
        )
    options.server = options.url or options.server
    addresses, arguments = client_arguments(options)
    try:
        made = console(
            list(addresses),
            tls=arguments["tls"],
            server_name=arguments["server_name"],
            token=arguments["token"],
            login=options.login,
            anyone=not options.login and not options.behind_proxy,  # on loopback only: see above
            read_only=options.read_only,
            user_header=options.behind_proxy or "",
            **({"trusted": options.proxy_from} if options.proxy_from else {}),
            hosts=options.host or (),
            hsts=bool(options.listen_cert),
            base_path=options.base_path or "",
            metrics=[_with_token(each) for each in options.metrics or ()],
            **({"schedules": options.schedules} if options.schedules else {}),
        )
    except ValueError as error:
        raise OperatorError(str(error), USAGE) from None
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise OperatorError(f"--listen {options.listen}: {error.strerror or error}", UNAVAILABLE) from None
    scheme = "https" if options.listen_cert else "http"
    shown = f"[{host}]" if ":" in host else host
    url = f"{scheme}://{shown}:{listener.getsockname()[1]}{made.state.settings.base_path}/"
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO, stream=sys.stderr)
    server, bounded = make_server(made, listener, certificate=options.listen_cert, key=options.listen_key)
    print(f"The console of {made.state.settings.server} is at {url}", flush=True)
    if options.open:
        webbrowser.open(url)
    sys.setswitchinterval(0.001)  # seconds that a request waits for a thread that decodes bodies; 0.005 without this
    server.run(sockets=[bounded])
    return 0
