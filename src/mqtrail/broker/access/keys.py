"""The keys that requests may be signed with: what a name server needs to know of users and accounts.

A name server beside its brokers takes their users and accounts for its own. Brokers of the same process are asked
(`Access.keys_of`); those of other processes save users.json and read the same ACL files (`read_keys`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mqtrail.wire import BodyError, InvalidParameter, NoPermission

from .auth import UserTable, read_user
from .plain import PlainRules
from .policies import User, UserStatus, UserType


@dataclass(frozen=True, slots=True)
class Key:
    """The secret key of an account or a user. admin: a Super user, or an account with admin: true."""

    secret_key: bytes = field(repr=False)
    admin: bool


def keys_of(access_key: str, users: Mapping[str, User], rules: PlainRules) -> Iterator[Key]:
    """Yield the keys of an access key; none of a disabled user."""
    user = users.get(access_key)
    if user is not None and user.user_status is not UserStatus.DISABLE:
        yield Key(user.password.encode(), user.user_type is UserType.SUPER)
    account = rules.accounts.get(access_key)
    if account is not None:
        yield Key(account.secret_key, account.admin)


def read_users(document: Mapping[str, Any] | None) -> dict[str, User]:
    """Return the users of a broker's users.json. InvalidParameter."""
    try:
        table = UserTable.read(document) if document else UserTable()
        return {name: read_user(name, info) for name, info in table.user_table.items()}
    except (BodyError, NoPermission) as error:
        raise InvalidParameter(f"users.json: {error}") from error
