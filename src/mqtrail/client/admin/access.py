"""Access control: users and policies of 5.x (3001 to 3010), and the accounts of 4.9's ACL files (50 to 54).

Every change goes to all masters of a cluster, or to one broker; the result lists each broker. Slaves do not copy users
and policies from their master, so these are changed on slaves too: otherwise a deleted user could read there, and would
be back after a change of master.
"""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from mqtrail.wire import (
    AclAccountHeader,
    AclAccounts,
    AclFilterHeader,
    AclInfo,
    BodyError,
    PolicyEntryInfo,
    PolicyInfo,
    RequestCode,
    SubjectHeader,
    UserFilterHeader,
    UserInfo,
    loads,
)

from .base import Gathered
from .handover import AdminHandover


@dataclass(frozen=True, slots=True)
class AclVersion:
    """The versions of a broker's ACL files (52), as the broker reports them."""

    broker_name: str
    broker_address: str
    cluster: str
    versions: str


class AdminAccess(AdminHandover):
    """Admin's methods for users, policies and accounts."""

    async def account_targets(self, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
        """The addresses that a change of users and policies is sent to: those of `targets`, and their slaves.

        The name of a slave is that of its broker with its address: "broker-a (10.0.0.6:10911)".
        """
        targets = await self.targets(cluster, broker)
        if broker is not None and ":" in broker:
            return targets
        info = await self.cluster()
        return targets | {
            f"{name} ({address})": address
            for name, master in targets.items()
            if (known := info.broker_addr_table.get(name)) is not None
            for _, address in sorted(known.broker_addrs.items())
            if address != master
        }

    async def _on_accounts(
        self, cluster: str | None, broker: str | None, call: Callable[[str], Coroutine[Any, Any, str]]
    ) -> Gathered[str]:
        targets = await self.account_targets(cluster, broker)
        return await self._gather({name: call(address) for name, address in targets.items()})

    # -- users of 5.x ----------------------------------------------------------------------------------------------

    async def users(self, name_part: str | None = None, *, broker: str | None = None) -> Gathered[list[UserInfo]]:
        """Each master's users whose names contain name_part (None: all). Passwords are as the broker returns them."""
        ext = UserFilterHeader(name_part).to_ext()
        code = RequestCode.AUTH_LIST_USER

        async def users(address: str) -> list[UserInfo]:
            return await self._ask(address, code, ext, lambda body: [UserInfo.read(one) for one in _items(body)])

        return await self._on_targets(None, broker, users)

    async def user(self, username: str, *, broker: str | None = None) -> Gathered[UserInfo | None]:
        """A user on each master; None where it does not exist."""
        ext = {"username": username}
        code = RequestCode.AUTH_GET_USER

        async def user(address: str) -> UserInfo | None:
            return await self._ask(address, code, ext, lambda body: UserInfo.decode(body) if body else None)

        return await self._on_targets(None, broker, user)

    async def create_user(
        self,
        username: str,
        password: str,
        *,
        user_type: str = "Normal",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Gathered[str]:
        """Create a user. user_type: Normal, or Super, which has all permissions."""
        body = UserInfo(username, password, user_type).encode()
        ext = {"username": username}
        code = RequestCode.AUTH_CREATE_USER
        return await self._on_accounts(cluster, broker, lambda address: self._call(address, code, ext, body))

    async def update_user(
        self,
        username: str,
        *,
        password: str | None = None,
        user_type: str | None = None,
        user_status: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Gathered[str]:
        """Change a user; arguments that are None change nothing. user_status: enable or disable."""
        body = UserInfo(username, password, user_type, user_status).encode()
        ext = {"username": username}
        code = RequestCode.AUTH_UPDATE_USER
        return await self._on_accounts(cluster, broker, lambda address: self._call(address, code, ext, body))

    async def delete_user(
        self, username: str, *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Delete a user; its policies remain."""
        ext = {"username": username}
        code = RequestCode.AUTH_DELETE_USER
        return await self._on_accounts(cluster, broker, lambda address: self._call(address, code, ext))

    # -- policies of 5.x -------------------------------------------------------------------------------------------

    async def acls(
        self, subject_part: str | None = None, resource_part: str | None = None, *, broker: str | None = None
    ) -> Gathered[list[AclInfo]]:
        """Each master's policies whose subject and resource contain the given parts (None: all)."""
        ext = AclFilterHeader(subject_part, resource_part).to_ext()
        code = RequestCode.AUTH_LIST_ACL

        async def acls(address: str) -> list[AclInfo]:
            return await self._ask(address, code, ext, lambda body: [AclInfo.read(one) for one in _items(body)])

        return await self._on_targets(None, broker, acls)

    async def acl(self, subject: str, *, broker: str | None = None) -> Gathered[AclInfo | None]:
        """The policies of a subject (User:name) on each master; None where it has none."""
        ext = {"subject": subject}
        code = RequestCode.AUTH_GET_ACL

        async def acl(address: str) -> AclInfo | None:
            return await self._ask(address, code, ext, lambda body: AclInfo.decode(body) if body else None)

        return await self._on_targets(None, broker, acl)

    async def create_acl(
        self,
        subject: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: str = "Allow",
        source_ips: Sequence[str] = (),
        policy_type: str = "Custom",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Gathered[str]:
        """Add entries to the policy of a subject (User:name).

        resources: Topic:name, Group:name or Cluster:name; a final * is a wildcard. actions: of Pub, Sub, Create,
        Update, Delete, Get, List, All. decision: Allow or Deny. source_ips: addresses it applies to (empty: all).
        """
        body = _acl(subject, resources, actions, decision, source_ips, policy_type).encode()
        ext = SubjectHeader(subject).to_ext()
        code = RequestCode.AUTH_CREATE_ACL
        return await self._on_accounts(cluster, broker, lambda address: self._call(address, code, ext, body))

    async def update_acl(
        self,
        subject: str,
        resources: Sequence[str],
        actions: Sequence[str],
        *,
        decision: str = "Allow",
        source_ips: Sequence[str] = (),
        policy_type: str = "Custom",
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Gathered[str]:
        """Replace the entries of a subject's policy that have the same resources. Arguments as create_acl."""
        body = _acl(subject, resources, actions, decision, source_ips, policy_type).encode()
        ext = SubjectHeader(subject).to_ext()
        code = RequestCode.AUTH_UPDATE_ACL
        return await self._on_accounts(cluster, broker, lambda address: self._call(address, code, ext, body))

    async def delete_acl(
        self,
        subject: str,
        *,
        resource: str | None = None,
        policy_type: str | None = None,
        cluster: str | None = None,
        broker: str | None = None,
    ) -> Gathered[str]:
        """Delete a subject's policies, or only the entry of one resource."""
        ext = SubjectHeader(subject, policy_type, resource).to_ext()
        code = RequestCode.AUTH_DELETE_ACL
        return await self._on_accounts(cluster, broker, lambda address: self._call(address, code, ext))

    # -- accounts of 4.9 -------------------------------------------------------------------------------------------

    async def set_acl_account(
        self, account: AclAccountHeader, *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Create or change an account of the ACL files; fields that are None change nothing."""
        ext = account.to_ext()
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, ext))

    async def delete_acl_account(
        self, access_key: str, *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Delete an account of the ACL files."""
        ext = {"accessKey": access_key}
        code = RequestCode.DELETE_ACL_CONFIG
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, ext))

    async def set_white_addresses(
        self, addresses: Sequence[str], *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Set the addresses that need no signature, such as 10.0.0.* and 192.168.1.10-20."""
        ext = {"globalWhiteAddrs": ",".join(addresses)}
        code = RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, ext))

    async def acl_accounts(self, *, cluster: str | None = None, broker: str | None = None) -> Gathered[AclAccounts]:
        """Each master's accounts and white addresses, without secret keys.

        Apache's 5.x refuses this request, and 4.9.7 does not answer it.
        """
        code = RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG

        async def accounts(address: str) -> AclAccounts:
            return await self._ask(address, code, {}, AclAccounts.decode)

        return await self._on_targets(cluster, broker, accounts)

    async def acl_versions(self, *, cluster: str | None = None, broker: str | None = None) -> Gathered[AclVersion]:
        """The versions of each master's ACL files."""

        async def version(address: str) -> AclVersion:
            reply = await self._client.call(address, RequestCode.GET_BROKER_CLUSTER_ACL_INFO, {})
            ext = reply.ext
            versions = ext.get("allAclFileVersion") or ext.get("version") or ""
            return AclVersion(
                ext.get("brokerName", ""), ext.get("brokerAddr", address), ext.get("clusterName", ""), versions
            )

        return await self._on_targets(cluster, broker, version)


def _items(body: bytes) -> list[dict[str, object]]:
    value = loads(body) if body else []
    if not isinstance(value, list) or not all(isinstance(one, dict) for one in value):
        raise BodyError(f"found {body[:60]!r}, expected a list of objects")
    return value


def _acl(
    subject: str,
    resources: Sequence[str],
    actions: Sequence[str],
    decision: str,
    source_ips: Sequence[str],
    policy_type: str,
) -> AclInfo:
    entries = tuple(
        PolicyEntryInfo(resource, tuple(actions), tuple(source_ips) or None, decision) for resource in resources
    )
    return AclInfo(subject, (PolicyInfo(policy_type, entries),))
