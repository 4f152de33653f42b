"""Signs deliveries according to Standard Webhooks: a receiver with the secret can verify the sender and the time.

    webhook-id: msg_2KWPBgLlAfxdpx2AI54pPJ85f4W
    webhook-timestamp: 1674087231
    webhook-signature: v1,K5oZfzN95Z9UVu1EsfQmfVNQhnkZ2pj9o9NDN/H/pI4=

A file of secrets has a pattern on each line and the secrets of those it matches, separated by blanks: several while one
is replaced, and the delivery is signed with each. The first line that matches counts. A pattern is of hosts, or of
hosts and paths, which are matched apart: no path can pass for a host. The case of a host does not count, that of a path
does. So a job cannot choose a secret, and what one receiver is sent proves nothing to another:

    hooks.example.com       whsec_bmV3IHNlY3JldCwgbG9uZyBlbm91Z2gu whsec_b2xkIHNlY3JldCwgbG9uZyBlbm91Z2gu
    shared.example.net/a/*  whsec_dGhlIHNlY3JldCBvZiBjdXN0b21lciBh
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import hashlib
import hmac
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from beanstalk_client.deliver.request import decode_unreserved

PREFIX: Final = "whsec_"

SHORTEST_SECRET: Final = 24
LONGEST_SECRET: Final = 64
"""Bytes, as the specification has them."""


class SecretsError(ValueError):
    """A file of secrets cannot be used; says which line, and why, and shows no secret."""


class Secrets:
    """Which secrets sign what goes where."""

    def __init__(self, lines: Sequence[tuple[str, str, tuple[bytes, ...]]] = ()) -> None:
        """Take patterns of a host and a path, and the secrets of what they match; the first that match count."""
        self._lines = tuple(lines)

    def __repr__(self) -> str:
        return f"<Secrets with {len(self._lines)} patterns>"

    @classmethod
    def parse(cls, text: str) -> Secrets:
        """Read a file of secrets.

        Raises:
            SecretsError: a line of it is bad, or it has none.
        """
        lines = []
        for number, line in enumerate(text.splitlines(), 1):
            words = line.split()
            if not words or words[0].startswith("#"):
                continue
            if words[0].startswith(PREFIX) or len(words) == 1:
                raise SecretsError(f"line {number}: must have a pattern of hosts, then one or more secrets")
            host, slash, path = words[0].partition("/")
            pattern = slash + decode_unreserved(path) if slash else "*"
            lines.append((host.lower(), pattern, tuple(_secret(word, number) for word in words[1:])))
        if not lines:
            raise SecretsError("no secrets: each line must have a pattern of hosts, then one or more secrets")
        return cls(lines)

    def of(self, url: str, host: str) -> tuple[bytes, ...]:
        """The secrets that sign what goes to a URL; none: it is not signed.

        Args:
            url: as `check_url` returns it.
            host: that of the URL, in lower case.
        """
        path = urlsplit(url).path or "/"
        for hosts, paths, secrets in self._lines:
            if fnmatch.fnmatchcase(host, hosts) and fnmatch.fnmatchcase(path, paths):
                return secrets
        return ()


def headers(id: str, timestamp: int, body: bytes, secrets: Sequence[bytes]) -> dict[str, str]:
    """The header fields of a delivery.

    Args:
        id: the same in each attempt.
        timestamp: when this attempt is made, in seconds since 1970.
        secrets: each signs; with none, the id and the time are sent all the same.
    """
    fields = {"webhook-id": id, "webhook-timestamp": str(timestamp)}
    if secrets:
        signed = b"%s.%d.%s" % (id.encode(), timestamp, body)
        fields["webhook-signature"] = " ".join(
            "v1," + base64.b64encode(hmac.new(secret, signed, hashlib.sha256).digest()).decode() for secret in secrets
        )
    return fields


def _secret(word: str, number: int) -> bytes:
    wanted = (
        f"line {number}: a secret must be {PREFIX} followed by {SHORTEST_SECRET} to {LONGEST_SECRET} bytes in base64"
    )
    if not word.startswith(PREFIX):
        raise SecretsError(wanted)
    try:
        secret = base64.b64decode(word[len(PREFIX) :], validate=True)
    except (ValueError, binascii.Error):
        raise SecretsError(wanted) from None
    if not SHORTEST_SECRET <= len(secret) <= LONGEST_SECRET:
        raise SecretsError(f"{wanted}; this one has {len(secret)}")
    return secret
