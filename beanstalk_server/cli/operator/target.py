"""How a command reaches its server: address, TLS, token, and what errors on the way mean.

Must never know what a command asks there. A token is shown nowhere.
"""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import greenstalk

from beanstalk_server.cli.operator.failure import UNAVAILABLE, USAGE, OperatorError
from beanstalk_server.client import (
    ALPN_PROTOCOL,
    Client,
    ExistsError,
    ForbiddenError,
    OtherShardError,
    TooLateError,
    UnauthorizedError,
)

DEFAULT: Final = "127.0.0.1:11300"
PORT: Final = 11300
SERVER_VARIABLE: Final = "BEANSTALK_SERVER"
TOKEN_VARIABLE: Final = "BEANSTALK_TOKEN"

Address = tuple[str, int] | str
"""Host and port, or the path of a UNIX socket."""

REPLIES: Final[dict[type[greenstalk.Error], str]] = {
    greenstalk.NotFoundError: "not found",
    greenstalk.DrainingError: "refused: the server is in drain mode, or the tube is full",
    greenstalk.JobTooBigError: "refused: the body is too large",
    greenstalk.OutOfMemoryError: "refused: the server is out of memory, or its disk is full",
    greenstalk.BadFormatError: "refused: the server cannot read the command (BAD_FORMAT)",
    greenstalk.UnknownCommandError: "the server does not know this command",
    greenstalk.InternalError: "the server reports an error of its own (INTERNAL_ERROR)",
    greenstalk.BuriedError: "the server has buried the job, for want of memory or because it has failed too often",
    ForbiddenError: "refused: this user has no right to it",
    UnauthorizedError: f"refused: the server wants a token that it knows (--token-file, or {TOKEN_VARIABLE})",
    OtherShardError: "refused: the two tubes are in different shards of the cluster",
    TooLateError: "refused: the job is no longer delayed",
}
"""What a reply that is an error means to a person."""


def read_address(text: str) -> Address:
    """Read host:port, [v6]:port, a host alone, or unix:/path.

    Raises:
        OperatorError: it is none of these.
    """
    if text.startswith("unix:"):
        if len(text) > len("unix:"):
            return text.removeprefix("unix:")
    elif found := re.fullmatch(r"(?:\[([^]\s]+)\]|([^:\s/]+))(?::(\d{1,5}))?", text):
        port = int(found[3] or PORT)
        if 0 < port < 65536:
            return found[1] or found[2], port
    raise OperatorError(f"bad server {text!r}: must be host:port, [v6]:port or unix:/path", USAGE)


def named(options: argparse.Namespace) -> str:
    """The server that the options or the environment name, as they write it."""
    return str(options.server or os.environ.get(SERVER_VARIABLE) or DEFAULT)


def meaning(error: greenstalk.Error) -> str:
    """What a reply that is an error means."""
    if isinstance(error, ExistsError):
        return f"refused: job {error.id} has the key, or had it and it is held"
    if isinstance(error, greenstalk.UnknownResponseError):
        reply = b" ".join([error.status, *error.values]).decode("ascii", "backslashreplace")
        return f"the server answered {reply!r}, which means nothing here"
    return REPLIES.get(type(error), type(error).__name__)


