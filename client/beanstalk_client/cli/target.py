"""Connects commands to the server: address, TLS and token from the options, and error messages.

A token is shown nowhere.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import beanstalk_client
from beanstalk_client.address import ALPN_PROTOCOL, Address, read_target
from beanstalk_client.cli.output import UNAVAILABLE, USAGE, OperatorError
from beanstalk_client.connection import TLS_HINT

DEFAULT: Final = "127.0.0.1:11300"
SERVER_VARIABLE: Final = "BEANSTALK_SERVER"
TOKEN_VARIABLE: Final = "BEANSTALK_TOKEN"
METRICS_TOKEN_VARIABLE: Final = "BEANSTALK_METRICS_TOKEN"

REPLIES: Final[dict[type[beanstalk_client.Error], str]] = {
    beanstalk_client.NotFoundError: "not found",
    beanstalk_client.DrainingError: "refused: the server is in drain mode, or the tube is full",
    beanstalk_client.JobTooBigError: "refused: the body is too large",
    beanstalk_client.OutOfMemoryError: "refused: the server is out of memory, or its disk is full",
    beanstalk_client.BadFormatError: "refused: the server cannot parse the command (BAD_FORMAT)",
    beanstalk_client.UnknownCommandError: "the server does not support this command",
    beanstalk_client.InternalError: "internal error of the server: see its log (INTERNAL_ERROR)",
    beanstalk_client.BuriedError: (
        "the server buried the job: the server is out of memory, or the job failed too often"
    ),
    beanstalk_client.ForbiddenError: "refused: this user lacks the right to run this command",
    beanstalk_client.UnauthorizedError: (
        f"refused: the server requires a valid token (--token-file, or {TOKEN_VARIABLE})"
    ),
    beanstalk_client.OtherShardError: "refused: the two tubes are in different shards of the cluster",
    beanstalk_client.TooLateError: "refused: a worker has reserved the job, or its key is held",
}
"""What a reply that is an error means to a person."""


def named(options: argparse.Namespace) -> str:
    """The server that the options or the environment name, as they write it, but for the token of a URL."""
    scheme, separator, rest = _written(options).rpartition("://")
    return scheme + separator + rest.rpartition("@")[2]


def _written(options: argparse.Namespace) -> str:
    return str(options.server or os.environ.get(SERVER_VARIABLE) or DEFAULT)


def meaning(error: beanstalk_client.Error) -> str:
    """What a reply that is an error means."""
    if isinstance(error, beanstalk_client.ExistsError):
        return f"refused: job {error.id} already has the key, or its key is still held"
    if isinstance(error, beanstalk_client.TooLateError) and error.asked.startswith(("cancel", "reschedule")):
        return "refused: the job is no longer delayed"
    if isinstance(error, beanstalk_client.UnknownResponseError):
        reply = b" ".join([error.status, *error.values]).decode("ascii", "backslashreplace")
        return f"unexpected reply {reply!r}"
    return REPLIES.get(type(error), type(error).__name__)


def client_arguments(options: argparse.Namespace) -> tuple[tuple[Address, ...], dict[str, Any]]:
    """The arguments of a client of the server that the options name.

    Raises:
        OperatorError: they make no sense.
    """
    name = named(options)
    try:
        target = read_target(
            _written(options), tls=tls_context(options) or False, token=token_of(options), insecure_token=True
        )
    except ValueError as error:
        raise OperatorError(str(error), USAGE) from None
    if target.token and target.context is None and not all(address.is_local for address in target.addresses):
        raise OperatorError(f"{name}: refused to send the token without TLS: use --tls or --tls-ca FILE", USAGE)
    return target.addresses, {
        "tls": target.context or False,
        "server_name": options.tls_name,
        "token": target.token,
        "connect_timeout": options.answer_within,
        "timeout": options.answer_within,
    }


def make_async_client(options: argparse.Namespace) -> beanstalk_client.AsyncClient[bytes]:
    """A client for asyncio of the server that the options name, which connects later, and again when it must.

    Raises:
        OperatorError: the options make no sense.
    """
    addresses, arguments = client_arguments(options)
    return beanstalk_client.AsyncClient(addresses, None, **arguments)


def connect(options: argparse.Namespace) -> beanstalk_client.Client[bytes]:
    """Connect to the server that the options name, and authenticate.

    Raises:
        OperatorError: there is no server, or it does not let us in.
    """
    addresses, arguments = client_arguments(options)
    with connecting(options):
        return beanstalk_client.Client(addresses, None, reconnect=False, **arguments)


@contextlib.contextmanager
def connecting(options: argparse.Namespace) -> Iterator[None]:
    """Turn what goes wrong while a client connects into an OperatorError."""
    name = named(options)
    try:
        yield
    except ssl.SSLError as error:
        reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or error
        raise OperatorError(f"{name}: TLS handshake failed: {reason}", UNAVAILABLE) from None
    except TimeoutError:
        hint = "; perhaps the server does not use TLS" if client_arguments(options)[1]["tls"] else ""
        raise OperatorError(
            f"{name}: no answer within {options.answer_within:g} s (--answer-within){hint}", UNAVAILABLE
        ) from None
    except OSError as error:
        raise OperatorError(f"{name}: cannot connect: {reason_of(error)}", UNAVAILABLE) from None
    except beanstalk_client.UnknownCommandError:
        raise OperatorError(f"{name}: the server does not support tokens: connect without one") from None
    except beanstalk_client.Error as error:
        raise OperatorError(f"{name}: {meaning(error)}") from None
    except ValueError as error:
        raise OperatorError(str(error), USAGE) from None


def reason_of(error: OSError) -> str:
    """Why a connection is lost."""
    return error.reason if isinstance(error, beanstalk_client.ConnectionLostError) else str(error.strerror or error)


@contextlib.contextmanager
def told(options: argparse.Namespace, what: str = "", extension: str = "") -> Iterator[None]:
    """Turn what goes wrong with the server into an OperatorError.

    Args:
        what: what the command is about, for the message: "job 5".
        extension: the command that beanstalkd does not have, if one is needed.
    """
    about = f"{what}: " if what else ""
    try:
        yield
    except TimeoutError:
        message = f"{named(options)}: no answer within {options.answer_within:g} s (--answer-within)"
        raise OperatorError(message, UNAVAILABLE) from None
    except OSError as error:
        reason = reason_of(error)
        if reason.endswith(TLS_HINT):
            reason += ": use --tls or --tls-ca FILE"
        message = f"{named(options)}: connection lost: {reason}"
        raise OperatorError(message, UNAVAILABLE) from None
    except beanstalk_client.UnknownCommandError:
        if not extension:
            raise OperatorError(f"{about}{REPLIES[beanstalk_client.UnknownCommandError]}") from None
        raise OperatorError(
            f"the server at {named(options)} does not support {extension}; beanstalk-server does"
        ) from None
    except beanstalk_client.Error as error:
        raise OperatorError(f"{about}{meaning(error)}") from None


@contextlib.contextmanager
def asking(
    options: argparse.Namespace, what: str = "", extension: str = ""
) -> Iterator[beanstalk_client.Client[bytes]]:
    """A connection for one command; what goes wrong meanwhile is an OperatorError, as in `told`."""
    with contextlib.closing(connect(options)) as client, told(options, what, extension):
        yield client


def token_of(options: argparse.Namespace) -> str:
    """The token of --token-file, or of the environment; "" for none."""
    if not options.token_file:
        return os.environ.get(TOKEN_VARIABLE, "")
    try:
        text = Path(options.token_file).read_text("ascii").split()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not ASCII"
        raise OperatorError(f"--token-file {options.token_file}: cannot be read: {reason}", USAGE) from None
    if len(text) != 1:
        raise OperatorError(f"--token-file {options.token_file}: must contain one token and nothing else", USAGE)
    return text[0]


def tls_context(options: argparse.Namespace) -> ssl.SSLContext | None:
    """The TLS context that the options ask for, or None for a plain connection."""
    if options.tls_key and not options.tls_cert:
        raise OperatorError("--tls-key requires --tls-cert", USAGE)
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
