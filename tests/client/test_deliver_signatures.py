"""Signatures of deliveries, verified by the library of Standard Webhooks."""

import base64
import json
import time

import pytest
from beanstalk_client.deliver.signatures import Secrets, SecretsError, headers
from standardwebhooks import Webhook, WebhookVerificationError


def secret(name):
    return "whsec_" + base64.b64encode(name.encode().ljust(24, b".")).decode()


NEW, OLD, OTHER = secret("new"), secret("old"), secret("other")
BODY = json.dumps({"type": "order.paid", "größe": 17}).encode()
LINES = f"""
# comments, and lines that are empty, do not count
hooks.example.com  {NEW} {OLD}
shared.example.net/a/*  {NEW}
shared.example.net/b/*	{OLD}
*.example.org {OTHER}
Cased.Example/%41cme/*  {NEW} {OLD}
cased.example/acme/*  {NEW}
*.example.com/a/*  {NEW}
"""


def sent(url, host, text=LINES):
    return headers("msg_1", int(time.time()), BODY, Secrets.parse(text).of(url, host))


@pytest.mark.parametrize("one", [NEW, OLD])
def test_a_receiver_that_knows_one_of_the_secrets_verifies(one):
    fields = sent("https://hooks.example.com/x", "hooks.example.com")
    assert Webhook(one).verify(BODY, fields) == json.loads(BODY)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(BODY, fields)
    with pytest.raises(WebhookVerificationError):
        Webhook(one).verify(BODY + b" ", fields)


def test_the_signature_is_that_of_the_library():
    fields = headers("msg_1", 1_700_000_000, BODY, Secrets.parse(f"* {NEW}").of("https://a/", "a"))
    from datetime import UTC, datetime

    assert fields == {
        "webhook-id": "msg_1",
        "webhook-timestamp": "1700000000",
        "webhook-signature": Webhook(NEW).sign("msg_1", datetime.fromtimestamp(1_700_000_000, UTC), BODY.decode()),
    }


@pytest.mark.parametrize(
    ("url", "host", "count"),
    [
        ("https://hooks.example.com", "hooks.example.com", 2),
        ("https://HOOKS.example.com/a", "hooks.example.com", 2),
        ("https://shared.example.net/a/x?y", "shared.example.net", 1),
        ("https://shared.example.net/c", "shared.example.net", 0),
        ("https://evil.example/shared.example.net/a/x", "evil.example", 0),
        ("https://a.example.org/", "a.example.org", 1),
        ("https://example.org/", "example.org", 0),
        ("https://cased.example/Acme/x", "cased.example", 2),
        ("https://cased.example/acme/x", "cased.example", 1),
        ("https://x.example.com/a/x", "x.example.com", 1),
        ("https://evil.example/.example.com/a/x", "evil.example", 0),  # a path never passes for a host
    ],
)
def test_a_line_is_found_by_host_and_path(url, host, count):
    fields = sent(url, host)
    assert len(fields.get("webhook-signature", "").split()) == count
    assert fields["webhook-id"] == "msg_1"


def test_the_first_line_that_matches_counts():
    assert Secrets.parse(f"a.example {NEW}\n* {OLD}").of("https://a.example/", "a.example") == (
        base64.b64decode(NEW[6:]),
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no secrets: each line must have"),
        ("# nothing", "no secrets: each line must have"),
        (f"a.example {NEW}\nb.example", "line 2: must have a pattern"),
        (NEW, "line 1: must have a pattern"),
        (f"{NEW} {OLD}", "line 1: must have a pattern"),
        (
            "a.example hunter2hunter2hunter2hunter2",
            "line 1: a secret must be whsec_ followed by 24 to 64 bytes in base64",
        ),
        ("a.example whsec_hunter2!", "line 1: a secret must be"),
        ("a.example whsec_aHVudGVyMg==", "this one has 7"),
        ("a.example whsec_" + base64.b64encode(b"h" * 65).decode(), "this one has 65"),
    ],
)
def test_a_bad_file_is_refused_and_shows_no_secret(text, said):
    with pytest.raises(SecretsError, match=said) as refused:
        Secrets.parse(text)
    assert "hunter2" not in str(refused.value) and NEW not in str(refused.value)


def test_secrets_are_not_shown():
    assert repr(Secrets.parse(LINES)) == "<Secrets with 7 patterns>"
