"""Describes a client to the leader that serves it: its name, user, tubes and mode."""

from __future__ import annotations

import json
from typing import NamedTuple

from beanstalk_server.tube_names import is_name


class Opening(NamedTuple):
    """Who a client is, and what it has told the server so far."""

    name: str
    """As the log calls it."""
    user: str | None
    """The name of its user; None without a user: it has all rights."""
    used: str
    """The tube that it uses; "" if that is at another shard."""
    watched: list[str]
    """The tubes that it watches, in their order, each as `watch` names it: perhaps with its weight."""
    counted: bool = True
    """Whether it counts among the connections there. One that several shards serve counts at one of them."""
    mode: int = 0
    """How they are served, as the modes are numbered."""
    client_name: str = ""
    """The name that it has given itself with client-name, or ""."""

    def encode(self) -> bytes:
        return json.dumps(self._asdict(), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, payload: bytes) -> Opening:
        """Parse the payload of an OPEN frame.

        Raises:
            ValueError: it is invalid.
        """
        try:
            found = json.loads(payload)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(found, dict):
            raise ValueError("expected a JSON object")
        name, user, used, watched = (found.get(key) for key in ("name", "user", "used", "watched"))
        if not isinstance(name, str) or not (user is None or isinstance(user, str)) or not isinstance(used, str):
            raise ValueError("name, user or used: expected a string")
        if not name.isprintable():  # it is for the log
            raise ValueError("name: not printable")
        if not isinstance(watched, list) or not all(isinstance(tube, str) for tube in watched):
            raise ValueError("watched: expected a list of strings")
        counted = found.get("counted")
        if not isinstance(counted, bool):
            raise ValueError("counted: expected a boolean")
        mode = found.get("mode")
        if isinstance(mode, bool) or not isinstance(mode, int):
            raise ValueError("mode: expected an integer")
        client_name = found.get("client_name", "")
        if not isinstance(client_name, str) or (client_name and not is_name(client_name)):
            raise ValueError("client_name: expected a name")
        return cls(name, user, used, watched, counted, mode, client_name)
