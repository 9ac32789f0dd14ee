"""Access control of a node's name server: whose signed requests may register brokers and change routes.

A node decides three things before its brokers start:

    access control         [namesrv_server] acl if set; otherwise it is on if the brokers check requests
    keys of brokers        inner_credentials, or a key made at this start that only this node's processes know
    keys of users          their keys at the brokers; Super users and accounts with admin: true may change everything
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mqtrail.broker import USERS_FILE, Key, PlainRules, User, inner_credentials, keys_of, read_rules, read_users
from mqtrail.net import Log
from mqtrail.store import ConfigFileStore, RealDisk, StoreError
from mqtrail.wire import AccountKey, Accounts, Credentials, InvalidParameter, Level

from .acl_files import AclFolder
from .config import NodeConfig
from .files import Stamp, file_stamps

KEY_BYTES = 32

SigningKeys = Callable[[str], Iterable[Key]]
"""access key -> its keys, none for an unknown one."""

log = Log()


def with_namesrv_access(config: NodeConfig) -> NodeConfig:
    """Return the settings with the name server's `acl` and the brokers' credentials filled in.

    InvalidParameter: inner_credentials is malformed.
    """
    broker = config.broker
    acl = config.namesrv.acl
    if acl is None:
        acl = broker.acl or broker.authentication or broker.authorization
    credentials = inner_credentials(broker)
    if credentials is None and acl and (config.namesrv_port is not None or config.group is not None):
        name = f"mqtrail-{os.urandom(8).hex()}"
        credentials = Credentials(access_key=name, secret_key=os.urandom(KEY_BYTES).hex())
    return replace(config, namesrv=replace(config.namesrv, acl=acl), namesrv_credentials=credentials)


def controllers_check(config: NodeConfig) -> bool:
    """Return whether the controllers of a group check requests: if its brokers do, and have an account to sign with."""
    group, broker = config.group, config.broker
    if group is not None and group.controller is not None and group.controller.acl is not None:
        return group.controller.acl
    is_checked = broker.acl or broker.authentication or broker.authorization
    return is_checked and config.namesrv_credentials is not None


def accounts_of(config: NodeConfig, keys: SigningKeys) -> Accounts:
    """Return the name server's look-up of accounts: the brokers' own credentials, then the keys of users."""
    own = config.namesrv_credentials

    def accounts(access_key: str) -> Iterator[AccountKey]:
        if own is not None and access_key == own.access_key:
            yield AccountKey(own.secret_key.encode(), Level.BROKER)
        for key in keys(access_key):
            yield AccountKey(key.secret_key, Level.ADMIN if key.admin else Level.ACCOUNT)

    return accounts


class SavedKeys:
    """The keys that brokers in other processes know, read from the brokers' files.

    Each look-up checks the files and reads them again if they changed. If a file is damaged, this is logged, and the
    previous keys stay in force.
    """

    def __init__(self, config: NodeConfig, rooms: Sequence[Path]) -> None:
        """rooms: the brokers' folders."""
        self._config = config
        self._rooms = rooms
        self._acl = [AclFolder(home) for home in ([config.acl_home] if config.acl_home else rooms)]
        self._stamps: dict[str, Stamp] | None = None
        self._tables: list[tuple[Mapping[str, User], PlainRules]] = []

    def __call__(self, access_key: str) -> list[Key]:
        """Return the keys of an access key."""
        stamps = self._stamps_now()
        if stamps != self._stamps:
            self._stamps = stamps
            try:
                self._tables = self._read()
            except (InvalidParameter, StoreError, OSError) as error:
                log.error(
                    "namesrv.accounts_not_loaded",
                    error=str(error),
                    remedy="repair the file; previous keys stay in force",
                )
        return [key for users, rules in self._tables for key in keys_of(access_key, users, rules)]

    def _stamps_now(self) -> dict[str, Stamp]:
        users = file_stamps(room / "config" / USERS_FILE for room in self._rooms)
        return users | {name: stamp for folder in self._acl for name, stamp in folder.stamps().items()}

    def _read(self) -> list[tuple[Mapping[str, User], PlainRules]]:
        broker = self._config.broker
        found: list[tuple[Mapping[str, User], PlainRules]] = []
        if broker.acl:
            found += [({}, read_rules(folder.read())) for folder in self._acl]
        if broker.authentication or broker.authorization:
            files = [ConfigFileStore(RealDisk(room)) for room in self._rooms]
            found += [(read_users(file), PlainRules()) for file in files]
            self._report([line for file in files for line in file.report])
        return found

    def _report(self, damages: list[str]) -> None:
        """Log that users were taken from a .bak. StoreError: newer ones are known, and stay in force."""
        if damages and self._tables:
            raise StoreError("; ".join(damages))
        for found in damages:
            log.warning("tables.recovered", owner="name server", report=found)
