"""Imports what `mqtrail cluster export` wrote: topics, groups, access control, values, offsets. First a plan.

Brokers of both clusters are paired in the order of their names if there are as many. Otherwise a topic or group goes to
all brokers, if it is the same on each broker of the source that has it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from msgspec import structs

from mqtrail.client import Admin, Gathered, MessageQueue, RouteNotFound
from mqtrail.wire import (
    ORDER_TOPIC_CONFIG,
    MQError,
    SubscriptionGroupConfig,
    TopicConfig,
    business_topics,
    is_business_group,
)

from .accounts import AccessImport
from .exported import BrokerPairs, ExportedBroker, ExportedCluster, ImportAction, ImportStep

Config = TypeVar("Config", TopicConfig, SubscriptionGroupConfig)


class ClusterImport:
    """One import. with_offsets: write offsets as they are.

    passwords: of users, and secret keys of accounts, to make; an export has none.
    """

    def __init__(
        self,
        admin: Admin,
        export: ExportedCluster,
        *,
        cluster: str | None = None,
        passwords: Mapping[str, str] | None = None,
        with_offsets: bool = False,
    ) -> None:
        self._admin = admin
        self._export = export
        self._cluster = cluster
        self._passwords = passwords or {}
        self._with_offsets = with_offsets
        self._pairs = BrokerPairs({}, {})
        self._access = AccessImport(admin, export.brokers, self._pairs, self._passwords)

    async def plan(self) -> list[ImportStep]:
        """Return what would be made, changed, is equal, or is a conflict. Nothing is changed. MQError."""
        masters, export = await self._admin.targets(self._cluster), self._export.brokers
        self._pairs = BrokerPairs.of(self._export, masters)
        self._access = AccessImport(self._admin, export, self._pairs, self._passwords)
        found = {name: await self._admin.topic_configs(address) for name, address in masters.items()}
        topics = {name: table.topic_config_table for name, table in found.items()}
        groups = {
            name: (await self._admin.groups(address)).subscription_group_table for name, address in masters.items()
        }
        clusters = {*(await self._admin.cluster()).cluster_addr_table, *(one.cluster for one in export.values())}
        own = {*export, *masters}
        steps = [
            *self._configs(
                "topic", lambda one: one.topics, topics, lambda names: business_topics(names, clusters, own)
            ),
            *self._configs("group", lambda one: one.groups, groups, lambda names: filter(is_business_group, names)),
            *(await self._access.plan()),
            *[one async for one in self._values()],
        ]
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
        admin, value = self._admin, step.value
        if step.kind == "topic":
            return await admin.create_topic(value, broker=step.broker)
        if step.kind == "group":
            attributes = {f"+{name}": text for name, text in value.attributes.items()}
            return await admin.create_group(structs.replace(value, attributes=attributes), broker=step.broker)
        if step.kind == "offset":
            group, queue, offset = value
            await admin.set_offset(group, queue, offset)
            return None
        if step.kind == "value":
            return await admin.kv_put(*value)
        return await self._access.write(step)

    # -- topics and groups -----------------------------------------------------------------------------------------

    def _configs(
        self,
        kind: str,
        of: Callable[[ExportedBroker], Mapping[str, Config]],
        known: Mapping[str, Mapping[str, Config]],
        choose: Callable[[list[str]], Iterable[str]],
    ) -> Iterator[ImportStep]:
        wanted = {broker: of(one) for broker, one in self._export.brokers.items()}
        names = sorted({name for one in wanted.values() for name in one})
        for name, spread in self._pairs.spread(wanted, choose(names)):
            if isinstance(spread, str):
                yield ImportStep(kind, name, "", ImportAction.CONFLICT, spread)
                continue
            for broker, config in spread.items():
                yield _config_step(kind, name, broker, config, known[broker].get(name))

    # -- key-value configuration of name servers -------------------------------------------------------------------

    async def _values(self) -> AsyncIterator[ImportStep]:
        """Yield a step for each value. A name server lists the values of a namespace, not the namespaces."""
        for namespace, table in sorted(self._export.values.items()):
            known = await self._admin.kv_list(namespace)
            for key, text in sorted(table.items()):
                name, value = f"{namespace} {key}", text
                if namespace == ORDER_TOPIC_CONFIG:
                    try:
                        value = self._order(text)
                    except ValueError as error:
                        yield ImportStep("value", name, "", ImportAction.CONFLICT, str(error))
                        continue
                now = known.get(key)
                if now == value:
                    yield ImportStep("value", name, "", ImportAction.EQUAL)
                    continue
                action = ImportAction.MAKE if now is None else ImportAction.CHANGE
                detail = f"{'none' if now is None else now} -> {value}"
                yield ImportStep("value", name, "", action, detail, (namespace, key, value))

    def _order(self, text: str) -> str:
        """Return the order of a topic's queues, BROKER:COUNT;…, with the brokers of the target. ValueError: why not."""
        found = [part.partition(":") for part in text.split(";") if part]
        if not self._pairs.pairs:
            raise ValueError(
                f"it names brokers, {text}, and the target has {len(self._pairs.masters)}, not "
                f"{len(self._export.brokers)}: set it with `mqtrail topic order`"
            )
        for broker, _, _ in found:
            if broker not in self._pairs.pairs:
                raise ValueError(
                    f"found broker {broker!r} in {text}, expected one of {', '.join(self._pairs.pairs)}: set it with "
                    "`mqtrail topic order`"
                )
        return ";".join(f"{self._pairs.pairs[broker]}:{count}" for broker, _, count in found)

    # -- offsets ---------------------------------------------------------------------------------------------------

    async def _offsets(self) -> AsyncIterator[ImportStep]:
        for broker, exported in self._export.brokers.items():
            for group, topics in sorted(exported.offsets.items()):
                if not is_business_group(group):
                    continue
                for topic, queues in sorted(topics.items()):
                    for number, offset in sorted(queues.items()):
                        yield await self._offset(broker, group, MessageQueue(topic, broker, number), offset)

    async def _offset(self, broker: str, group: str, place: MessageQueue, offset: int) -> ImportStep:
        """Return the step of one offset. It is a number of the source: right only where the queues are the same."""
        to = self._pairs.pairs.get(broker, "")
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
