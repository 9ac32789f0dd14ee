"""Who may register and change things at the name server of a node: the accounts of its brokers, and their own.

A node decides three things before its brokers start:

    is it on?             [namesrv_server] acl, or whether the brokers check requests
    brokers sign with     inner_credentials, or a key made at this start that only this node's processes know
    users sign with       their keys at the brokers; Super users and accounts with admin: true may change everything
"""

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mqtrail.broker import USERS_FILE, Key, PlainRules, User, inner_credentials, keys_of, read_rules, read_users
from mqtrail.namesrv import Account, Accounts, Level
from mqtrail.net import Log
from mqtrail.store import ConfigFileStore, RealDisk, StoreError
from mqtrail.wire import Credentials, InvalidParameter

from .acl_files import AclFolder, Stamp
from .config import NodeConfig

KEY_BYTES = 32

Keys = Callable[[str], Iterable[Key]]

log = Log()


def with_namesrv_access(config: NodeConfig) -> NodeConfig:
    """Return the settings with the name server's access control decided. InvalidParameter: inner_credentials."""
    broker = config.broker
    acl = config.namesrv.acl
    if acl is None:
        acl = broker.acl or broker.authentication or broker.authorization
    credentials = inner_credentials(broker)
    if credentials is None and acl and config.namesrv_port is not None:
        name = f"mqtrail-{secrets.token_hex(8)}"
        credentials = Credentials(access_key=name, secret_key=secrets.token_hex(KEY_BYTES))
    return replace(config, namesrv=replace(config.namesrv, acl=acl), namesrv_credentials=credentials)


def accounts_of(config: NodeConfig, keys: Keys) -> Accounts:
    """Return what the name server asks: the brokers' own credentials, then the keys of users and accounts."""
    own = config.namesrv_credentials

    def accounts(access_key: str) -> Iterator[Account]:
        if own is not None and access_key == own.access_key:
            yield Account(own.secret_key.encode(), Level.BROKER)
        for key in keys(access_key):
            yield Account(key.secret_key, Level.ADMIN if key.admin else Level.ACCOUNT)

    return accounts


class SavedKeys:
    """The keys that brokers of other processes know, read from the files that they keep.

    The files are looked at when a key is asked for, and read again when they changed. A broken file is reported, and
    the keys from before stay in force.
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
        stamps = self._look()
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

    def _look(self) -> dict[str, Stamp]:
        found = {name: stamp for folder in self._acl for name, stamp in folder.stamps().items()}
        for room in self._rooms:
            path = room / "config" / USERS_FILE
            try:
                status = path.stat()
            except FileNotFoundError:
                continue
            found[str(path)] = (status.st_mtime_ns, status.st_size, status.st_ino)
        return found

    def _read(self) -> list[tuple[Mapping[str, User], PlainRules]]:
        broker = self._config.broker
        found: list[tuple[Mapping[str, User], PlainRules]] = []
        if broker.acl:
            found += [({}, read_rules(folder.read())) for folder in self._acl]
        if broker.authentication or broker.authorization:
            files = [ConfigFileStore(RealDisk(room)) for room in self._rooms]
            found += [(read_users(file.load(USERS_FILE)), PlainRules()) for file in files]
        return found