def connect(options: argparse.Namespace, longer: float = 0) -> Client[bytes]:
    """Connect to the server that the options name, and say who we are.

    Args:
        longer: seconds that the server may take beyond --answer-within, because it is asked to wait.

    Raises:
        OperatorError: there is no server, or it does not let us in.
    """
    name = named(options)
    address = read_address(name)
    token = _token(options)
    context = _context(options)
    if token and context is None and not _is_here(address):
        raise OperatorError(
            f"{name}: a token is sent over TLS only, or to this machine: --tls, or --tls-ca FILE", USAGE
        )
    try:
        sock = _dial(address, options.answer_within + longer)
        host = options.tls_name or (address[0] if isinstance(address, tuple) else None)
        return Client(sock, None, tls=context or False, server_name=host, token=token)
    except ssl.SSLError as error:
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or error
        raise OperatorError(f"{name}: no TLS with this server: {reason}", UNAVAILABLE) from None
    except greenstalk.UnknownCommandError:
        raise OperatorError(f"{name}: refused: there are no tokens here, and one is given") from None
    except greenstalk.Error as error:
        raise OperatorError(f"{name}: {meaning(error)}") from None
    except ValueError as error:
        raise OperatorError(str(error), USAGE) from None
    except TimeoutError:
        within = options.answer_within + longer
        raise OperatorError(f"{name}: no answer within {within:g} s (--answer-within)", UNAVAILABLE) from None
    except OSError as error:
        raise OperatorError(f"{name}: no server can be reached there: {error.strerror or error}", UNAVAILABLE) from None


@contextlib.contextmanager
def told(options: argparse.Namespace, what: str = "", extension: str = "") -> Iterator[None]:
    """Turn what goes wrong with the server into a OperatorError.

    Args:
        what: what the command is about, for the message: "job 5".
        extension: the command that beanstalkd does not have, if one is needed.
    """
    about = f"{what}: " if what else ""
    try:
        yield
    except greenstalk.UnknownCommandError:
        if not extension:
            raise OperatorError(f"{about}{REPLIES[greenstalk.UnknownCommandError]}") from None
        raise OperatorError(
            f"the server at {named(options)} does not know {extension}, which beanstalk-server has"
        ) from None
    except greenstalk.Error as error:
        raise OperatorError(f"{about}{meaning(error)}") from None
    except TimeoutError:
        message = f"{named(options)}: no answer within {options.answer_within:g} s (--answer-within)"
        raise OperatorError(message, UNAVAILABLE) from None
    except OSError as error:
        message = f"{named(options)}: the connection is lost: {error.strerror or error}"
        raise OperatorError(message, UNAVAILABLE) from None


@contextlib.contextmanager
def asking(options: argparse.Namespace, what: str = "", extension: str = "") -> Iterator[Client[bytes]]:
    """A connection for one command; what goes wrong meanwhile is a OperatorError, as in `told`."""
    with contextlib.closing(connect(options)) as client, told(options, what, extension):
        yield client


def _is_here(address: Address) -> bool:
    """Whether nobody is on the way to the server, as far as its address says."""
    if isinstance(address, str) or address[0] == "localhost":
        return True
    try:
        return ipaddress.ip_address(address[0]).is_loopback
    except ValueError:
        return False


def _dial(address: Address, within: float) -> socket.socket:
    if isinstance(address, tuple):
        sock = socket.create_connection(address, within)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        return sock
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(within)
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def _token(options: argparse.Namespace) -> str:
    if not options.token_file:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        text = Path(options.token_file).read_text("ascii").split()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not ASCII"
        raise OperatorError(f"--token-file {options.token_file}: cannot be read: {reason}", USAGE) from None
    if len(text) != 1:
        raise OperatorError(f"--token-file {options.token_file}: must hold one token, and nothing else", USAGE)
    return text[0]


def _context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """The TLS context that the options ask for, or None for a plain connection."""
    if options.tls_key and not options.tls_cert:
        raise OperatorError("--tls-key goes together with --tls-cert", USAGE)
    if not (options.tls or options.tls_ca or options.tls_cert):
        return None
    try:
        context = ssl.create_default_context(cafile=options.tls_ca)
        if options.tls_cert:
            context.load_cert_chain(options.tls_cert, options.tls_key)
    except (OSError, ssl.SSLError) as error:
        files = " and ".join(file for file in (options.tls_ca, options.tls_cert, options.tls_key) if file)
        raise OperatorError(f"{files}: cannot be used for TLS: {error.strerror or error}", USAGE) from None
    context.set_alpn_protocols([ALPN_PROTOCOL])
    return context
