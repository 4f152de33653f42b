"""A token file: the tokens of users with all rights."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from beanstalk_server import Config, ConfigError, UserConfig
from beanstalk_server.access.accounts import Accounts, hash_of_token, new_token
from beanstalk_server.access.rights import ANY_RIGHT
from beanstalk_server.settings import token_file
from beanstalk_server.settings.token_file import users_of

HASH, ANOTHER, THIRD = "ab" * 32, "cd" * 32, "ef" * 32


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tokens"


def read(path):
    return token_file.read(str(path))


def test_each_name_is_a_user_and_each_token_without_one(path):
    path.write_text(f"# tokens\n\n{HASH}\n  {ANOTHER.upper()}   mail server # 1 \r\n{THIRD}\tmail server # 1\n")
    users = read(path)
    assert [(user.name, user.token_sha256) for user in users] == [
        ("token-abababab", (HASH,)),
        ("mail server # 1", (ANOTHER, THIRD)),
    ]
    assert {user.produce + user.consume + user.inspect + user.admin for user in users} == {("*",) * 4}


def test_a_token_of_the_file_gives_all_rights(path):
    token = new_token()
    path.write_text(hash_of_token(token))
    accounts = Accounts(users_of(Config(token_file=str(path))))
    assert accounts.by_token(token).everywhere == ANY_RIGHT
    assert accounts.by_token(new_token()) is None


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", " is empty: must have a line with the SHA-256 of a token"),
        (b"# nothing\n", " is empty: must have a line with the SHA-256 of a token"),
        (
            b"\nsecret-token mail\n",
            ", line 2: bad value (not shown, 12 characters): "
            "must be the 64 hexadecimal digits that `beanstalk-server token` prints",
        ),
        (HASH.encode() + b" \xff", ", line 1: bad name: must be a name: 1 to 200 printable characters"),
        (b"#" * (4 << 20) + b"#", " is too long: must be at most 4194304 bytes"),
    ],
)
def test_a_bad_file(path, content, said):
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert str(caught.value) == f"--token-file: '{path}'{said}"


def test_a_file_that_cannot_be_read(path):
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        read(path)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        read(path.parent)


def test_every_bad_line_is_named_at_once(path):
    path.write_text(f"x\n{HASH}\ny\n")
    with pytest.raises(ConfigError, match=r"line 1: .*\n.*line 3: "):
        read(path)


def test_a_token_twice_or_a_name_that_a_user_has_is_refused(path):
    path.write_text(f"{HASH} mail\n{HASH} bill\n")
    config = Config(token_file=str(path), users=(UserConfig(name="mail"),))
    with pytest.raises(ConfigError, match=r'duplicate user "mail"\nuser "bill": token-sha256: duplicate token'):
        users_of(config)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200))
@example(b"\xef\xbb\xbf" + HASH.encode())
def test_any_file_gives_users_or_a_message(path, content):
    path.write_bytes(content)
    try:
        users, said = read(path), []
    except ConfigError as error:
        users, said = [], str(error).split("\n")
    assert all(isinstance(user, UserConfig) for user in users)
    assert all(line.startswith(f"--token-file: '{path}'") for line in said)
