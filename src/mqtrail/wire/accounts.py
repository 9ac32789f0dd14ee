"""Accounts of the servers that brokers register with: which account signed a request, and what it may do.

A request proves its account by the same signature that brokers check (AccessKey, Signature: `signature`). The signature
covers the values of a request's fields and its body, but neither its code nor a time. So an attacker who reads a signed
request on the network can replay it. TLS prevents that (docs/how-to/acl.md).

RocketMQ's name servers and controllers check nothing; its brokers sign with innerClientAuthenticationCredentials since
5.3. Source of the signing side: BrokerOuterAPI, AclClientRPCHook, apache/rocketmq 5.3.3.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from .command import RemotingCommand
from .errors import NoPermission
from .headers import EXT_ACCESS_KEY
from .signature import is_signed_with

__all__ = ["AccountKey", "Accounts", "Level", "check_account", "no_accounts"]


class Level(IntEnum):
    """The level that a request needs or an account has. A higher level includes the lower ones."""

    NONE = 0  # no account
    ACCOUNT = 1  # any account
    BROKER = 2  # an account that brokers and controllers sign with
    ADMIN = 3  # an administrator's account


@dataclass(frozen=True, slots=True)
class AccountKey:
    """A secret key and its level. One access key may have several, at different brokers."""

    secret_key: bytes = field(repr=False)
    level: Level


Accounts = Callable[[str], Iterable[AccountKey]]
"""access key -> its secret keys, none for an unknown one."""


def no_accounts(access_key: str) -> Iterable[AccountKey]:
    """Return no keys: the look-up of a server without accounts."""
    return ()


def check_account(command: RemotingCommand, needed: Level, accounts: Accounts, server: str) -> None:
    """Check that an account of this level signed a request. NoPermission: none did. server: who checks."""
    level = _level_of(command, accounts, server)
    if level < needed:
        raise NoPermission(
            f"request code {command.code} needs the account of {_HOLDERS[needed]}: found access key "
            f"{command.ext[EXT_ACCESS_KEY]!r}, which is the account of {_HOLDERS[level]}"
        )


def _level_of(command: RemotingCommand, accounts: Accounts, server: str) -> Level:
    access_key = command.ext.get(EXT_ACCESS_KEY, "")
    if not access_key:
        raise NoPermission(
            f"request code {command.code} needs a signature: found no AccessKey; sign with an access key and a "
            "secret key (a broker: innerClientAuthenticationCredentials)"
        )
    found = list(accounts(access_key))
    if not found:
        raise NoPermission(f"found access key {access_key!r}, which this {server} does not know")
    levels = [account.level for account in found if is_signed_with(command, account.secret_key)]
    if not levels:
        raise NoPermission(
            f"check signature failed: found access key {access_key!r} with another signature, expected the "
            "HMAC-SHA1 of this request with its secret key"
        )
    return max(levels)


_HOLDERS: Final[Mapping[Level, str]] = {
    Level.ACCOUNT: "a user",
    Level.BROKER: "a broker",
    Level.ADMIN: "an administrator (a Super user, or admin: true)",
}
