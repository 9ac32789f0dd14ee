"""Keys that may sign requests, for a name server.

A name server of a node uses the users and accounts of the node's brokers: of brokers in the same process through
`Access.keys_of`, of brokers in other processes from users.json and the ACL files (`read_keys`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from mqtrail.store import ConfigFileStore
from mqtrail.wire import InvalidParameter, NoPermission

from ..files import load_table
from .auth import USERS_FILE, UserTable, read_user
from .plain import PlainRules
from .policies import User, UserStatus, UserType


@dataclass(frozen=True, slots=True)
class Key:
    """The secret key of an account or user. admin: a Super user, or an account with admin: true."""

    secret_key: bytes = field(repr=False)
    admin: bool


def keys_of(access_key: str, users: Mapping[str, User], rules: PlainRules) -> Iterator[Key]:
    """Yield the keys of an access key; none for a disabled user."""
    user = users.get(access_key)
    if user is not None and user.user_status is not UserStatus.DISABLE:
        yield Key(user.password.encode(), user.user_type is UserType.SUPER)
    account = rules.accounts.get(access_key)
    if account is not None:
        yield Key(account.secret_key, account.admin)


def read_users(files: ConfigFileStore) -> dict[str, User]:
    """Return the users in users.json of a broker. InvalidParameter, StoreError."""
    table = load_table(files, USERS_FILE, UserTable) or UserTable()
    try:
        return {name: read_user(name, info) for name, info in table.user_table.items()}
    except NoPermission as error:
        raise InvalidParameter(f"{USERS_FILE}: {error}") from error
