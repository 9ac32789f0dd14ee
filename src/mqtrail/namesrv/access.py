"""Access control of the name server: which account each request code needs.

A request proves its account by the same signature that brokers check (AccessKey, Signature: wire/signature). Reading
routes needs no account unless `protect_routes` is set. Registration needs a broker's account, and operators' changes
need an administrator's account. The level of each request code is in its row (requests).

The signature covers the values of a request's fields and its body, but neither its code nor a time. So an attacker who
reads a signed request on the network can replay it. TLS prevents that (docs/how-to/acl.md).

RocketMQ's name servers check nothing; its brokers sign with innerClientAuthenticationCredentials since 5.3.
Source of the signing side: BrokerOuterAPI, AclClientRPCHook, apache/rocketmq 5.3.3.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from mqtrail.wire import (
    EXT_ACCESS_KEY,
    NoPermission,
    RemotingCommand,
    address_matcher,
    is_signed_with,
)

from .config import NameServerConfig


class Level(IntEnum):
    """The level that a request needs or an account has. A higher level includes the lower ones."""

    ROUTES = 0  # no account, unless protect_routes is set: then ACCOUNT
    ACCOUNT = 1  # any account
    BROKER = 2  # an account that brokers register with
    ADMIN = 3  # an administrator's account


@dataclass(frozen=True, slots=True)
class AccountKey:
    """A secret key and its level. One access key may have several, at different brokers."""

    secret_key: bytes = field(repr=False)
    level: Level


Accounts = Callable[[str], Iterable[AccountKey]]
"""access key -> its secret keys, none for an unknown one."""


def no_accounts(access_key: str) -> Iterable[AccountKey]:
    """Return no keys: the look-up of a name server without accounts."""
    return ()


class NameServerAccess:
    """Decides whether a request may be served. accounts: asked for each signed request."""

    def __init__(self, config: NameServerConfig, accounts: Accounts = no_accounts) -> None:
        self._config = config
        self._accounts = accounts
        self._is_trusted = address_matcher(config.trusted_addresses)
        self.refused = 0  # requests since the start

    def check(self, ip: str, command: RemotingCommand, needed: Level) -> None:
        """Check that a request that needs a level may be served. NoPermission: it may not; it is counted."""
        try:
            self._check(ip, command, needed)
        except NoPermission:
            self.refused += 1
            raise

    def _check(self, ip: str, command: RemotingCommand, needed: Level) -> None:
        if not self._config.acl:
            return
        if needed is Level.ROUTES:
            if not self._config.protect_routes:
                return
            needed = Level.ACCOUNT
        if needed <= Level.BROKER and self._is_trusted(ip):
            return
        level = self._level_of(command)
        if level < needed:
            raise NoPermission(
                f"request code {command.code} needs the account of {_HOLDERS[needed]}: found access key "
                f"{command.ext[EXT_ACCESS_KEY]!r}, which is the account of {_HOLDERS[level]}"
            )

    def _level_of(self, command: RemotingCommand) -> Level:
        """Return the level of the account that signed the request. NoPermission: none did."""
        access_key = command.ext.get(EXT_ACCESS_KEY, "")
        if not access_key:
            raise NoPermission(
                f"request code {command.code} needs a signature: found no AccessKey; sign with an access key and a "
                "secret key (a broker: innerClientAuthenticationCredentials)"
            )
        accounts = list(self._accounts(access_key))
        if not accounts:
            raise NoPermission(f"found access key {access_key!r}, which this name server does not know")
        levels = [account.level for account in accounts if is_signed_with(command, account.secret_key)]
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
