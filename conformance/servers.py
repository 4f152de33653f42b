"""Describes a server and the conversations that it can run, and restarts it."""

from __future__ import annotations

import contextlib
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import cached_property
from typing import Final

from .address import Address, connect
from .conversation import Conversation
from .extensions import needed_by

STARTS_WITHIN: Final = 30.0
"""Seconds that the restart command may take, and seconds until the server answers after it."""

ANSWERS_WITHIN: Final = 20.0
"""Seconds until a server must have answered a question about itself."""

NOT_OFFERED: Final = "not offered: "
"""How the reason begins that names extensions."""

PAUSE: Final = 0.02
"""Seconds between two attempts to reach a server that starts."""

LONGEST_ANSWER: Final = 1 << 20
"""The bytes of statistics that are read at most."""


class UnusableError(Exception):
    """No conversation can be run against a server; the message says why."""


class Server:
    """A server that listens on an address.

    Args:
        restart_command: for the shell: it restarts the server, with its jobs. "": there is none.

    Attributes:
        extensions: what the server answers to list-extensions: the names, each with its version.
        ours: whether it has extensions, as this server does.
        tubes_left: tubes that were left where none should be.
        old: whether it answers as beanstalkd 1.12: without quotes around strings in statistics.
    """

    def __init__(self, address: Address, restart_command: str = "") -> None:
        self.address = address
        self.tubes_left: set[bytes] = set()
        self._restart_command = restart_command
        stats = self.stats()
        try:
            self.version = stats["version"].strip('"')
        except KeyError:
            raise UnusableError(f"{address}: stats has no `version`") from None
        # Not by the version: forks of beanstalkd have versions of their own.
        self.old = not any(stats.get(key, "").startswith('"') for key in ("id", "hostname", "os", "platform"))
        self.ours = self.has_extensions(stats)
        self.name = stats.get("server", "").strip('"') or f"version {self.version}"

    @cached_property
    def extensions(self) -> dict[str, int]:
        listed = self._ask(b"list-extensions") or {}
        return {name: int(version) for name, version in listed.items() if re.fullmatch("[0-9]{1,9}", version)}

    def has_extensions(self, stats: dict[str, str]) -> bool:  # noqa: ARG002 a server that is started is not asked
        """Whether it has some of docs/protocol-extensions.md."""
        return bool(self.extensions)

    def answers_to(self, guard: str) -> bool:
        """Whether a line with this guard (`conversation.GUARDS`, or none) is meant for this server."""
        return {
            "": True,
            "ours": self.ours,
            "beanstalkd": not self.ours,
            "before 1.13": self.old,
            "since 1.13": not self.old,
        }[guard]

    def reason_against(self, conversation: Conversation) -> str:
        """Why a conversation cannot be run against this server; "" if it can."""
        missing = [
            name if version == 1 else f"{name} in version {version}"
            for name, version in needed_by(conversation).items()
            if self.extensions.get(name, 0) < version
        ]
        if missing:
            return NOT_OFFERED + ", ".join(missing)
        if any(step.action == "signal" for step in conversation.steps):
            return "needs to send a signal to the server"
        if conversation.restarts:
            return "" if self._restart_command else "needs --restart"
        if conversation.memory:
            return "needs a server with a memory limit"
        if conversation.options:
            return f"needs a server with {' '.join(conversation.options)}"
        if conversation.options is not None:
            return "needs a server that no client has used"
        if not needed_by(conversation) and {"ours", "beanstalkd"} & conversation.guards:
            return f"servers may differ: {conversation.differs}"
        return "" if self.answers_to(conversation.only) else f"the conversation has `only: {conversation.only}`"

    def stats(self) -> dict[str, str]:
        """Its answer to `stats`, by key.

        Raises:
            OSError: it cannot be reached.
            UnusableError: it is not a beanstalk server.
        """
        stats = self._ask(b"stats")
        if stats is None:
            raise UnusableError(f"{self.address}: its reply to `stats` is not that of a beanstalk server")
        return stats

    def _ask(self, command: bytes) -> dict[str, str] | None:
        """The mapping that a command is answered with; None if the answer is anything else, or late."""
        deadline = time.monotonic() + ANSWERS_WITHIN
        came = b""
        with contextlib.closing(connect(self.address, ANSWERS_WITHIN)) as sock:
            sock.sendall(command + b"\r\n")
            while not (head := re.match(rb"OK (\d{1,9})\r\n", came)) or len(came) < head.end() + int(head[1]) + 2:
                if (b"\n" in came and not head) or len(came) > LONGEST_ANSWER:
                    return None
                sock.settimeout(max(0.001, deadline - time.monotonic()))
                try:
                    piece = sock.recv(1 << 16)
                except OSError:
                    return None
                if not piece:
                    return None
                came += piece
        lines = came[head.end() :].decode(errors="replace").splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    @contextlib.contextmanager
    def closing(self, count: int = 1) -> Iterator[None]:  # noqa: ARG002 the server of a process needs it
        """Close `count` connections inside; on exit, the server has closed them, too, if that can be observed."""
        yield

    def drain(self) -> None:
        """Put it into drain mode."""
        raise NotImplementedError

    def restart(self) -> None:
        """Run the restart command, and wait until another process answers.

        Raises:
            UnusableError: the command fails, or no other process answers.
        """
        before = self._instance()
        with tempfile.TemporaryFile() as said:
            try:
                done = subprocess.run(
                    self._restart_command,
                    shell=True,
                    stdin=subprocess.DEVNULL,
                    stdout=said,  # a pipe would stay open as long as a server that the command leaves running
                    stderr=said,
                    timeout=STARTS_WITHIN,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise UnusableError(f"--restart: the command did not exit within {STARTS_WITHIN:g} s") from None
            said.seek(0)
            words = said.read(1000).decode(errors="replace").strip()
        if done.returncode:
            raise UnusableError(f"--restart: the command exited with status {done.returncode}: {words}")
        deadline = time.monotonic() + STARTS_WITHIN
        while (now := self._instance()) in (None, before):
            if time.monotonic() > deadline:
                what = "no server answers" if now is None else "the same process answers (`id` and `pid` in stats)"
                raise UnusableError(f"--restart: {what}, {STARTS_WITHIN:g} s after the command: {words}")
            time.sleep(PAUSE)

    def _instance(self) -> tuple[str, str] | None:
        """What tells this process of the server from an earlier one; None if it does not answer."""
        try:
            stats = self.stats()
        except (OSError, UnusableError):
            return None
        return stats.get("id", ""), stats.get("pid", "")
