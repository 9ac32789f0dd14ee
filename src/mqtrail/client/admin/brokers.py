"""Brokers and name servers: addresses, settings, counters, maintenance."""

from collections.abc import Mapping
from dataclasses import dataclass

from mqtrail.wire import (
    BrokerStatsData,
    GroupOffsets,
    KvTable,
    RequestCode,
    SubscriptionGroupConfig,
    SystemError_,
    TopicConfig,
)

from ..core import reply_number
from .base import Gathered, read_settings
from .messages import AdminMessages


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One broker process. runtime: its counters and versions; None if it did not answer, then error says why."""

    cluster: str
    name: str
    broker_id: int
    address: str
    runtime: Mapping[str, str] | None
    error: Exception | None = None

    @property
    def version(self) -> str:
        """The release, such as V5_3_3; '?' if the broker did not answer."""
        return (self.runtime or {}).get("brokerVersionDesc", "?")


@dataclass(frozen=True, slots=True)
class TopicRates:
    """One broker's counts of a topic for the last minute, hour and day: stored, and delivered to each group."""

    stored: BrokerStatsData
    consumed: Mapping[str, BrokerStatsData]


@dataclass(frozen=True, slots=True)
class BrokerExport:
    """The configuration of one broker: topics and groups by name, settings, and the offsets of applications' groups."""

    topics: Mapping[str, TopicConfig]
    groups: Mapping[str, SubscriptionGroupConfig]
    settings: Mapping[str, str]
    offsets: tuple[GroupOffsets, ...] = ()


class AdminBrokers(AdminMessages):
    """Admin's methods for brokers and name servers."""

    async def brokers(self, cluster: str | None = None) -> list[BrokerInfo]:
        """All brokers, masters and slaves, of a cluster (None: of all), with their counters."""
        info = await self.cluster()
        places = [
            (broker.cluster, name, broker_id, address)
            for name, broker in sorted(info.broker_addr_table.items())
            if cluster is None or broker.cluster == cluster
            for broker_id, address in sorted(broker.broker_addrs.items())
        ]
        reports = await self._gather({address: self.runtime_info(address) for *_, address in places})
        return [
            BrokerInfo(cluster, name, broker_id, address, reports.found.get(address), reports.failures.get(address))
            for cluster, name, broker_id, address in places
        ]

    async def set_broker_config(
        self, settings: Mapping[str, str], *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Change settings of running brokers, which also write them to their configuration files."""
        body = _properties_text(settings)
        code = RequestCode.UPDATE_BROKER_CONFIG
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, {}, body))

    async def runtime_info(self, broker_address: str) -> dict[str, str]:
        """A broker's counters and versions."""
        table = await self._ask(broker_address, RequestCode.GET_BROKER_RUNTIME_INFO, {}, KvTable.decode)
        return dict(table.table)

    async def broker_stats(self, broker_address: str, name: str, key: str) -> BrokerStatsData:
        """A statistic of the last minute, hour and day: e.g. TOPIC_PUT_NUMS of a topic, GROUP_GET_NUMS of topic@group.

        Raises SystemError_ (Java's code 1) if the broker has no count of that name and key.
        """
        ext = {"statsName": name, "statsKey": key}
        return await self._ask(broker_address, RequestCode.VIEW_BROKER_STATS_DATA, ext, BrokerStatsData.decode)

    async def ha_status(self, broker_address: str) -> str:
        """The state of a broker's replicas, as the JSON text that the broker returns (5.x)."""
        return await self._ask(broker_address, RequestCode.GET_BROKER_HA_STATUS, {}, lambda body: body.decode())

    async def topic_rates(self, topic: str) -> Gathered[TopicRates]:
        """Each broker's counts of a topic: stored, and delivered to each group."""
        route = await self._client.fetch_route(topic)
        masters = {name: address for name in route.brokers if (address := route.master(name)) is not None}
        groups: set[str] = set()
        for found in (await self.groups_of_topic(topic)).values():
            groups.update(found.group_list)

        async def rates(address: str) -> TopicRates:
            stored = await self._counted(address, "TOPIC_PUT_NUMS", topic)
            return TopicRates(
                stored,
                {group: await self._counted(address, "GROUP_GET_NUMS", f"{topic}@{group}") for group in sorted(groups)},
            )

        return await self._gather({name: rates(address) for name, address in masters.items()})

    async def _counted(self, address: str, name: str, key: str) -> BrokerStatsData:
        try:
            return await self.broker_stats(address, name, key)
        except SystemError_:
            return BrokerStatsData()  # no count: all zero

    async def export(self, *, cluster: str | None = None, broker: str | None = None) -> Gathered[BrokerExport]:
        """The configuration of masters: topics, groups, settings and offsets."""

        async def export(address: str) -> BrokerExport:
            topics, groups = await self.topic_configs(address), await self.groups(address)
            offsets = (await self.committed_offsets(address)).of_business()
            return BrokerExport(
                topics.topic_config_table,
                groups.subscription_group_table,
                await self.broker_config(address),
                tuple(one for one in offsets if not one.is_broadcast),
            )

        return await self._on_targets(cluster, broker, export)

    # -- upkeep ----------------------------------------------------------------------------------------------------

    async def clean_expired_queues(self, *, cluster: str | None = None, broker: str | None = None) -> Gathered[str]:
        """Have brokers delete ConsumeQueue files whose messages are deleted."""
        code = RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, {}))

    async def delete_expired_logs(self, *, cluster: str | None = None, broker: str | None = None) -> Gathered[str]:
        """Have brokers delete CommitLog files beyond their retention now."""
        code = RequestCode.DELETE_EXPIRED_COMMITLOG
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, {}))

    async def wipe_write_perm(self, broker_name: str) -> Gathered[int]:
        """Remove the write permission of all of a broker's topics from the routes of every name server.

        Returns the number of topics changed, by name server.
        """
        return await self._write_perm(broker_name, RequestCode.WIPE_WRITE_PERM_OF_BROKER, "wipeTopicCount")

    async def add_write_perm(self, broker_name: str) -> Gathered[int]:
        """Restore the write permission. Returns as wipe_write_perm."""
        return await self._write_perm(broker_name, RequestCode.ADD_WRITE_PERM_OF_BROKER, "addTopicCount")

    async def _write_perm(self, broker_name: str, code: RequestCode, counted: str) -> Gathered[int]:
        async def change(address: str) -> int:
            reply = await self._client.call(address, code, {"brokerName": broker_name})
            return reply_number(reply, counted)

        return await self._on_name_servers(change)

    # -- name servers ----------------------------------------------------------------------------------------------

    async def namesrv_config(self) -> Gathered[dict[str, str]]:
        """The settings of each name server."""
        code = RequestCode.GET_NAMESRV_CONFIG
        return await self._on_name_servers(lambda address: self._ask(address, code, {}, read_settings))

    async def set_namesrv_config(self, settings: Mapping[str, str]) -> Gathered[str]:
        """Change settings of every name server."""
        body = _properties_text(settings)
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        return await self._on_name_servers(lambda address: self._call(address, code, {}, body))


def _properties_text(settings: Mapping[str, str]) -> bytes:
    """Write `name=value` lines with Java's escapes."""
    return "".join(f"{name}={_escaped(value)}\n" for name, value in settings.items()).encode()


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
