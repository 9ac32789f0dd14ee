"""Signatures of requests: they prove the sender and that nothing was changed. One scheme for 4.x ACL and 5.x auth.

    content    the values of all ext fields but Signature, in the order of their names, then the body
    Signature  base64 of HMAC-SHA1(secret key, content)

Clients up to 4.9.3 do not sign `_UNIQUE_KEY_QUERY`, so checks omit it for requests of their versions. Brokers of 4.x
always omit it; brokers from 5.1 decide by the request's version. So `sign` omits it and sends version 399, which both
accept.

Source: AclClientRPCHook, AclSigner, AclUtils.combineRequestContent, apache/rocketmq client/ and acl/.
"""

import hashlib
import hmac
from binascii import b2a_base64
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from .codes import VERSION_UNIQUE_KEY_UNSIGNED
from .command import RemotingCommand
from .errors import InvalidParameter
from .headers import EXT_ACCESS_KEY, EXT_SIGNATURE, EXT_UNIQUE_KEY_QUERY
from .settings import setting

__all__ = [
    "Credentials",
    "is_signed_with",
    "sign",
    "signature_of",
    "without_signature",
]

EXT_SECURITY_TOKEN: Final = "SecurityToken"
KEYS_KEPT_MAX: Final = 1_024  # keys whose initial hashes are cached
_OF_SIGNATURE: Final = frozenset({EXT_ACCESS_KEY, EXT_SIGNATURE, EXT_SECURITY_TOKEN})

_BLOCK_SIZE: Final = 64  # bytes, of SHA-1 (RFC 2104)
_INNER: Final = bytes(byte ^ 0x36 for byte in range(256))
_OUTER: Final = bytes(byte ^ 0x5C for byte in range(256))


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """A client's identity. Secrets are not in the repr, so never in a log."""

    access_key: str = setting("", "account of an ACL file, or user of 5.x", like="accessKey")
    secret_key: str = setting(
        "", "secret key of the account, or password of the user; never logged", like="secretKey", secret=True
    )
    security_token: str = setting("", "security token of a temporary key", like="securityToken", secret=True)

    def __post_init__(self) -> None:
        """Reject a key without its secret, or the reverse. InvalidParameter shows no secret."""
        if bool(self.access_key) != bool(self.secret_key):
            found, missing = ("access_key", "secret_key") if self.access_key else ("secret_key", "access_key")
            raise InvalidParameter(f"found {found} without {missing}, expected both or none")


def java_order(name: str) -> bytes:
    """Return the key that sorts names as Java's String does: by UTF-16 code unit."""
    return name.encode("utf-16-be", "surrogatepass")


def signed_content(ext: Mapping[str, str], body: bytes, version: int) -> bytes:
    """Return the bytes that a request's signature covers."""
    names = sorted(ext) if "".join(ext).isascii() else sorted(ext, key=java_order)
    leaves_out = version <= VERSION_UNIQUE_KEY_UNSIGNED
    values = [
        ext[name] for name in names if name != EXT_SIGNATURE and not (leaves_out and name == EXT_UNIQUE_KEY_QUERY)
    ]
    return "".join(values).encode("utf-8", "replace") + body


def signature_of(content: bytes, secret_key: bytes) -> bytes:
    """Return the signature as the ext field holds it: base64, 28 ASCII bytes."""
    inner, outer = _begun(secret_key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(content)
    outer.update(inner.digest())
    return b2a_base64(outer.digest(), newline=False)


@lru_cache(maxsize=KEYS_KEPT_MAX)
def _begun(secret_key: bytes) -> tuple[Any, Any]:
    """Return the two hashes of HMAC with the key already added: copying them takes half the time of hmac.digest."""
    key = hashlib.sha1(secret_key).digest() if len(secret_key) > _BLOCK_SIZE else secret_key
    key = key.ljust(_BLOCK_SIZE, b"\0")
    return hashlib.sha1(key.translate(_INNER)), hashlib.sha1(key.translate(_OUTER))


def sign(command: RemotingCommand, credentials: Credentials) -> None:
    """Put access key, token and signature into the command's ext. The command must not change afterwards."""
    ext = command.ext
    ext.pop(EXT_SIGNATURE, None)  # a retry signs the same command again
    ext[EXT_ACCESS_KEY] = credentials.access_key
    if credentials.security_token:
        ext[EXT_SECURITY_TOKEN] = credentials.security_token
    if EXT_UNIQUE_KEY_QUERY in ext:
        command.version = min(command.version, VERSION_UNIQUE_KEY_UNSIGNED)
    content = signed_content(ext, command.body, command.version)
    ext[EXT_SIGNATURE] = signature_of(content, credentials.secret_key.encode()).decode("ascii")


def without_signature(ext: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of a request without access key, token and signature, to pass them on.

    A signature covers neither the request code nor the names of fields. Whoever gets one can use it for another
    request with the same values.
    """
    return {name: value for name, value in ext.items() if name not in _OF_SIGNATURE}


def is_signed_with(command: RemotingCommand, secret_key: bytes) -> bool:
    """Return whether the command is signed with that key, compared in constant time."""
    given = command.ext.get(EXT_SIGNATURE)
    if given is None:
        return False
    wanted = signature_of(signed_content(command.ext, command.body, command.version), secret_key)
    return hmac.compare_digest(wanted, given.encode("utf-8", "replace"))
