"""Checks which hosts, ports and addresses a delivery may reach: no job may open internal services.

Names and ports are judged when a request is read, addresses when a socket is made for one, after names have been
resolved: then it does not matter how an address was written, which redirect led to it, or what a name server says the
second time. Addresses are allowed by what IANA's registries for special purposes leave over, not by a list of bad ones
that a standard library of some version knows.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final, Union

Address = Union[IPv4Address, IPv6Address]
Network = Union[IPv4Network, IPv6Network]

PRIVATE: Final = tuple(
    ip_network(each) for each in ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")
)
"""Networks of one's own (RFC 1918, 4193), and those behind a carrier's translator (RFC 6598)."""

METADATA: Final = frozenset(
    ip_address(each)
    for each in (
        "100.100.100.200",  # Alibaba
        "168.63.129.16",  # Azure, though it looks public
        "169.254.0.23",  # Tencent
        "169.254.169.254",  # most
        "169.254.170.2",  # Amazon, of containers
        "169.254.170.23",  # Amazon, of pods
        "192.0.0.192",  # Oracle
        "fd00:42::42",  # Scaleway
        "fd00:a9fe:a9fe::1",
        "fd00:c1::a9fe:a9fe",  # Oracle
        "fd00:ec2::23",
        "fd00:ec2::254",  # Amazon
        "fd20:ce::254",  # Google
        "fe80::a9fe:a9fe",  # OpenStack
    )
)
"""Where clouds hand out a machine's credentials: opened only by a network of just that address."""

_NAT64: Final = IPv6Network("64:ff9b::/96")
_SIX_TO_FOUR: Final = IPv6Network("2002::/16")
_GLOBAL_UNICAST: Final = IPv6Network("2000::/3")
"""All of IPv6 that is public so far."""

_SPECIAL: Final = tuple(
    ip_network(each)
    for each in (
        "0.0.0.0/8",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
        "2001::/23",  # Teredo, benchmarks, ORCHID
        "2001:db8::/32",
        "2002::/16",
        "3fff::/20",
    )
)
"""What else is not public: this host, loopback, link-local, protocols, examples, benchmarks, multicast, reserved."""


class NotAllowedError(OSError):
    """This may not be reached; says what, and why. An OSError, because connections are made where such are expected."""


class Guard:
    """What may be reached, as set by the operator of the sender.

    Attributes:
        allowed_hosts: patterns of names and addresses (`*.example.com`); empty: all hosts.
        forbidden_hosts: patterns of those that are forbidden even so.
        allowed_ports: empty: all ports.
        allowed_networks: those that are allowed beside the public ones.
        forbidden_networks: those that are forbidden in any case.
    """

    def __init__(
        self,
        *,
        allowed_hosts: Sequence[str] = (),
        forbidden_hosts: Sequence[str] = (),
        allowed_ports: Iterable[int] = (),
        allow_private: bool = False,
        allowed_networks: Sequence[Network] = (),
        forbidden_networks: Sequence[Network] = (),
    ) -> None:
        self.allowed_hosts: tuple[str, ...] = tuple(each.lower() for each in allowed_hosts)
        self.forbidden_hosts: tuple[str, ...] = tuple(each.lower() for each in forbidden_hosts)
        self.allowed_ports: frozenset[int] = frozenset(allowed_ports)
        self.allowed_networks: tuple[Network, ...] = (*allowed_networks, *(PRIVATE if allow_private else ()))
        self.forbidden_networks: tuple[Network, ...] = tuple(forbidden_networks)

    @property
    def reach(self) -> str:
        """Where requests may go, for people."""
        also = ", ".join(map(str, self.allowed_networks))
        return f"public addresses and to {also}" if also else "public addresses only (--allow-net allows others)"

    def check_host(self, host: str, port: int) -> None:
        """Check what a URL says.

        Args:
            host: in lower case, without a final dot and brackets.

        Raises:
            NotAllowedError: requests may not go there, at any address.
        """
        if self.allowed_hosts and not _matches(host, self.allowed_hosts):
            raise NotAllowedError(f"host {host} is not allowed")
        if _matches(host, self.forbidden_hosts):
            raise NotAllowedError(f"host {host} is forbidden")
        if self.allowed_ports and port not in self.allowed_ports:
            raise NotAllowedError(f"port {port} is not allowed")
        try:
            address = ip_address(host)
        except ValueError:
            return
        self.check_address(str(address))

    def check_address(self, text: str) -> None:
        """Check the address that a socket is about to be connected to.

        Args:
            text: as getaddrinfo gives it, perhaps with a zone.

        Raises:
            NotAllowedError: it may not be.
        """
        address = _unmapped(ip_address(text.partition("%")[0]))
        self._check(address, str(address))
        inner = _translated(address)
        if inner is not None:
            self._check(inner, f"{address} (which contains {inner})")

    def _check(self, address: Address, shown: str) -> None:
        if not self._allows(address):
            opened = "" if _in(address, self.forbidden_networks) else f"; --allow-net {address} allows it"
            raise NotAllowedError(f"address {shown} is forbidden{opened}")

    def _allows(self, address: Address) -> bool:
        if _in(address, self.forbidden_networks):
            return False
        if address in METADATA:
            return any(each.num_addresses == 1 and address in each for each in self.allowed_networks)
        return _in(address, self.allowed_networks) or _is_public(address)


def _matches(host: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(host, each) for each in patterns)


def _in(address: Address, networks: Sequence[Network]) -> bool:
    return any(each.version == address.version and address in each for each in networks)


def _is_public(address: Address) -> bool:
    return (
        not _in(address, _SPECIAL)
        and not _in(address, PRIVATE)
        and (address.version == 4 or address in _GLOBAL_UNICAST)
    )


def _unmapped(address: Address) -> Address:
    """The IPv4 address that a socket is connected to, where it is written as an IPv6 address."""
    return (address.ipv4_mapped or address) if isinstance(address, IPv6Address) else address


def _translated(address: Address) -> IPv4Address | None:
    """The IPv4 address at which a translator or a tunnel would deliver."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(int(address) & 0xFFFF_FFFF)
        if address in _SIX_TO_FOUR:
            return address.sixtofour
    return None
