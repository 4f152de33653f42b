"""Where servers are: addresses as people write them, URLs, what TLS trusts, and which token goes where.

    ("host", port)  "host:port"  "[v6]:port"  "host"        11300 is the port by default
    "unix:/path"  "/path"                                   a UNIX socket
    "beanstalk://[:token@]host:port[,host:port…]"           several nodes of one cluster; beanstalks:// speaks TLS
    a list or tuple of several of these

Must never connect, and never show a token.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Union, cast
from urllib.parse import unquote

from beanstalk_client.commands import is_token, text_of

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT: Final = 11300
ALPN_PROTOCOL: Final = "beanstalk"

PLAIN: Final = "beanstalk://"
TLS: Final = "beanstalks://"


VISIBLE_TOKEN: Final = "warning: other users of this machine can read the token on the command line: use"
"""What a program says of a URL in its arguments, before what to use instead."""


def has_token(url: str) -> bool:
    """Whether a URL has a token."""
    return "@" in url.partition("://")[2]


class Address(NamedTuple):
    """Where one server is: a host and a port, or the path of a UNIX socket."""

    host: str
    port: int = DEFAULT_PORT
    path: str = ""

    def __str__(self) -> str:
        if self.path:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Whether its bytes stay on this machine, as far as the address says."""
        if self.path or self.host == "localhost":
            return True
        return self.is_ip and ipaddress.ip_address(self.host).is_loopback

    @property
    def is_ip(self) -> bool:
        """Whether the host is an IP address, and no name."""
        try:
            ipaddress.ip_address(self.host)
        except ValueError:
            return False
        return True


OneAddress = Union[Address, tuple[str, int], str]
"""The address of a server, in any of the forms above; the package calls it `Address`.

Example:
    address: Address = ("127.0.0.1", 11300)
    Client(address)
"""

Addresses = Union[OneAddress, list[OneAddress], tuple[OneAddress, ...]]


class Target(NamedTuple):
    """How a server is reached.

    Attributes:
        addresses: of the nodes of a cluster, or of the one server; any will do.
        context: what TLS trusts and shows; None for plain connections.
        server_name: the name that the certificate must have; None: the host of the address.
        token: "" for none.
    """

    addresses: tuple[Address, ...]
    context: ssl.SSLContext | None
    server_name: str | None
    token: str

    def __repr__(self) -> str:
        return f"<Target {', '.join(map(str, self.addresses))}{' over TLS' if self.context else ''}>"


def read_target(
    addresses: Addresses,
    *,
    tls: ssl.SSLContext | bool = False,
    server_name: str | None = None,
    token: str = "",
    insecure_token: bool = False,
) -> Target:
    """Read addresses as people write them, and what goes with them.

    Args:
        tls: a context, or True to trust the authorities that the system trusts.
        token: goes before the one of a URL.
        insecure_token: a token may be sent without TLS to other machines.

    Raises:
        TypeError, ValueError: one is malformed, they do not go together, or the token would be sent in the clear.
    """
    try:
        return _read_target(addresses, tls, server_name, token, insecure_token)
    except (TypeError, ValueError) as error:
        del addresses, token  # an error report has the variables of each frame, and those below have them, too
        raise type(error)(*error.args) from None


def _read_target(
    addresses: Addresses, tls: ssl.SSLContext | bool, server_name: str | None, token: str, insecure_token: bool
) -> Target:
    if tls and tls is not True and not hasattr(tls, "wrap_socket"):
        raise TypeError(f"tls is {tls!r}: must be True, or ssl.create_default_context(cafile=…)")
    found, schemes, secret = read_addresses(addresses)
    token = token or secret
    if server_name is not None:
        text_of(server_name, "server_name")
    if token and not isinstance(token, str):
        raise TypeError("bad token: must be a string")  # and does not belong in a message
    if len(schemes) > 1 and tls is False:
        raise ValueError(f"addresses with and without {TLS}: use TLS for all nodes of a cluster, or for none")
    if token and not is_token(token):
        raise ValueError(
            "bad token: must be one word of printable ASCII characters"
        )  # and does not belong in a message
    context = default_context() if tls is True or (tls is False and True in schemes) else tls or None
    if token and context is None and not insecure_token:
        for address in found:
            if not address.is_local:
                raise ValueError(
                    f"{address}: refused to send the token without TLS: use tls=True or insecure_token=True"
                )
    return Target(tuple(found), context, server_name, token)


