"""Imports what `mqtrail cluster export` wrote: topics, groups, users, policies, offsets. A plan, then the changes.

Brokers of both clusters are paired in the order of their names if there are as many. Otherwise a topic or group goes to
all brokers, if it is the same on each broker of the source that has it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, TypeVar

from msgspec import structs

from mqtrail.client import Admin, Gathered, MessageQueue, RouteNotFound
from mqtrail.wire import (
    AclInfo,
    BodyError,
    MQError,
    PolicyEntryInfo,
    SubscriptionGroupConfig,
    TopicConfig,
    UserInfo,
    business_topics,
    is_business_group,
)

from .model import MirrorError

VERSION: Final = 1  # of the export
Config = TypeVar("Config", TopicConfig, SubscriptionGroupConfig)


class ImportAction(StrEnum):
    """What a step does."""

    MAKE = "make"
    CHANGE = "change"
    EQUAL = "equal"
    CONFLICT = "conflict"


@dataclass(frozen=True, slots=True)
class ImportStep:
    """A thing of the export. kind: topic, group, user, policy or offset. broker: of the target; "": of all.

    detail: what differs, or why it is a conflict and what to do. value: what is written. error: why it could not be.
    """

    kind: str
    name: str
    broker: str
    action: ImportAction
    detail: str = ""
    value: Any = field(default=None, repr=False)
    is_done: bool = False
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """Return it without its value, which may have a password."""
        names = ("kind", "name", "broker", "action", "detail", "is_done", "error")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class ExportedBroker:
    """What an export has of a broker. cluster: its name. offsets: by group and topic, by number of the queue.

    users, policies: None: it did not list them.
    """

    cluster: str
    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, SubscriptionGroupConfig]
    offsets: Mapping[str, Mapping[str, Mapping[int, int]]]
    users: tuple[UserInfo, ...] | None
    policies: tuple[AclInfo, ...] | None


def read_export(text: str) -> dict[str, ExportedBroker]:
    """Return the brokers of an export, by name. MirrorError: it is none, or a part is missing in it."""
    try:
        content = json.loads(text)
        version = content.get("version", VERSION)
        if version != VERSION:
            raise MirrorError(
                f"found an export of version {version}, expected {VERSION}: use the mqtrail that wrote it"
            )
        if failures := content.get("failures"):
            raise MirrorError(
                f"found an export without {', '.join(failures)}, which did not answer: export again when it is there"
            )
        return {name: _broker_of(found) for name, found in content["brokers"].items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, BodyError) as error:
        raise MirrorError(
            f"found {type(error).__name__} in the export, expected what `mqtrail cluster export` prints"
        ) from error


def _broker_of(found: dict[str, Any]) -> ExportedBroker:
    topics = [TopicConfig.read(one) for one in found["topics"]]
    groups = [SubscriptionGroupConfig.read(one) for one in found["groups"]]
    users, policies = found.get("users"), found.get("policies")
    return ExportedBroker(
        str(found["settings"].get("brokerClusterName", "")),
        {one.topic: one for one in topics},
        {one.group_name: one for one in groups},
        {
            group: {topic: {int(at): int(offset) for at, offset in queues.items()} for topic, queues in one.items()}
            for group, one in (found.get("offsets") or {}).items()
        },
        None if users is None else tuple(UserInfo.read(one) for one in users),
        None if policies is None else tuple(AclInfo.read(one) for one in policies),
    )


class ClusterImport:
    """One import. passwords: of users to make; an export has none. with_offsets: write offsets as they are."""

    def __init__(
        self,
        admin: Admin,
        export: Mapping[str, ExportedBroker],
        *,
        cluster: str | None = None,
        passwords: Mapping[str, str] | None = None,
        with_offsets: bool = False,
    ) -> None:
        self._admin = admin
        self._export = dict(sorted(export.items()))
        self._cluster = cluster
        self._passwords = passwords or {}
        self._with_offsets = with_offsets
        self._masters: dict[str, str] = {}
        self._pairs: dict[str, str] = {}  # broker of the export -> of the target; none if they are not as many

    async def plan(self) -> list[ImportStep]:
        """Return what would be made, changed, is equal, or is a conflict. Nothing is changed. MQError."""
        self._masters = await self._admin.targets(self._cluster)
        self._pairs = {}
        if len(self._masters) == len(self._export):
            self._pairs = dict(zip(self._export, self._masters, strict=True))
        found = {name: await self._admin.topic_configs(address) for name, address in self._masters.items()}
        topics = {name: table.topic_config_table for name, table in found.items()}
        groups = {
            name: (await self._admin.groups(address)).subscription_group_table
            for name, address in self._masters.items()
        }
        clusters = {*(await self._admin.cluster()).cluster_addr_table, *(one.cluster for one in self._export.values())}
        own = {*self._export, *self._masters}
        steps = [
            *self._configs(
                "topic", lambda one: one.topics, topics, lambda names: business_topics(names, clusters, own)
            ),
            *self._configs("group", lambda one: one.groups, groups, lambda names: filter(is_business_group, names)),
        ]
        if any(one.users or one.policies for one in self._export.values()):
            steps += [*(await self._users()), *(await self._policies())]
        if self._with_offsets:
            steps += [one async for one in self._offsets()]
        return steps

    async def apply(self, steps: list[ImportStep], *, may_change: bool) -> list[ImportStep]:
        """Make what is missing and, if it may, change what differs; return the steps with their outcomes."""
        done = []
        for step in steps:
            wanted = step.action is ImportAction.MAKE or (step.action is ImportAction.CHANGE and may_change)
            done.append(await self._do(step) if wanted else step)
        return done

    async def _do(self, step: ImportStep) -> ImportStep:
        try:
            gathered = await self._write(step)
        except (MQError, OSError) as error:
            return replace(step, error=str(error))
        if gathered is not None and gathered.failures:
            return replace(step, error="; ".join(f"{name}: {error}" for name, error in gathered.failures.items()))
        return replace(step, is_done=True)

    async def _write(self, step: ImportStep) -> Gathered[str] | None:
        admin, value, to = self._admin, step.value, {"cluster": self._cluster}
        if step.kind == "topic":
            return await admin.create_topic(value, broker=step.broker)
        if step.kind == "group":
            attributes = {f"+{name}": text for name, text in value.attributes.items()}
            return await admin.create_group(structs.replace(value, attributes=attributes), broker=step.broker)
        if step.kind == "offset":
            group, queue, offset = value
            await admin.set_offset(group, queue, offset)
            return None
        if step.kind == "user":
            if step.action is ImportAction.MAKE:
                password = self._passwords[step.name]
                made = await admin.create_user(step.name, password, user_type=value.user_type or "Normal", **to)
                if made.failures or (value.user_status or "enable") == "enable":
                    return made
            return await admin.update_user(step.name, user_type=value.user_type, user_status=value.user_status, **to)
        subject, policy_type, entry, is_new = value
        write = admin.create_acl if is_new else admin.update_acl
        return await write(
            subject,
            [entry.resource or ""],
            entry.actions,
            decision=entry.decision or "Allow",
            source_ips=entry.source_ips or (),
            policy_type=policy_type,
            **to,
        )

    # -- topics and groups -----------------------------------------------------------------------------------------

    def _configs(
        self,
        kind: str,
        of: Callable[[ExportedBroker], Mapping[str, Config]],
        known: Mapping[str, Mapping[str, Config]],
        choose: Callable[[list[str]], Iterable[str]],
    ) -> Iterator[ImportStep]:
        names = sorted({name for broker in self._export.values() for name in of(broker)})
        for name in choose(names):
            wanted = {broker: of(one)[name] for broker, one in self._export.items() if name in of(one)}
            if self._pairs:
                targets = {self._pairs[broker]: config for broker, config in wanted.items()}
            elif len({repr(config) for config in wanted.values()}) > 1:
                detail = (
                    f"it differs between {', '.join(wanted)}, and the target has {len(self._masters)} brokers, not "
                    f"{len(self._export)}: create it by hand"
                )
                yield ImportStep(kind, name, "", ImportAction.CONFLICT, detail)
                continue
            else:
                targets = dict.fromkeys(self._masters, next(iter(wanted.values())))
            for broker, config in targets.items():
                yield _config_step(kind, name, broker, config, known[broker].get(name))

    # -- users and policies ----------------------------------------------------------------------------------------

    async def _users(self) -> list[ImportStep]:
        wanted = {user.username or "": user for one in self._export.values() for user in one.users or ()}
        try:
            gathered = await self._admin.users()
            for failure in gathered.failures.values():
                raise failure
        except (MQError, OSError) as error:
            return [self._without("user", name, error) for name in sorted(wanted)]
        known: dict[str, list[UserInfo]] = {}
        for found in gathered.found.values():
            for user in found:
                known.setdefault(user.username or "", []).append(user)
        steps = []
        for name, user in sorted(wanted.items()):
            if name not in known:
                if name in self._passwords:
                    steps.append(ImportStep("user", name, "", ImportAction.MAKE, user.user_type or "", user))
                    continue
                detail = "an export has no passwords: pass --passwords, or create it with `mqtrail acl user create`"
                steps.append(ImportStep("user", name, "", ImportAction.CONFLICT, detail))
                continue
            differs = [
                f"{what} {now} -> {then}"
                for what, then in (("type", user.user_type), ("status", user.user_status))
                for now in {one.user_type if what == "type" else one.user_status for one in known[name]}
                if then is not None and now != then
            ]
            action = ImportAction.CHANGE if differs else ImportAction.EQUAL
            steps.append(ImportStep("user", name, "", action, ", ".join(differs), user))
        return steps

    async def _policies(self) -> list[ImportStep]:
        wanted = _entries([one.policies or () for one in self._export.values()])
        try:
            gathered = await self._admin.acls()
            for failure in gathered.failures.values():
                raise failure
        except (MQError, OSError) as error:
            return [self._without("policy", _policy_name(key), error) for key in sorted(wanted)]
        known = _entries(gathered.values())
        steps = []
        for key, entry in sorted(wanted.items()):
            subject, policy_type, _ = key
            name, there = _policy_name(key), known.get(key)
            value = (subject, policy_type, entry, there is None)
            if there is None:
                steps.append(ImportStep("policy", name, "", ImportAction.MAKE, _entry_text(entry), value))
            elif _entry_text(there) == _entry_text(entry):
                steps.append(ImportStep("policy", name, "", ImportAction.EQUAL))
            else:
                detail = f"{_entry_text(there)} -> {_entry_text(entry)}"
                steps.append(ImportStep("policy", name, "", ImportAction.CHANGE, detail, value))
        return steps

    @staticmethod
    def _without(kind: str, name: str, error: Exception) -> ImportStep:
        detail = f"the target does not list its access control: {error}: enable authentication in its brokers"
        return ImportStep(kind, name, "", ImportAction.CONFLICT, detail)

    # -- offsets ---------------------------------------------------------------------------------------------------

    async def _offsets(self) -> AsyncIterator[ImportStep]:
        for broker, exported in self._export.items():
            for group, topics in sorted(exported.offsets.items()):
                if not is_business_group(group):
                    continue
                for topic, queues in sorted(topics.items()):
                    for number, offset in sorted(queues.items()):
                        yield await self._offset(broker, group, MessageQueue(topic, broker, number), offset)

    async def _offset(self, broker: str, group: str, place: MessageQueue, offset: int) -> ImportStep:
        """Return the step of one offset. It is a number of the source: right only where the queues are the same."""
        to = self._pairs.get(broker, "")
        name = f"{group} {place.topic}/{place.queue_id}"
        queue = MessageQueue(place.topic, to, place.queue_id)
        if not to:
            detail = "the target has not as many brokers: use `mqtrail mirror offsets`"
            return ImportStep("offset", name, to, ImportAction.CONFLICT, detail)
        try:
            if queue not in await self._admin.queues(place.topic):
                raise RouteNotFound("no such queue")
            end = await self._admin.max_offset(queue)
            now = await self._admin.consumer_offset(group, queue)
        except RouteNotFound:
            detail = "found no such queue in the target: import topics first"
            return ImportStep("offset", name, to, ImportAction.CONFLICT, detail)
        if offset > end:
            detail = (
                f"found the end {end} of the queue, expected {offset} or more: it has other messages than the source; "
                "use `mqtrail mirror offsets`"
            )
            return ImportStep("offset", name, to, ImportAction.CONFLICT, detail)
        if now == offset:
            return ImportStep("offset", name, to, ImportAction.EQUAL)
        action = ImportAction.MAKE if now is None else ImportAction.CHANGE
        return ImportStep(
            "offset", name, to, action, f"{'none' if now is None else now} -> {offset}", (group, queue, offset)
        )


def _config_step(kind: str, name: str, broker: str, wanted: Config, known: Config | None) -> ImportStep:
    """Compare the fields of a topic or group with what a broker of the target has."""
    if known is None:
        detail = ""
        if isinstance(wanted, TopicConfig):
            detail = f"{wanted.write_queue_nums} queues, perm {wanted.perm}"
        return ImportStep(kind, name, broker, ImportAction.MAKE, detail, wanted)
    now, then = known.members(), wanted.members()
    differs = {one: (now[one], value) for one, value in then.items() if one in now and now[one] != value}
    if not differs:
        return ImportStep(kind, name, broker, ImportAction.EQUAL)
    detail = ", ".join(f"{one} {before} -> {after}" for one, (before, after) in sorted(differs.items()))
    if any(after < before for one, (before, after) in differs.items() if one in ("readQueueNums", "writeQueueNums")):
        detail += ": fewer queues would hide their messages: change it by hand, or leave it"
        return ImportStep(kind, name, broker, ImportAction.CONFLICT, detail)
    return ImportStep(kind, name, broker, ImportAction.CHANGE, detail, wanted)


def _entries(brokers: Iterable[Iterable[AclInfo]]) -> dict[tuple[str, str, str], PolicyEntryInfo]:
    """Return the entries of policies by subject, policy type and resource."""
    return {
        (acl.subject or "", policy.policy_type or "Custom", entry.resource or ""): entry
        for acls in brokers
        for acl in acls
        for policy in acl.policies
        for entry in policy.entries
    }


def _policy_name(key: tuple[str, str, str]) -> str:
    return f"{key[0]} {key[2]}"


def _entry_text(entry: PolicyEntryInfo) -> str:
    ips = f" from {','.join(sorted(entry.source_ips))}" if entry.source_ips else ""
    return f"{entry.decision or 'Allow'} {','.join(sorted(entry.actions))}{ips}"
