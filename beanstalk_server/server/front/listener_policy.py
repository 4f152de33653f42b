"""What a listener requires of its clients: PROXY header, TLS and authentication; and it finds their users.

A reload changes a policy in place, also for the clients that are connected.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from beanstalk_server.access.rights import User
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.declaration import BAD_OPTION
from beanstalk_server.settings.options import Config
from beanstalk_server.settings.sections import ListenerConfig

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts

NONE: Final = "none"
TOKEN: Final = "token"
CERTIFICATE: Final = "certificate"
PEER: Final = "peer"
LINK: Final = "link"  # another node has asked


class ListenerPolicy:
    """What one listener requires of its clients.

    Args:
        place: where it is, for the log.
    """

    def __init__(self, place: str = "") -> None:
        self.place = place
        self.accounts: Accounts | None = None  # finds users; None if there are none
        self.auth = NONE  # how users are known: NONE, TOKEN, CERTIFICATE, PEER or LINK
        self.closes_after_put = False  # a malformed put closes the connection
        self.carried = False  # its clients' sockets are in another process, which watches them, and counts them
        self.config: ListenerConfig  # what it is made of
        self.closed = False  # the listener is gone, and accepts no clients
        self.context: Any = None  # an ssl.SSLContext; None for plain connections
        self.failures = 0  # how many clients have been refused because of what they gave as a proof, or gave instead
        self.host = ""  # the name or address that its listener is given; "" for a UNIX socket
        self.is_http = False  # HTTP: each request authenticates itself, and some need no user
        self.is_link = False  # clients come through another node
        self.number = 0  # names it to I/O processes
        self.trusted: Sequence[Any] = ()  # the networks whose PROXY headers are believed
        self.user: User | None = None  # of every client without authentication; None: it has all rights
        self.wants_header = False  # a PROXY header comes first

    @property
    def asks(self) -> bool:
        """Whether anything comes before a client's commands: a header, a handshake, or the question who it is."""
        is_asked = self.auth != NONE and not (self.is_http and self.auth == TOKEN)
        return is_asked or self.wants_header or self.context is not None

    def become(self, other: ListenerPolicy) -> bool:
        """Take over the values of another policy; return whether pending connections may continue under them."""
        same = (
            self.auth == other.auth
            and self.wants_header == other.wants_header
            and self.trusted == other.trusted
            and _authorities(self.context) == _authorities(other.context)
        )
        self.accounts = other.accounts
        self.auth = other.auth
        self.closes_after_put = other.closes_after_put
        self.config = other.config
        self.context = other.context
        self.trusted = other.trusted
        self.user = other.user
        self.wants_header = other.wants_header
        return same

    def trusts(self, host: str) -> bool:
        """Whether a PROXY header from this address is believed."""
        import ipaddress  # here, because most servers never need it

        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        found: Any = getattr(address, "ipv4_mapped", None) or address
        return any(found in network for network in self.trusted)

    def answers_to(self, host: str) -> bool:
        """Whether a request of HTTP for this host and port is answered.

        Where nothing else keeps a browser out, a foreign name that resolves to this address (DNS rebinding) must not
        let a page of that name read the answer. A neighbour in the network can answer for names without a dot and for
        local domains (mDNS, LLMNR), so only addresses, `localhost` and configured names are good. Browsers always send
        a Host.
        """
        if self.auth != NONE or self.context is not None or self.wants_header or not self.host or host.startswith("["):
            return True
        name = host.partition(":")[0].rstrip(".").lower()
        return (
            name in ("", "localhost", self.host.lower())
            or name.rpartition(".")[2].isdigit()  # browsers take it for an IPv4 address or refuse it
            or name in self.config.hosts
        )

    # Finding the user of a client; None if the config has none

    def user_of_token(self, token: str) -> User | None:
        """The user whose token this is."""
        return None if self.accounts is None else self.accounts.by_token(token)

    def authenticate(self, token: str) -> User | None:
        """The same, for an admitted client: an unknown token counts as a failure."""
        user = self.user_of_token(token)
        if user is None:
            self.failures += 1
        return user

    def user_of_certificate(self, names: Sequence[str]) -> User | None:
        """The user that one of the names in a verified certificate names: the first that does."""
        if self.accounts is not None:
            for name in names:
                user = self.accounts.by_name(name)
                if user is not None:
                    return user
        return None

    def user_now(self, user: User) -> User | None:
        """The same user as the settings have it by now; None if it is gone."""
        return None if self.accounts is None else self.accounts.by_name(user.name)

    def user_of_uid(self, uid: int) -> User | None:
        """The user that a process of this user of the system is."""
        return None if self.accounts is None else self.accounts.by_uid(uid)


def _authorities(context: Any) -> Any:
    """Whose certificates a TLS context takes: None of clients, if it asks for none, and "" if there is no TLS."""
    if context is None:
        return ""
    return sorted(context.get_ca_certs(binary_form=True)) if context.verify_mode else None


def accounts_of(config: Config) -> Accounts | None:
    """The users in the settings; None if there are none, and no client is asked.

    Raises:
        ConfigError: the token file is bad.
    """
    if not config.users and not config.token_file:
        return None
    from beanstalk_server.access.accounts import Accounts  # most servers have no users
    from beanstalk_server.settings.token_file import users_of

    return Accounts(users_of(config))


def listener_policy_of(
    config: ListenerConfig,
    place: str,
    accounts: Accounts | None,
    make_context: Callable[[ListenerConfig], Any] | None = None,
) -> ListenerPolicy:
    """The listener policy that a listener's settings describe.

    Args:
        place: where it is, for messages.
        make_context: makes the TLS context of a listener with a certificate, if not from its files.

    Raises:
        StartError: a certificate cannot be used, or the system does not tell who is at the other end of a socket.
    """
    listener_policy = ListenerPolicy(place)
    listener_policy.accounts = accounts
    listener_policy.auth = config.auth
    listener_policy.closes_after_put = config.closes_after_put
    listener_policy.config = config
    listener_policy.is_http = config.is_http
    listener_policy.host = config.host
    listener_policy.wants_header = config.proxy_protocol
    if config.auth == PEER and not hasattr(socket, "SO_PEERCRED"):
        raise StartError(f"{place}: auth: 'peer' cannot be used on this system", BAD_OPTION)
    if config.trusted:
        import ipaddress  # here, because most servers never need it

        listener_policy.trusted = [ipaddress.ip_network(network, strict=False) for network in config.trusted]
    if config.user:
        listener_policy.user = None if accounts is None else accounts.by_name(config.user)
        if listener_policy.user is None:
            raise StartError(f"{place}: user: there is no user {config.user!r}", BAD_OPTION)
    if config.tls_cert:
        if make_context is None:
            from beanstalk_server.server.front import tls_context

            make_context = tls_context.make_context
        listener_policy.context = make_context(config)
    return listener_policy


def ways_of(config: ListenerConfig) -> str:
    """How a listener knows its users, for the log: "" where every client is admitted with all rights."""
    ways = ["HTTP"] if config.is_http else []
    if config.proxy_protocol:
        ways.append("PROXY")
    if config.tls_cert:
        ways.append("TLS with client certificates" if config.tls_client_ca else "TLS")
    if config.auth != NONE:
        ways.append(config.auth)
    if config.user:
        ways.append(f"user {config.user}")
    return ", ".join(ways)
