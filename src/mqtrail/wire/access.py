"""Headers and bodies of access control: ACL files (50 to 53), users and policies of 5.x (3001 to 3010).

Source: the classes of remoting/protocol/{header,body}, apache/rocketmq 5.3.3, common/protocol of 4.9.8 for ACL files.
"""

from .body import Body, RequestBody
from .header import Header

__all__ = [
    "AclAccountHeader",
    "AclAccountInfo",
    "AclAccounts",
    "AclAddressesHeader",
    "AclFilterHeader",
    "AclInfo",
    "AclKeyHeader",
    "PolicyEntryInfo",
    "PolicyInfo",
    "SubjectHeader",
    "UserFilterHeader",
    "UserHeader",
    "UserInfo",
]


class AclAccountHeader(Header):
    """50. Permissions are name=PUB|SUB texts joined by commas; absent fields keep their values."""

    access_key: str
    secret_key: str = ""
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None

    def __repr__(self) -> str:
        """Leave out the secret key: logs and errors may show this text."""
        shown = (f"{name}={getattr(self, name)!r}" for name in self.__struct_fields__ if name != "secret_key")
        return f"AclAccountHeader({', '.join(shown)})"


class AclKeyHeader(Header):
    """51."""

    access_key: str


class AclAddressesHeader(Header):
    """53. global_white_addrs: joined by commas. acl_file_full_path: absent for plain_acl.yml."""

    global_white_addrs: str
    acl_file_full_path: str | None = None


class UserHeader(Header):
    """3001 to 3004."""

    username: str = ""


class UserFilterHeader(Header):
    """3005. filter: a part of the name."""

    filter: str | None = None


class SubjectHeader(Header):
    """3006, 3007, 3009; 3008 with the policy and the resource to remove. subject: User:name."""

    subject: str = ""
    policy_type: str | None = None
    resource: str | None = None


class AclFilterHeader(Header):
    """3010. Parts of the subject and of the resource."""

    subject_filter: str | None = None
    resource_filter: str | None = None


class AclAccountInfo(Body, frozen=True):
    """An account of ACL files, without its secret key. Permissions are texts name=PUB|SUB."""

    access_key: str = ""
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: tuple[str, ...] = ()
    group_perms: tuple[str, ...] = ()


class AclAccounts(Body, frozen=True):
    """Reply to 54. global_white_addrs: addresses that need no account."""

    global_white_addrs: tuple[str, ...] = ()
    plain_access_configs: tuple[AclAccountInfo, ...] = ()


class UserInfo(RequestBody, frozen=True):
    """A user. user_type: Super or Normal. user_status: enable or disable. None: not given."""

    username: str | None = None
    password: str | None = None
    user_type: str | None = None
    user_status: str | None = None

    def __repr__(self) -> str:
        return f"UserInfo(username={self.username!r}, user_type={self.user_type!r}, user_status={self.user_status!r})"


class PolicyEntryInfo(Body, frozen=True):
    """Allows or denies (decision: Allow, Deny) actions on resource to peers with source_ips (None: all addresses)."""

    resource: str | None = None
    actions: tuple[str, ...] = ()
    source_ips: tuple[str, ...] | None = None
    decision: str | None = None


class PolicyInfo(Body, frozen=True):
    """policy_type: Custom, or Default for requests that match no custom entry."""

    policy_type: str | None = None
    entries: tuple[PolicyEntryInfo, ...] = ()


class AclInfo(RequestBody, frozen=True):
    """All policies of a subject (User:name)."""

    subject: str | None = None
    policies: tuple[PolicyInfo, ...] = ()
