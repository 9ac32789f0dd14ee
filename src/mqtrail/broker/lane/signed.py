"""Signed requests in the lane: the permission is looked up once, the signature is verified for each request.

The lane serves only JSON headers with exactly the fields below, so it builds the signed content without sorting.
`Access.check` accepts every request that is accepted here; all others go to `handle`.

Source: wire.signature; SendMessageRequestHeaderV2, PullMessageRequestHeader, apache/rocketmq remoting/.
"""

import hmac
from typing import Any, Final, Literal

import msgspec

from mqtrail.wire import EXT_ACCESS_KEY, Peer, RemotingCommand, RequestCode, signature_of

from ..access import Access
from .headers import Decode, Kind, PullExt, SendFlag, _Boolean, _False, _Opaque, _QueueNums, _Strict, _Zero

KEYS_KEPT_MAX: Final = 4_096  # cached permissions; one more drops all


class _SignedSend(_Strict):
    """310 and 320, signed. All fields are required, because they are signed."""

    a: str
    b: str
    c: str
    d: _QueueNums
    e: str
    f: SendFlag
    g: str
    h: _Zero
    i: str
    j: _Zero
    k: _Boolean
    m: _Boolean
    access_key: str = msgspec.field(name="AccessKey")
    signature: str = msgspec.field(name="Signature")
    n: str = ""
    token: str = msgspec.field(name="SecurityToken", default="")

    def content(self) -> str:
        return (
            f"{self.access_key}{self.token}{self.a}{self.b}{self.c}{self.d}{self.e}{self.f}{self.g}{self.h}{self.i}"
            f"{self.j}{self.k}{self.m}{self.n}"
        )


class SignedSendExt(_SignedSend):
    """310, signed."""

    m: _False


class SignedBatchExt(_SignedSend):
    """320, signed."""

    f: _Zero


class SignedPullExt(PullExt, forbid_unknown_fields=True, kw_only=True):
    """11, signed."""

    sub_version: str
    access_key: str = msgspec.field(name="AccessKey")
    signature: str = msgspec.field(name="Signature")
    token: str = msgspec.field(name="SecurityToken", default="")

    def content(self) -> str:
        return (
            f"{self.access_key}{self.token}{self.bname}{self.commit_offset}{self.consumer_group}"
            f"{self.expression_type or ''}{self.max_msg_bytes or ''}{self.max_msg_nums}{self.queue_id}"
            f"{self.queue_offset}{self.sub_version}{self.subscription or ''}{self.suspend_timeout_millis}"
            f"{self.sys_flag}{self.topic}"
        )


class SignedSendHeader(_Strict):
    """A whole header of 310."""

    code: Literal[310]
    extFields: SignedSendExt
    opaque: _Opaque
    flag: Literal[0]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


class SignedBatchHeader(_Strict):
    """A whole header of 320."""

    code: Literal[320]
    extFields: SignedBatchExt
    opaque: _Opaque
    flag: Literal[0]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


class SignedPullHeader(_Strict):
    """A whole header of 11."""

    code: Literal[11]
    extFields: SignedPullExt
    opaque: _Opaque
    flag: Literal[0]
    language: str = "JAVA"
    version: int = 0
    serializeTypeCurrentRPC: str = ""


SIGNED_HEADERS: Final[dict[bytes, tuple[Kind, bool, Decode]]] = {
    b'{"code":310,': (Kind.SEND, True, msgspec.json.Decoder(SignedSendHeader).decode),
    b'{"code":320,': (Kind.BATCH, True, msgspec.json.Decoder(SignedBatchHeader).decode),
    b'{"code":11,"': (Kind.PULL, False, msgspec.json.Decoder(SignedPullHeader).decode),
}
"""JSON_HEADERS for brokers with access control."""


class Signatures:
    """Verifies the signatures of the lane's requests."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._version = -1
        self._keys: dict[tuple[str, str, int, str, str], bytes | None] = {}

    def hold(self, peer: Peer, kind: int, ext: Any, body: bytes) -> bool:
        """Return whether the lane may serve a request of SIGNED_HEADERS. False: `handle` decides."""
        if self._access.version != self._version:
            self._version = self._access.version
            self._keys.clear()
        if kind == Kind.PULL:
            learned = (peer.address.ip, ext.access_key, kind, ext.consumer_group, ext.topic)
        else:
            learned = (peer.address.ip, ext.access_key, kind, ext.a, ext.b)
        try:
            key = self._keys[learned]
        except KeyError:
            key = self._learn(peer, learned)
        if key is None:
            return False
        given = ext.signature
        return given.isascii() and hmac.compare_digest(
            signature_of(ext.content().encode("utf-8", "replace") + body, key), given.encode()
        )

    def _learn(self, peer: Peer, learned: tuple[str, str, int, str, str]) -> bytes | None:
        """Look up the account and key that such a request must be signed with, and cache the answer."""
        _, access_key, kind, group, topic = learned
        if kind == Kind.PULL:
            code, ext = RequestCode.PULL_MESSAGE, {"consumerGroup": group, "topic": topic}
        else:
            code = RequestCode.SEND_MESSAGE_V2 if kind == Kind.SEND else RequestCode.SEND_BATCH_MESSAGE
            ext = {"a": group, "b": topic}
        key = self._access.secret_key(peer, RemotingCommand(code, {**ext, EXT_ACCESS_KEY: access_key}))
        if len(self._keys) >= KEYS_KEPT_MAX:
            self._keys.clear()
        self._keys[learned] = key
        return key
