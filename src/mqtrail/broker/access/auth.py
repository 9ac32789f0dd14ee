"""Authentication and authorization of 5.x: the table of users and policies, and the check of a request.

    authentication   a known, enabled user whose password signed the request
    authorization    the user is allowed to use every resource that the request needs; a Super user may do everything

Each can be enabled separately; codes on a white list are not checked. Refusals have code 16. Tables are saved with
every change, before its answer: users.json and acls.json in the config folder (RocksDB in Apache's broker).

Source: DefaultAuthenticationHandler, UserAuthorizationHandler, AclAuthorizationHandler,
AuthenticationMetadataManagerImpl, AuthMigrator, apache/rocketmq auth/ of 5.3.3.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec

from mqtrail.store import ConfigFileStore
from mqtrail.wire import (
    EXT_ACCESS_KEY,
    AclInfo,
    Body,
    BodyError,
    Credentials,
    InvalidParameter,
    NoPermission,
    RemotingCommand,
    UserInfo,
    dumps_fastjson,
    is_signed_with,
)

from ..config import BrokerConfig
from ..files import load_table
from .context import AccessContext, AccessKind, Need
from .needs import needs_of
from .plain import PERMISSIONS, PlainRules
from .policies import USER_SUBJECT, Acl, Entry, Resource, User, UserStatus, UserType, group_resource

Value = TypeVar("Value")

USERS_FILE: Final = "users.json"
ACLS_FILE: Final = "acls.json"


class UserTable(Body, frozen=True):
    """Content of users.json."""

    user_table: dict[str, UserInfo] = msgspec.field(default_factory=dict)


class AclTable(Body, frozen=True):
    """Content of acls.json."""

    acl_table: dict[str, AclInfo] = msgspec.field(default_factory=dict)


class Auth:
    """Users and policies. on_change: called after every change."""

    def __init__(self, config: BrokerConfig, files: ConfigFileStore, on_change: Callable[[], None]) -> None:
        self._config = config
        self._files = files
        self._on_change = on_change
        self._unchecked = _codes(config.authentication_whitelist)
        self._unauthorized = _codes(config.authorization_whitelist)
        users = load_table(files, USERS_FILE, UserTable) or UserTable()
        acls = load_table(files, ACLS_FILE, AclTable) or AclTable()
        try:
            self.users = {name: read_user(name, info) for name, info in users.user_table.items()}
            self.acls = {subject: Acl.read(info.policies) for subject, info in acls.acl_table.items()}
        except NoPermission as error:
            raise InvalidParameter(f"{USERS_FILE}, {ACLS_FILE}: {error.remark}: restore their .bak files") from error
        self._seed()

    @property
    def on(self) -> bool:
        return self._config.authentication or self._config.authorization

    # Checks.

    def check(self, ip: str, command: RemotingCommand, context: AccessContext, *, signed: bool = True) -> None:
        """Return if a request is allowed. signed False: do not verify the signature again. NoPermission."""
        if self._config.authentication and command.code not in self._unchecked:
            user = self.enabled_user(command.ext.get(EXT_ACCESS_KEY, ""))
            if signed and not is_signed_with(command, user.password.encode()):
                raise NoPermission(
                    f"check signature failed. Found user {user.username} with another signature, expected the "
                    "HMAC-SHA1 of this request with the user's password: check the client's secret key"
                )
        self.authorize(ip, command, context)

    def is_known(self, code: int) -> bool:
        """Return whether the user name in requests of a code is trusted: it is signed, or authentication is off."""
        return not self._config.authentication or code not in self._unchecked

    def authorize(self, ip: str, command: RemotingCommand, context: AccessContext) -> None:
        """Return if the user of a request has the permissions it needs; the signature is not verified. NoPermission."""
        if not self._config.authorization or command.code in self._unauthorized:
            return
        name = command.ext.get(EXT_ACCESS_KEY, "")
        if name and self.enabled_user(name).user_type == UserType.SUPER:
            return
        for need in needs_of(command, context, AccessKind.USERS):
            self._require(self.enabled_user(name), ip, need, command.code)

    def _require(self, user: User, ip: str, need: Need, code: int) -> None:
        subject = USER_SUBJECT + user.username
        allowed = self.acls.get(subject, Acl()).decide(need.resource, need.actions, ip)
        if not allowed:
            why = "no matched policies." if allowed is None else "the decision is deny."
            raise NoPermission(
                f"{subject} has no permission to access {need.resource} from {ip}, {why} Request {code} needs "
                f"{' or '.join(need.actions)}: allow it with mqadmin createAcl or updateAcl"
            )

    def allows(self, ip: str, name: str, need: Need) -> bool:
        """Return whether a user at an address has a permission, without a check of a signature."""
        if not self._config.authorization:
            return True
        user = self.users.get(name)
        if user is None or user.user_status == UserStatus.DISABLE:
            return False
        if user.user_type == UserType.SUPER:
            return True
        return bool(self.acls.get(USER_SUBJECT + name, Acl()).decide(need.resource, need.actions, ip))

    def enabled_user(self, name: str) -> User:
        """Return an enabled user. NoPermission."""
        if not name:
            raise NoPermission(
                "username cannot be null. Found a request without AccessKey, expected a signed one: set access key and "
                "secret key of the client"
            )
        user = self.users.get(name)
        if user is None:
            raise NoPermission(f"{USER_SUBJECT}{name} is not found. Create it with mqadmin createUser")
        if user.user_status == UserStatus.DISABLE:
            raise NoPermission(f"{USER_SUBJECT}{name} is disabled. Enable it with mqadmin updateUser")
        return user

    # Changes.

    def put_user(self, user: User) -> None:
        self._change_user(user.username, user)

    def delete_user(self, name: str) -> None:
        """Delete a user and its policies."""
        if name in self.users:
            self._change_user(name, None)
        self.delete_acl(USER_SUBJECT + name)

    def put_acl(self, subject: str, acl: Acl) -> None:
        self._change_acl(subject, acl)

    def delete_acl(self, subject: str) -> None:
        if subject in self.acls:
            self._change_acl(subject, None)

    def _change_user(self, name: str, user: User | None) -> None:
        before = self.users.get(name)
        self._set(self.users, name, user)
        self._files.change(USERS_FILE, self._users_document, lambda: self._set(self.users, name, before))

    def _change_acl(self, subject: str, acl: Acl | None) -> None:
        before = self.acls.get(subject)
        self._set(self.acls, subject, acl)
        self._files.change(ACLS_FILE, self._acls_document, lambda: self._set(self.acls, subject, before))

    def _set(self, table: dict[str, Value], name: str, value: Value | None) -> None:
        if value is None:
            table.pop(name, None)
        else:
            table[name] = value
        self._on_change()

    def _users_document(self) -> Callable[[], bytes]:
        users = self.users.copy()
        return lambda: dumps_fastjson(UserTable({name: users[name].info() for name in sorted(users)}).members())

    def _acls_document(self) -> Callable[[], bytes]:
        acls = self.acls.copy()
        return lambda: dumps_fastjson(
            AclTable({subject: acls[subject].info(subject) for subject in sorted(acls)}).members()
        )

    # The first users.

    def _seed(self) -> None:
        """Create the users named in the settings if they do not exist."""
        for text, name_key, password_key in (
            (self._config.init_user, "username", "password"),
            (self._config.inner_credentials, "accessKey", "secretKey"),
        ):
            if not text.strip():
                continue
            fields = read_json_object(text, f'{{"{name_key}":"…","{password_key}":"…"}}')
            name, password = str(fields.get(name_key) or ""), str(fields.get(password_key) or "")
            if not name or not password:
                raise InvalidParameter(f"found an initial user without {name_key} or {password_key}, expected both")
            if name not in self.users:
                self.put_user(User(name, password, UserType.SUPER))

    def migrate(self, rules: PlainRules) -> None:
        """Create a user with policies for each account of the ACL files that is not a user yet."""
        for access_key, account in rules.accounts.items():
            if access_key in self.users:
                continue
            kind = UserType.SUPER if account.admin else UserType.NORMAL
            self.put_user(User(access_key, account.secret_key.decode(), kind))
            entry = rules.entry_of(access_key)
            custom = [
                *(_entry(Resource("Topic", name), text) for name, text in _listed(entry, "topicPerms")),
                *(_entry(group_resource(name), text) for name, text in _listed(entry, "groupPerms")),
            ]
            default = [
                _entry(Resource(kind_name), str(text).strip())
                for key, kind_name in (("defaultTopicPerm", "Topic"), ("defaultGroupPerm", "Group"))
                if (text := entry.get(key))
            ]
            if custom or default:
                self.put_acl(USER_SUBJECT + access_key, Acl(tuple(custom), tuple(default)))


def read_user(name: str, info: UserInfo) -> User:
    """Return the user in a body or file. NoPermission: it has no password."""
    if not info.password:
        raise NoPermission("password can not be blank")
    return User(name, info.password, user_type_of(info) or UserType.NORMAL, user_status_of(info) or UserStatus.ENABLE)


def user_type_of(info: UserInfo) -> UserType | None:
    """Return the user type in a body, case-insensitive; None: absent or unknown."""
    return {kind.value.lower(): kind for kind in UserType}.get((info.user_type or "").lower())


def user_status_of(info: UserInfo) -> UserStatus | None:
    """Like user_type_of, for the status."""
    return {status.value: status for status in UserStatus}.get((info.user_status or "").lower())


def read_json_object(text: str, expected: str) -> Mapping[str, Any]:
    """Parse a setting that is a JSON object. InvalidParameter does not contain the text, which has a password."""
    try:
        value = msgspec.json.decode(text)
    except (msgspec.MsgspecError, BodyError):
        value = None
    if not isinstance(value, dict):
        raise InvalidParameter(f"found an initial user that is not a JSON object, expected {expected}")
    return value


def inner_credentials(config: BrokerConfig) -> Credentials | None:
    """Return the credentials of a broker for name servers; None: none. InvalidParameter contains no secret."""
    return read_credentials(config.inner_credentials)


def read_credentials(text: str) -> Credentials | None:
    """Return the credentials in a setting; None: it is empty. InvalidParameter contains no secret."""
    if not text.strip():
        return None
    fields = read_json_object(text, '{"accessKey":"…","secretKey":"…"}')
    return Credentials(
        access_key=str(fields.get("accessKey") or ""),
        secret_key=str(fields.get("secretKey") or ""),
        security_token=str(fields.get("securityToken") or ""),
    )


def _codes(text: str) -> frozenset[int]:
    try:
        return frozenset(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise InvalidParameter(f"found white list {text!r}, expected request codes joined by commas") from None


def _listed(entry: Mapping[str, Any], key: str) -> list[tuple[str, str]]:
    found = []
    for text in entry.get(key) or ():
        name, equals, permission = str(text).partition("=")
        if equals:
            found.append((name.strip(), permission.strip()))
    return found


def _entry(resource: Resource, permission: str) -> Entry:
    """Return the policy entry of a permission of an ACL file; anything but PUB or SUB denies, as in Apache's
    migration."""
    bits = PERMISSIONS.get(permission, 0)
    actions = tuple(name for name, bit in (("Pub", 4), ("Sub", 8)) if bits & bit)
    return Entry(resource, actions or ("All",), (), bool(actions), ())
