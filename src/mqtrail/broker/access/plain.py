"""The rules of ACL files (plain_acl.yml, conf/acl/*.yml): accounts with permissions and addresses.

    globalWhiteRemoteAddresses: [10.10.103.*]     addresses allowed everything, unsigned
    accounts:
    - accessKey: RocketMQ                         more than 6 characters, as the secret key
      secretKey: "12345678"
      whiteRemoteAddress: 192.168.1.*             addresses where this account needs no signature
      admin: false
      defaultTopicPerm: DENY                      DENY, PUB, SUB, PUB|SUB; default DENY
      defaultGroupPerm: SUB
      topicPerms: [orders=PUB|SUB, stock=DENY]
      groupPerms: [billing=SUB]

A request needs permissions on resources (needs.py): topics by name, groups by their %RETRY% topic. A DENY of the
account for a needed resource refuses the request; otherwise needed and granted permissions must share a bit. Resources
that an account does not list have its default; an admin without a list is allowed. Trace messages need a valid
signature only.

Source: PlainPermissionManager, PlainAccessValidator, Permission, apache/rocketmq acl/ of 4.9.8.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mqtrail.wire import (
    EXT_ACCESS_KEY,
    TRACE_TOPIC,
    AddressMatcher,
    InvalidParameter,
    NoPermission,
    RemotingCommand,
    SystemError_,
    address_matcher,
    is_signed_with,
    retry_topic,
)

from .context import AccessContext, AccessKind, Need
from .needs import needs_of

DENY: Final = 1
PUB: Final = 4
SUB: Final = 8
KEY_LENGTH_MIN: Final = 7  # ACCESS_KEY_MIN_LENGTH, SECRET_KEY_MIN_LENGTH: longer than 6
PERMISSIONS: Final[Mapping[str, int]] = {
    "DENY": DENY,
    "PUB": PUB,
    "SUB": SUB,
    "PUB|SUB": PUB | SUB,
    "SUB|PUB": PUB | SUB,
}
ACCOUNT_KEYS: Final = frozenset(
    {
        "accessKey",
        "secretKey",
        "whiteRemoteAddress",
        "admin",
        "defaultTopicPerm",
        "defaultGroupPerm",
        "topicPerms",
        "groupPerms",
    }
)
FILE_KEYS: Final = frozenset({"globalWhiteRemoteAddresses", "accounts", "dataVersion"})


class AclRefusal(SystemError_):
    """An account lacks a permission. Code 1, as from the request hook of 4.9."""

    retryable = False


@dataclass(frozen=True, slots=True)
class Account:
    """An access key and its permissions. permissions: resource -> bits; None: no list."""

    access_key: str
    secret_key: bytes = field(repr=False)
    is_white: AddressMatcher = field(repr=False)
    admin: bool
    topic_default: int
    group_default: int
    permissions: Mapping[str, int] | None


@dataclass(frozen=True, slots=True)
class PlainRules:
    """The rules of all ACL files of a broker. file_of: access key -> its file. problems: ignored parts."""

    documents: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    white: tuple[AddressMatcher, ...] = ()
    accounts: Mapping[str, Account] = field(default_factory=dict)
    file_of: Mapping[str, str] = field(default_factory=dict)
    problems: tuple[str, ...] = ()

    def entry_of(self, access_key: str) -> Mapping[str, Any]:
        """Return an account as written in its file."""
        entries = self.documents[self.file_of[access_key]]["accounts"]
        return next(entry for entry in entries if str(entry["accessKey"]) == access_key)

    def is_white(self, ip: str) -> bool:
        """Return whether an address is on the global white list."""
        return any(matches(ip) for matches in self.white)

    def check(self, ip: str, command: RemotingCommand, context: AccessContext, *, signed: bool = True) -> None:
        """Return if a request is allowed. signed False: do not verify the signature again. AclRefusal."""
        if self.is_white(ip):
            return
        access_key = command.ext.get(EXT_ACCESS_KEY)
        if access_key is None:
            raise AclRefusal(
                f"No accessKey is configured: found request {command.code} from {ip} without AccessKey, expected "
                "a signed one: give the client its access key and secret key"
            )
        account = self.accounts.get(access_key)
        if account is None:
            raise AclRefusal(f"No acl config for {access_key}: expected an account of plain_acl.yml or conf/acl/*.yml")
        if account.is_white(ip):
            return
        if signed and not is_signed_with(command, account.secret_key):
            raise AclRefusal(
                f"Check signature failed for accessKey={access_key}: expected the HMAC-SHA1 of this request with the "
                "account's secret key: check the client's secret key"
            )
        check_permissions(account, command, context)

    def allows(self, ip: str, access_key: str, need: Need) -> bool:
        """Return whether an account at an address has a permission, without a check of a signature."""
        account = self.accounts.get(access_key)
        if self.is_white(ip) or (account is not None and account.is_white(ip)):
            return True
        return account is not None and _missing(account, need, 0) is None


def check_permissions(account: Account, command: RemotingCommand, context: AccessContext) -> None:
    """Return if an account has the permissions of a request with a valid signature. AclRefusal."""
    if account.admin and account.permissions is None:
        return
    try:
        for need in needs_of(command, context, AccessKind.FILES):
            if (why := _missing(account, need, command.code)) is not None:
                raise AclRefusal(why)
    except NoPermission as refusal:
        if command.code not in context.permissions and account.admin:
            return  # the broker refuses it later as not supported
        raise AclRefusal(refusal.remark) from refusal


def _missing(account: Account, need: Need, code: int) -> str | None:
    """Return why an account lacks a permission; None: it has it."""
    kind, name, _ = need.resource
    bits = _bits(need)
    if (name, bits) == (TRACE_TOPIC, PUB):
        return None
    if not bits:
        if account.admin:
            return None
        return (
            f"Need admin permission for request code={code}, but accessKey={account.access_key} is not: expected "
            "admin: true in its account"
        )
    if account.admin and account.permissions is None:
        return None
    is_group = kind == "Group"
    resource = retry_topic(name or "") if is_group else name or ""
    default = account.group_default if is_group else account.topic_default
    owned = default if account.permissions is None else account.permissions.get(resource, default)
    if not owned & DENY and owned & bits:
        return None
    return (
        f"No default permission for {'group' if is_group else 'topic'}:{name}: accessKey={account.access_key} has "
        f"{permission_text(owned)}, request {code} needs {permission_text(bits)}"
    )


def _bits(need: Need) -> int:
    """Return the permission in ACL files for an action of 5.x; 0: admin only."""
    if need.resource.kind == "Cluster":
        return 0
    if "Sub" in need.actions or "Get" in need.actions:
        return SUB
    return PUB if "Pub" in need.actions else 0


# Reading the files.


def read_rules(texts: Mapping[str, str]) -> PlainRules:
    """Return the rules of file name -> YAML text, in that order. InvalidParameter names the file and the error."""
    documents = {name: read_document(name, text) for name, text in texts.items()}
    return rules_of(documents)


def read_document(name: str, text: str) -> dict[str, Any]:
    """Return the document of a file; {} if it is empty. InvalidParameter."""
    from .yaml_text import read_yaml  # loads the YAML reader only when it is needed

    document = read_yaml(name, text)
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise InvalidParameter(f"{name}: found a {type(document).__name__}, expected keys such as accounts:")
    return document


def rules_of(documents: Mapping[str, Mapping[str, Any]]) -> PlainRules:
    """Return the rules of documents. InvalidParameter names the file."""
    white: list[AddressMatcher] = []
    accounts: dict[str, Account] = {}
    file_of: dict[str, str] = {}
    problems: list[str] = []
    for name, document in documents.items():
        problems += [f"{name}: {key} is unknown and ignored" for key in map(str, document) if key not in FILE_KEYS]
        try:
            white += [address_matcher(text) for text in _texts(document, "globalWhiteRemoteAddresses")]
            for entry in _list(document, "accounts"):
                account = read_account(entry)
                problems += [
                    f"{name}: {key} of {account.access_key} is unknown and ignored"
                    for key in map(str, entry)
                    if key not in ACCOUNT_KEYS
                ]
                if account.access_key in accounts:
                    problems.append(
                        f"{name}: accessKey {account.access_key} is already in {file_of[account.access_key]}; this "
                        "one is ignored"
                    )
                    continue
                accounts[account.access_key] = account
                file_of[account.access_key] = name
        except InvalidParameter as error:
            raise InvalidParameter(f"{name}: {error.remark}") from error
    return PlainRules(documents, tuple(white), accounts, file_of, tuple(problems))


def read_account(entry: Any) -> Account:
    """Return one account of a file. InvalidParameter."""
    if not isinstance(entry, dict):
        raise InvalidParameter(f"found an account that is a {type(entry).__name__}, expected keys such as accessKey:")
    access_key, secret_key = _text(entry, "accessKey"), _text(entry, "secretKey")
    if len(access_key) < KEY_LENGTH_MIN or len(secret_key) < KEY_LENGTH_MIN:
        raise InvalidParameter(
            f"The accessKey={access_key} and its secretKey cannot be null and length should longer than 6"
        )
    admin = entry.get("admin", False)
    if not isinstance(admin, bool):
        admin = str(admin).strip().lower() == "true"
    permissions = {retry_topic(name): bits for name, bits in _permissions(entry, "groupPerms", "group")}
    permissions |= dict(_permissions(entry, "topicPerms", "topic"))
    return Account(
        access_key,
        secret_key.encode(),
        address_matcher(_text(entry, "whiteRemoteAddress")),
        admin,
        PERMISSIONS.get(_text(entry, "defaultTopicPerm").strip(), DENY),
        PERMISSIONS.get(_text(entry, "defaultGroupPerm").strip(), DENY),
        permissions or None,
    )


def permission_text(bits: int) -> str:
    """Return bits in the format of a file."""
    if bits & DENY:
        return "DENY"
    return "|".join(name for name, bit in (("PUB", PUB), ("SUB", SUB)) if bits & bit) or "none"


def _permissions(entry: Mapping[str, Any], key: str, kind: str) -> list[tuple[str, int]]:
    found = []
    for text in _texts(entry, key):
        parts = [part for part in text.split("=") if part]
        if len(parts) != 2:
            raise InvalidParameter(f"Parse resource permission failed for {kind}:{text}: expected name=PUB|SUB")
        found.append((parts[0].strip(), PERMISSIONS.get(parts[1].strip(), DENY)))
    return found


def _list(document: Mapping[str, Any], key: str) -> list[Any]:
    value = document.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidParameter(f"found {key} that is a {type(value).__name__}, expected a list")
    return value


def _texts(document: Mapping[str, Any], key: str) -> list[str]:
    return ["" if item is None else str(item) for item in _list(document, key)]


def _text(entry: Mapping[str, Any], key: str) -> str:
    value = entry.get(key)
    return "" if value is None else str(value)
