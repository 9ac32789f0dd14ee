"""Signatures: vectors made by Apache's own AclClientRPCHook, and signatures that must not verify."""

import base64
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.wire import (
    Credentials,
    RemotingCommand,
    RequestCode,
    is_signed_with,
    sign,
    signature_of,
)
from mqtrail.wire.headers import EXT_SIGNATURE, EXT_UNIQUE_KEY_QUERY
from mqtrail.wire.signature import signed_content

ALICE = Credentials(access_key="rocketmq2", secret_key="12345678")
SEND = {
    "a": "PG", "b": "TopicTest", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1700000000000", "h": "0",
    "i": "UNIQ_KEY\x01X\x02", "j": "0", "k": "false", "m": "false", "n": "broker-a",
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "ext", "body", "signature"),
    [
        (105, {"topic": "TopicTest"}, b"", "GeeGoP9mRvDhoVp4PD5omX0prgE="),
        (310, SEND, b"hello", "xpS2X5pR3eXfPqKxlBWjhgIPmYc="),
    ],
)
def test_signs_as_java(code: int, ext: dict[str, str], body: bytes, signature: str) -> None:
    """The signature is the one that Java's hook makes of the same fields and body."""
    command = RemotingCommand(code, dict(ext), body)
    sign(command, ALICE)
    assert command.ext[EXT_SIGNATURE] == signature
    assert is_signed_with(command, b"12345678")
    sign(command, ALICE)  # a retry
    assert command.ext[EXT_SIGNATURE] == signature


@pytest.mark.parametrize("field", ["b", "e", "i", "AccessKey", "new"])
def test_change_is_seen(field: str) -> None:
    """No field can be changed or added after signing."""
    command = RemotingCommand(310, dict(SEND), b"hello")
    sign(command, ALICE)
    command.ext[field] = "other"
    assert not is_signed_with(command, b"12345678")


def test_body_and_key_count() -> None:
    """Another body, another key or a missing signature does not verify."""
    command = RemotingCommand(310, dict(SEND), b"hello")
    sign(command, ALICE)
    assert not is_signed_with(command, b"12345679")
    command.body = b"hullo"
    assert not is_signed_with(command, b"12345678")
    del command.ext[EXT_SIGNATURE]
    assert not is_signed_with(command, b"12345678")


def test_token_is_signed() -> None:
    """A security token is sent and is part of the signed content, before the fields in lower case."""
    command = RemotingCommand(105, {"topic": "T"})
    sign(command, Credentials(access_key="ak", secret_key="12345678", security_token="st"))
    assert signed_content(command.ext, b"", command.version) == b"akstT"


def test_unique_key_query_is_left_out() -> None:
    """A query by unique key sends version 399, so that 4.9 and 5.x brokers leave out the same field."""
    command = RemotingCommand(RequestCode.QUERY_MESSAGE, {"topic": "T", EXT_UNIQUE_KEY_QUERY: "true"})
    sign(command, ALICE)
    assert command.version == 399
    assert signed_content(command.ext, b"", 399) == b"rocketmq2T"
    assert signed_content(command.ext, b"", 401) == b"rocketmq2trueT"
    assert is_signed_with(command, b"12345678")


def test_names_sort_as_java_does() -> None:
    """UTF-16 order: a name beyond the basic plane sorts before one at its end."""
    assert signed_content({"￿": "2", "\U0001f600": "1", "a": "0"}, b"", 479) == b"012"


def test_secrets_are_in_no_repr() -> None:
    """A logged config shows no secret."""
    text = repr(Credentials(access_key="ak", secret_key="sesame", security_token="token"))
    assert "ak" in text
    assert "sesame" not in text
    assert "token'" not in text.replace("security_token", "")


@given(st.binary(max_size=200), st.binary(max_size=300))
def test_is_hmac_sha1(secret_key: bytes, content: bytes) -> None:
    """For keys of any length, with cached hashes or without, the result equals hmac of the standard library."""
    for _ in range(2):
        wanted = hmac.digest(secret_key, content, "sha1")
        assert base64.b64decode(signature_of(content, secret_key)) == wanted