def read_addresses(addresses: Addresses) -> tuple[list[Address], set[bool], str]:
    """Read addresses as people write them: where they are, which of TLS and plain they ask for, and the first token.

    Raises:
        TypeError, ValueError: one is malformed.
    """
    if not hasattr(addresses, "__iter__"):
        raise TypeError(f"bad address {addresses!r}: must be host:port, [v6]:port or unix:/path")
    found: list[Address] = []
    schemes = set()
    token = ""
    for one in _each(addresses):
        if isinstance(one, str) and "://" in one:
            nodes, speaks_tls, secret = _read_url(one)
            schemes.add(speaks_tls)
            token = token or secret
        else:
            nodes = [_read(one)]
            schemes.add(False)
        found += nodes
    if not found:
        raise ValueError("no address given")
    return found, schemes, token


def default_context() -> ssl.SSLContext:
    """What tls=True stands for: TLS 1.2 or newer, and a certificate of an authority that the system trusts."""
    import ssl  # where it is not needed, it need not be there

    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([ALPN_PROTOCOL])
    return context


def _each(addresses: Addresses) -> Iterable[OneAddress]:
    if isinstance(addresses, (str, Address)):
        return [addresses]
    if isinstance(addresses, tuple) and len(addresses) == 2 and isinstance(addresses[1], int):
        return [(str(addresses[0]), addresses[1])]
    return cast(Iterable[OneAddress], addresses)


def _read(one: OneAddress) -> Address:
    if isinstance(one, str):
        return _read_text(one)
    if isinstance(one, Address):
        return one
    if not _is_pair(one):
        raise ValueError("bad address: must be a string, or a tuple of a host and a port")
    host, port = one
    if not _is_host(host) or not 0 < port < 65536:
        raise ValueError(f"bad address ({_shown(host)!r}, {port}): must be a host and a port")
    return Address(host, port)


def _is_pair(one: Any) -> bool:
    return (
        isinstance(one, (tuple, list))
        and len(one) == 2
        and isinstance(one[0], str)
        and isinstance(one[1], int)
        and not isinstance(one[1], bool)
    )


def _is_host(host: str) -> bool:
    """Whether this may be a name or an IP address: which ones there are, the system knows. A port alone is neither."""
    return bool(host) and not host.isdigit() and host.isprintable() and not set(host) & set(" @[]/")


def _read_url(url: str) -> tuple[list[Address], bool, str]:
    """The nodes of a URL, whether they speak TLS, and the token."""
    scheme, rest = url.split("://", 1)
    if f"{scheme.lower()}://" not in (PLAIN, TLS):
        raise ValueError(f"bad URL: must begin with {PLAIN} or {TLS}")  # what it begins with may have the token in it
    user, at, hosts = rest.rpartition("@")
    if at and not user.startswith(":"):
        raise ValueError(f"bad URL: must be {scheme}://:TOKEN@{hosts}")  # what it has for a user may be the token
    if not hosts.startswith("/"):
        hosts = hosts.removesuffix("/")
    return [_read_text(host) for host in hosts.split(",")], scheme.lower() == TLS[:-3], unquote(user[1:])


def _read_text(text: str) -> Address:
    path = text[len("unix:") :] if text.startswith("unix:") else text if text.startswith(("/", "./", "../")) else ""
    if path:
        return Address("", 0, path)
    host, port = text, ""
    if text.startswith("["):
        host, bracket, port = text[1:].partition("]")
        is_good = bool(bracket) and (not port or port.startswith(":"))
        port = port[1:] if port else str(DEFAULT_PORT)
    else:
        host, colon, port = text.partition(":")
        is_good = ":" not in port
        port = port if colon else str(DEFAULT_PORT)
    if not (is_good and _is_host(host) and port.isascii() and port.isdigit()):
        raise ValueError(f"bad address {_shown(text)!r}: must be host:port, [v6]:port or unix:/path")
    if not 0 < int(port) < 65536:
        raise ValueError(f"bad address {_shown(text)!r}: the port must be from 1 to 65535")
    return Address(host, int(port))


def _shown(text: str) -> str:
    """What may be shown of an address that cannot be read: not what stands before an @."""
    return text.rpartition("@")[2]
