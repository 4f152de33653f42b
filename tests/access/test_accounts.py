"""Accounts: users, found by what clients prove; and new tokens."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from beanstalk_server import UserConfig
from beanstalk_server.access.accounts import Accounts, hash_of_token, new_token
from beanstalk_server.access.rights import CONSUME, PRODUCE

BILLING, MAIL = "iZ0" + "Ab1-" * 10, "Kq7" + "xY2_" * 10  # as new_token makes them; workers must find the same tests


@pytest.fixture(scope="module")
def accounts():
    return Accounts(
        [
            UserConfig(name="billing", token_sha256=(hash_of_token(BILLING),), uid=(1000, 0), produce=("bill-*",)),
            UserConfig(name="mail", token_sha256=(hash_of_token(MAIL),), consume=("*",)),
            UserConfig(name="proxied"),
        ]
    )


def test_a_token_finds_its_user(accounts):
    assert accounts.by_token(BILLING).name == "billing"
    assert accounts.by_token(BILLING).rights("bill-1") == PRODUCE
    assert accounts.by_token(MAIL).everywhere == CONSUME


@given(st.text())
def test_another_token_finds_nobody(accounts, token):
    assert accounts.by_token(token) is None


@pytest.mark.parametrize("token", ["", "\udc80", "é", BILLING + " ", BILLING[:-1], BILLING.lower(), "x" * 10_000_000])
def test_a_malformed_token_is_just_wrong(accounts, token):
    assert accounts.by_token(token) is None


def test_the_hash_of_a_token_is_not_a_token(accounts):
    assert accounts.by_token(hash_of_token(BILLING)) is None


def test_a_name_and_a_uid_find_the_same_user(accounts):
    billing = accounts.by_token(BILLING)
    assert accounts.by_name("billing") is accounts.by_uid(0) is accounts.by_uid(1000) is billing
    assert accounts.by_name("proxied").name == "proxied"
    assert accounts.by_name("nobody") is accounts.by_uid(1) is None


def test_without_users_everybody_is_nobody():
    accounts = Accounts([])
    assert accounts.by_token("x") is accounts.by_name("") is accounts.by_uid(0) is None


def test_a_new_token_has_256_bits_that_go_through_a_command_line():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(len(token) == 43 and set(token) <= {*string.ascii_letters, *string.digits, *"-_"} for token in tokens)


def test_nothing_secret_is_shown(accounts):
    digest = hash_of_token(BILLING)
    assert digest not in repr(accounts) + repr(accounts.by_name("billing"))
    assert digest not in repr(UserConfig(name="billing", token_sha256=(digest,)))
