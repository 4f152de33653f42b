"""New settings for a server that runs: what can fail is done before the first thing is changed.

Certificates are loaded, the token file is read, names are resolved, sockets are opened and the patterns of policies are
compiled in a thread, because each may take long. Then, on the event loop, nothing fails.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from beanstalk_server.server.front.addresses import name_of_address
from beanstalk_server.server.front.listener_policy import ListenerPolicy, accounts_of, listener_policy_of
from beanstalk_server.server.front.listeners import Listener, open_listener
from beanstalk_server.server.service import policies_of
from beanstalk_server.server.start_error import StartError
from beanstalk_server.settings.declaration import ConfigError
from beanstalk_server.settings.options import OPTIONS, RELOADED, Config
from beanstalk_server.settings.sections import ListenerConfig
from beanstalk_server.settings.system import http_mistakes

if TYPE_CHECKING:
    from beanstalk_server.access.accounts import Accounts
    from beanstalk_server.access.policies import Policies


class Prepared:
    """What takes effect next: everything is open, and good."""

    def __init__(self, accounts: Accounts | None) -> None:
        self.accounts = accounts
        self.listeners: list[
            tuple[Listener, ListenerPolicy]
        ] = []  # those that stay, and new ones, which listen already
        self.opened: list[Listener] = []  # the new ones
        self.policies: Policies | None = None
        self.changes: list[str] = []  # what is new in them, for the log

    def of(self, *, is_http: bool) -> list[tuple[Listener, ListenerPolicy]]:
        """The listeners for operators, or those for clients, with their listener policies."""
        return [each for each in self.listeners if each[1].is_http == is_http]

    def discard(self) -> None:
        """Close what has been opened: nothing takes effect."""
        for listener in self.opened:
            listener.close()
            listener.remove_path()


def prepare(
    config: Config,
    listeners: Sequence[Listener],
    *,
    make_context: Callable[[ListenerConfig], Any] | None = None,
    policies: Policies | None = None,
) -> Prepared:
    """Do everything that may fail.

    Args:
        listeners: those that are open. Those of systemd stay, in their order, with any addresses.
        make_context: as `listener_policy_of` has it, of listeners for clients.
        policies: those in effect.

    Raises:
        ConfigError: something fails; each line of the message is one mistake, and nothing has changed.
    """
    inherited = [each for each in listeners if each.inherited]
    names = [name_of_address(each.address) for each in inherited]
    configs = config.listeners_at(names) if inherited else config.all_listeners()
    prepared = Prepared(accounts_of(config))
    mistakes = http_mistakes(configs)
    left = [each for each in listeners if not each.inherited]
    for each in configs:
        listener = inherited.pop(0) if inherited else _take(left, each.address)
        try:
            if listener is None:
                listener = open_listener(each, config)
                prepared.opened.append(listener)
                listener.listen()
            elif listener.config.is_http != each.is_http:
                raise StartError(
                    f"listener {each.address}: protocol: cannot be changed by a reload: restart the server"
                )
            make = None if each.is_http else make_context
            listener_policy = listener_policy_of(each, name_of_address(listener.address), prepared.accounts, make)
        except StartError as error:
            mistakes.append(str(error))
            continue
        prepared.listeners.append((listener, listener_policy))
    if mistakes:
        prepared.discard()
        raise ConfigError(*mistakes)
    prepared.policies = policies_of(config, policies)
    if prepared.policies is not policies:
        from beanstalk_server.access.policies import differences  # most servers have none

        prepared.changes = differences(() if policies is None else policies.tubes, config.tubes)
    return prepared


def _take(left: list[Listener], address: str) -> Listener | None:
    """Remove the listener with this address from a list, and return it; None if there is none."""
    for listener in left:
        if listener.config.address == address:
            left.remove(listener)
            return listener
    return None


def left_for_later(old: Config, new: Config) -> list[str]:
    """The options that differ, and take effect only when the server starts."""
    return [
        each.name
        for each in OPTIONS
        if each.name not in RELOADED and getattr(old, each.name) != getattr(new, each.name)
    ]
