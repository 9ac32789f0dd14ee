"""Topics: names, routes, configuration, contents."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from mqtrail.wire import (
    ORDER_TOPIC_CONFIG,
    CreateTopicHeader,
    KvTable,
    MessageQueue,
    QueryNotFound,
    RequestCode,
    TopicConfig,
    TopicConfigList,
    TopicConfigTable,
    TopicList,
    TopicNotExist,
    TopicRouteData,
    TopicStatsTable,
)

from ..core import ClientError, read_body
from .base import AdminBase, Gathered, in_parts


@dataclass(frozen=True, slots=True)
class Deleted:
    """The outcome of a deletion on the brokers, by name, and on the name servers, by address."""

    brokers: Gathered[str]
    name_servers: Gathered[str]

    @property
    def complete(self) -> bool:
        """Whether it was deleted everywhere."""
        return self.brokers.complete and self.name_servers.complete


class AdminTopics(AdminBase):
    """Admin's methods for topics."""

    async def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return await self._names(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})

    async def topics_of_cluster(self, cluster: str) -> list[str]:
        """The names of the topics that a cluster's brokers have, sorted."""
        return await self._names(RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": cluster})

    async def system_topics(self, broker: str | None = None) -> list[str]:
        """The system topics: cluster and broker names or, with broker (name or address), those of that broker."""
        if broker is None:
            return await self._names(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, {})
        (address,) = (await self.targets(None, broker)).values()
        found = await self._ask(address, RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, {}, TopicList.decode)
        return sorted(found.topic_list)

    async def _names(self, code: RequestCode, ext: dict[str, str]) -> list[str]:
        found = await self._client.name_servers.ask(code, ext, lambda reply: read_body(reply, TopicList.decode))
        return sorted(found.topic_list)

    async def route(self, topic: str) -> TopicRouteData:
        """The topic's current route, from the name server. Raises RouteNotFound."""
        return await self._client.name_servers.route(topic)

    async def clusters_of(self, topic: str) -> list[str]:
        """The clusters whose brokers have the topic, sorted. Raises RouteNotFound."""
        return sorted({broker.cluster for broker in (await self.route(topic)).broker_datas})

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The topic's readable queues, sorted. Raises RouteNotFound."""
        return list((await self._client.fetch_route(topic)).subscribe_queues)

    async def create_topic(
        self, config: TopicConfig, *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Create a topic, or change it, on one broker (name or address) or on a cluster's masters (None: on all).

        Raises ClientError when there is no such broker.
        """
        ext = _create_header(config).to_ext()
        code = RequestCode.UPDATE_AND_CREATE_TOPIC
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, ext))

    async def create_topics(
        self, configs: Sequence[TopicConfig], *, cluster: str | None = None, broker: str | None = None
    ) -> Gathered[str]:
        """Create topics, LISTED_MAX per request. 4.9 brokers refuse (RequestCodeNotSupported)."""
        bodies = [TopicConfigList(tuple(some)).encode() for some in in_parts(configs)]
        code = RequestCode.UPDATE_AND_CREATE_TOPIC_LIST
        return await self._on_targets(cluster, broker, lambda address: self._call_in_parts(address, code, bodies))

    async def topic_config(self, topic: str) -> Gathered[TopicConfig]:
        """The topic's configuration on each of its brokers. 4.9 brokers are asked for all topics."""
        route = await self._client.fetch_route(topic)
        return await self._gather(
            {
                name: self._topic_config(address, topic)
                for name in route.brokers
                if (address := route.address(name)) is not None
            }
        )

    async def _topic_config(self, address: str, topic: str) -> TopicConfig:
        table = await self.topic_configs(address)
        config = table.topic_config_table.get(topic)
        if config is None:
            raise TopicNotExist(f"the broker at {address} has no topic {topic!r}")
        return config

    async def set_topic_perm(self, topic: str, perm: int, *, broker: str | None = None) -> Gathered[TopicConfig]:
        """Set the permission (bits of Perm) of a topic without changing the rest; broker: only on that one.

        Returns each broker's new configuration. Raises ClientError if the broker does not have the topic.
        """
        known = await self.topic_config(topic)
        if broker is not None and broker not in known.found:
            raise ClientError(f"broker {broker!r} has no topic {topic!r}: expected one of {', '.join(known.found)}")
        route = self._client.known_route(topic)
        assert route is not None
        changed = await self._gather(
            {
                name: self._set_perm(route.master(name) or "", config, perm)
                for name, config in known.found.items()
                if broker is None or broker == name
            }
        )
        return Gathered(changed.found, {**known.failures, **changed.failures})

    async def _set_perm(self, address: str, config: TopicConfig, perm: int) -> TopicConfig:
        header = _create_header(config)
        header.perm = perm
        await self._call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
        return await self._topic_config(address, config.topic)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> Deleted:
        """Delete a topic on the masters of a cluster (None: of every cluster) and then on the name servers."""
        ext = {"topic": topic}
        brokers = await self._on_targets(
            cluster, None, lambda address: self._call(address, RequestCode.DELETE_TOPIC_IN_BROKER, ext)
        )
        there = ext | ({"clusterName": cluster} if cluster else {})
        servers = await self._on_name_servers(
            lambda address: self._call(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, there)
        )
        return Deleted(brokers, servers)

    async def topic_configs(self, broker_address: str) -> TopicConfigTable:
        """The configurations of all topics of a broker."""
        return await self._ask(broker_address, RequestCode.GET_ALL_TOPIC_CONFIG, {}, TopicConfigTable.decode)

    async def topic_stats(self, topic: str, *, without: Collection[str] = ()) -> Gathered[TopicStatsTable]:
        """The offset range and last write of each queue of a topic, by broker. without: names of brokers to skip."""
        ext = {"topic": topic}
        code = RequestCode.GET_TOPIC_STATS_INFO
        return await self._on_topic(topic, code, ext, TopicStatsTable.decode, without=without)

    async def broker_topic_stats(self, broker_address: str, topic: str) -> TopicStatsTable:
        """The offset range and last write of each queue of a topic on one broker. Raises TopicNotExist."""
        return await self._ask(
            broker_address, RequestCode.GET_TOPIC_STATS_INFO, {"topic": topic}, TopicStatsTable.decode
        )

    async def clean_unused_topics(self, *, cluster: str | None = None, broker: str | None = None) -> Gathered[str]:
        """Have brokers delete the queues of topics that no longer exist."""
        code = RequestCode.CLEAN_UNUSED_TOPIC
        return await self._on_targets(cluster, broker, lambda address: self._call(address, code, {}))

    # -- key-value configuration of name servers -------------------------------------------------------------------

    async def kv_get(self, namespace: str, key: str) -> str | None:
        """A value kept by the name servers; None if there is none."""
        ext = {"namespace": namespace, "key": key}
        try:
            return await self._client.name_servers.ask(
                RequestCode.GET_KV_CONFIG, ext, lambda reply: read_body(reply, lambda _: reply.ext.get("value"))
            )
        except QueryNotFound:
            return None

    async def kv_list(self, namespace: str) -> dict[str, str]:
        """All keys and values of a namespace of the name servers."""
        ext = {"namespace": namespace}
        try:
            found = await self._client.name_servers.ask(
                RequestCode.GET_KVLIST_BY_NAMESPACE, ext, lambda reply: read_body(reply, KvTable.decode)
            )
        except QueryNotFound:
            return {}
        return dict(found.table)

    async def kv_put(self, namespace: str, key: str, value: str) -> Gathered[str]:
        """Set a value on every name server."""
        ext = {"namespace": namespace, "key": key, "value": value}
        return await self._on_name_servers(lambda address: self._call(address, RequestCode.PUT_KV_CONFIG, ext))

    async def kv_delete(self, namespace: str, key: str) -> Gathered[str]:
        """Delete a value on every name server."""
        ext = {"namespace": namespace, "key": key}
        return await self._on_name_servers(lambda address: self._call(address, RequestCode.DELETE_KV_CONFIG, ext))

    # -- order configuration: the fixed number of an ordered topic's queues on each broker -------------------------

    async def order_config(self, topic: str) -> str | None:
        """The topic's order configuration, e.g. `broker-a:4;broker-b:4`; None if there is none."""
        return await self.kv_get(ORDER_TOPIC_CONFIG, topic)

    async def set_order_config(self, topic: str, value: str) -> Gathered[str]:
        """Set the topic's order configuration on every name server."""
        return await self.kv_put(ORDER_TOPIC_CONFIG, topic, value)

    async def delete_order_config(self, topic: str) -> Gathered[str]:
        """Delete the topic's order configuration on every name server."""
        return await self.kv_delete(ORDER_TOPIC_CONFIG, topic)


def _create_header(config: TopicConfig) -> CreateTopicHeader:
    return CreateTopicHeader(
        topic=config.topic,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=",".join(f"+{name}={value}" for name, value in config.attributes.items()) or None,
    )
