"""The import of access control: users and policies of 5.x, accounts of the ACL files of 4.9.

Each broker has its own, so each broker of the target is compared with its counterpart, and written alone.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from mqtrail.client import Admin, Gathered
from mqtrail.wire import (
    AclAccountHeader,
    AclAccountInfo,
    AclAccounts,
    AclInfo,
    MQError,
    PolicyEntryInfo,
    UserInfo,
)

from .exported import BrokerPairs, ExportedBroker, ImportAction, ImportStep

T = TypeVar("T")
Found = TypeVar("Found")
PolicyKey = tuple[str, str, str]  # subject, policy type, resource
Key = TypeVar("Key", str, PolicyKey)
USERS_REMEDY: Final = "enable authentication in its brokers"
ACCOUNTS_REMEDY: Final = "copy conf/plain_acl.yml of the source to it, or make users and policies of 5.x there"
PASSWORD_REMEDY: Final = "pass --passwords"
WHITE: Final = "globalWhiteRemoteAddresses"


class AccessImport:
    """Plans and writes one import. passwords: of users, and secret keys of accounts; an export has none."""

    def __init__(
        self, admin: Admin, export: Mapping[str, ExportedBroker], pairs: BrokerPairs, passwords: Mapping[str, str]
    ) -> None:
        self._admin = admin
        self._export = export
        self._pairs = pairs
        self._passwords = passwords

    async def plan(self) -> list[ImportStep]:
        """Return the steps. Nothing is asked of the target for what the export has not."""
        steps: list[ImportStep] = []
        admin, export = self._admin, self._export.items()
        users = {broker: {one.username or "": one for one in found.users or ()} for broker, found in export}
        policies = {broker: _entries(found.policies or ()) for broker, found in export}
        listed = {broker: found.accounts or AclAccounts() for broker, found in export}
        accounts = {broker: _accounts(found) for broker, found in listed.items()}
        white = {broker: _white(found) for broker, found in listed.items() if found.global_white_addrs}
        if any(users.values()):
            known_users = await self._known(lambda broker: admin.users(broker=broker))
            steps += self._steps("user", users, str, known_users, _users, self._user, USERS_REMEDY)
        if any(policies.values()):
            known_acls = await self._known(lambda broker: admin.acls(broker=broker))
            steps += self._steps("policy", policies, _policy_name, known_acls, _entries, _policy, USERS_REMEDY)
        if any(accounts.values()) or white:
            known = await self._known(lambda broker: admin.acl_accounts(broker=broker))
            steps += self._steps("account", accounts, str, known, _accounts, self._account, ACCOUNTS_REMEDY)
            steps += self._steps("addresses", white, str, known, _white, _addresses, ACCOUNTS_REMEDY)
        return steps

    async def write(self, step: ImportStep) -> Gathered[str]:
        """Write a step of this plan. MQError, OSError."""
        admin, value, name, broker = self._admin, step.value, step.name, step.broker
        if step.kind == "addresses":
            return await admin.set_white_addresses(value, broker=broker)
        if step.kind == "account":
            return await admin.set_acl_account(self._header(value), broker=broker)
        if step.kind == "user":
            if step.action is ImportAction.MAKE:
                password = self._passwords[name]
                made = await admin.create_user(name, password, user_type=value.user_type or "Normal", broker=broker)
                if made.failures or (value.user_status or "enable") == "enable":
                    return made
            return await admin.update_user(
                name, user_type=value.user_type, user_status=value.user_status, broker=broker
            )
        subject, policy_type, entry = value
        write = admin.create_acl if step.action is ImportAction.MAKE else admin.update_acl
        return await write(
            subject,
            [entry.resource or ""],
            entry.actions,
            decision=entry.decision or "Allow",
            source_ips=entry.source_ips or (),
            policy_type=policy_type,
            broker=broker,
        )

    # -- plans -----------------------------------------------------------------------------------------------------

    async def _known(self, ask: Callable[[str], Awaitable[Gathered[T]]]) -> dict[str, T | Exception]:
        """Return what each broker of the target has, or why it does not list it."""
        known: dict[str, T | Exception] = {}
        for broker in self._pairs.masters:
            try:
                gathered = await ask(broker)
                known |= {**gathered.found, **gathered.failures}
            except (MQError, OSError) as error:
                known[broker] = error
        return known

    def _steps(
        self,
        kind: str,
        wanted: Mapping[str, Mapping[Key, T]],
        label: Callable[[Key], str],
        known: Mapping[str, Found | Exception],
        table: Callable[[Found], Mapping[Key, T]],
        step: Callable[[Key, str, T, T | None], ImportStep],
        remedy: str,
    ) -> Iterator[ImportStep]:
        """Compare what each broker of the target should have with what it has. table: of an answer, by key."""
        keys = sorted({key for one in wanted.values() for key in one})
        for key, spread in self._pairs.spread(wanted, keys):
            if isinstance(spread, str):
                yield ImportStep(kind, label(key), "", ImportAction.CONFLICT, spread)
                continue
            for broker, value in spread.items():
                found = known[broker]
                if isinstance(found, Exception):
                    detail = f"the target does not list its access control: {found}: {remedy}"
                    yield ImportStep(kind, label(key), broker, ImportAction.CONFLICT, detail)
                else:
                    yield step(key, broker, value, table(found).get(key))

    def _user(self, name: str, broker: str, wanted: UserInfo, known: UserInfo | None) -> ImportStep:
        if known is None:
            if name in self._passwords:
                return ImportStep("user", name, broker, ImportAction.MAKE, wanted.user_type or "", wanted)
            detail = f"an export has no passwords: {PASSWORD_REMEDY}, or create it with `mqtrail acl user create`"
            return ImportStep("user", name, broker, ImportAction.CONFLICT, detail)
        differs = [
            f"{what} {now} -> {then}"
            for what, now, then in (
                ("type", known.user_type, wanted.user_type),
                ("status", known.user_status, wanted.user_status),
            )
            if then is not None and now != then
        ]
        action = ImportAction.CHANGE if differs else ImportAction.EQUAL
        return ImportStep("user", name, broker, action, ", ".join(differs), wanted)

    def _account(self, name: str, broker: str, wanted: AclAccountInfo, known: AclAccountInfo | None) -> ImportStep:
        now, then = None if known is None else _account_text(known), _account_text(wanted)
        if now == then:
            return ImportStep("account", name, broker, ImportAction.EQUAL)
        action = ImportAction.MAKE if now is None else ImportAction.CHANGE
        detail = then if now is None else f"{now} -> {then}"
        if name not in self._passwords:
            detail = f"{detail}: an export has no secret keys: {PASSWORD_REMEDY}, or use `mqtrail acl account set`"
            return ImportStep("account", name, broker, ImportAction.CONFLICT, detail)
        return ImportStep("account", name, broker, action, detail, wanted)

    def _header(self, account: AclAccountInfo) -> AclAccountHeader:
        return AclAccountHeader(
            account.access_key,
            self._passwords[account.access_key],
            account.white_remote_address or "",
            account.admin,
            account.default_topic_perm or "",
            account.default_group_perm or "",
            ",".join(account.topic_perms),
            ",".join(account.group_perms),
        )


def _policy(key: PolicyKey, broker: str, wanted: PolicyEntryInfo, known: PolicyEntryInfo | None) -> ImportStep:
    subject, policy_type, _ = key
    name, then, value = _policy_name(key), _entry_text(wanted), (subject, policy_type, wanted)
    if known is None:
        return ImportStep("policy", name, broker, ImportAction.MAKE, then, value)
    if (now := _entry_text(known)) == then:
        return ImportStep("policy", name, broker, ImportAction.EQUAL)
    return ImportStep("policy", name, broker, ImportAction.CHANGE, f"{now} -> {then}", value)


def _addresses(name: str, broker: str, wanted: tuple[str, ...], known: tuple[str, ...] | None) -> ImportStep:
    then, now = ", ".join(wanted), ", ".join(known or ())
    if now == then:
        return ImportStep("addresses", name, broker, ImportAction.EQUAL)
    action = ImportAction.CHANGE if known else ImportAction.MAKE
    return ImportStep("addresses", name, broker, action, f"{now or 'none'} -> {then}", wanted)


def _users(found: Iterable[UserInfo]) -> dict[str, UserInfo]:
    return {one.username or "": one for one in found}


def _entries(found: Iterable[AclInfo]) -> dict[PolicyKey, PolicyEntryInfo]:
    """Return the entries of a broker's policies by subject, policy type and resource."""
    return {
        (acl.subject or "", policy.policy_type or "Custom", entry.resource or ""): entry
        for acl in found
        for policy in acl.policies
        for entry in policy.entries
    }


def _accounts(found: AclAccounts) -> dict[str, AclAccountInfo]:
    return {one.access_key: one for one in found.plain_access_configs}


def _white(found: AclAccounts) -> dict[str, tuple[str, ...]]:
    return {WHITE: found.global_white_addrs}


def _policy_name(key: PolicyKey) -> str:
    return f"{key[0]} {key[2]}"


def _entry_text(entry: PolicyEntryInfo) -> str:
    ips = f" from {','.join(sorted(entry.source_ips))}" if entry.source_ips else ""
    return f"{entry.decision or 'Allow'} {','.join(sorted(entry.actions))}{ips}"


def _account_text(account: AclAccountInfo) -> str:
    """Return what an account may do; fields that are absent have the values that brokers use for them."""
    parts = [
        "admin" if account.admin else "",
        f"from {account.white_remote_address} unsigned" if account.white_remote_address else "",
        f"topics {account.default_topic_perm or 'DENY'}",
        *sorted(account.topic_perms),
        f"groups {account.default_group_perm or 'DENY'}",
        *sorted(account.group_perms),
    ]
    return ", ".join(filter(None, parts))
