"""Requests that read routes: the route of a topic, brokers of clusters and groups, lists of topics.

Source: ClientRequestProcessor, DefaultRequestProcessor, apache/rocketmq namesrv/.
"""

from typing import Final

import msgspec

from mqtrail.wire import (
    ORDER_TOPIC_CONFIG,
    VERSION_STRICT_ROUTE_JSON,
    BrokerMemberGroupHeader,
    ClusterHeader,
    ClusterInfo,
    Peer,
    RemotingCommand,
    RouteHeader,
    Send,
    SystemError_,
    TopicList,
    TopicNotExist,
    TopicRouteData,
    Work,
    answer,
    dumps_fastjson,
    encode_in_slices,
    encode_list_in_slices,
)

from .config import NameServerConfig
from .key_values import KeyValues
from .route_tables import EXT_ZONE_NAME, RouteTable

EXT_ZONE_MODE: Final = "__ZONE_MODE"
BROKERS_A_SLICE: Final = 500  # encoded as JSON
NAMES_A_SLICE: Final = 5_000


class Queries:
    """Reads the routes of one name server. boot_ms: when it started."""

    def __init__(self, config: NameServerConfig, routes: RouteTable, key_values: KeyValues, boot_ms: int) -> None:
        self._config = config
        self._routes = routes
        self._key_values = key_values
        self._boot_ms = boot_ms

    def route(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """105. The body is standard JSON for clients from 4.9.4 or on request, otherwise broker ids are unquoted."""
        config = self._config
        if config.wait_for_service and now_ms - self._boot_ms < config.wait_for_service_ms:
            raise SystemError_(
                f"name server not ready: found {now_ms - self._boot_ms} ms since its start, expected "
                f"{config.wait_for_service_ms} (waitSecondsForService): brokers are still registering"
            )
        header = RouteHeader.from_ext(request.ext)
        route = self._routes.route(header.topic)
        if route is None:
            raise TopicNotExist(
                f"No topic route info in name server for the topic: {header.topic}: no live broker has registered it; "
                "check that the topic exists and that its brokers know this name server"
            )
        if self._config.order_conf_in_route:
            conf = self._key_values.value(ORDER_TOPIC_CONFIG, header.topic)
            route = msgspec.structs.replace(route, order_topic_conf=conf)
        if request.ext.get(EXT_ZONE_MODE, "").lower() == "true" and request.ext.get(EXT_ZONE_NAME):
            route = _of_zone(route, request.ext[EXT_ZONE_NAME])
        strict = request.version >= VERSION_STRICT_ROUTE_JSON or header.accept_standard_json_only is True
        if len(route.broker_datas) <= BROKERS_A_SLICE:
            return answer(peer, request, body=route.encode(strict=strict))
        return answer(peer, request, body=(yield from route.encode_in_slices(BROKERS_A_SLICE, strict=strict)))

    def cluster(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """106."""
        rest = ClusterInfo({}, self._routes.clusters())
        groups = self._routes.groups()
        body = yield from encode_in_slices(rest, "brokerAddrTable", groups, BROKERS_A_SLICE, strict=False)
        return answer(peer, request, body=body)

    def member_group(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """901."""
        header = BrokerMemberGroupHeader.from_ext(request.ext)
        group = self._routes.group(header.broker_name)
        addresses = group.broker_addrs if group is not None and group.cluster == header.cluster_name else {}
        members = {"brokerAddrs": addresses, "brokerName": header.broker_name, "cluster": header.cluster_name}
        return answer(peer, request, body=dumps_fastjson({"brokerMemberGroup": members}))

    def topics(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """206."""
        self._require_topic_list()
        return (yield from self._answer_topics(peer, request, (yield from self._routes.topics())))

    def _answer_topics(self, peer: Peer, request: RemotingCommand, topics: list[str]) -> Work:
        body = yield from encode_list_in_slices(TopicList(), "topicList", topics, NAMES_A_SLICE)
        return answer(peer, request, body=body)

    def topics_of_cluster(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """224."""
        self._require_cluster_topic_list()
        header = ClusterHeader.from_ext(request.ext)
        topics = yield from self._routes.topics(header.cluster)
        return (yield from self._answer_topics(peer, request, topics))

    def _require_topic_list(self) -> None:
        if not self._config.topic_list:
            raise SystemError_("disable: enableAllTopicList is off on this name server")

    def _require_cluster_topic_list(self) -> None:
        if not self._config.cluster_topic_list:
            raise SystemError_("disable: enableTopicList is off on this name server")

    def unit_topics(
        self,
        peer: Peer,
        request: RemotingCommand,
        now_ms: int,
        *,
        unit: bool | None = None,
        subscribed: bool | None = None,
    ) -> Work:
        """311, 312, 313: topics that do or do not belong to a unit, and that units do or do not subscribe to."""
        self._require_cluster_topic_list()
        topics = yield from self._routes.unit_topics(unit, subscribed)
        return (yield from self._answer_topics(peer, request, topics))

    def system_topics(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """304."""
        names, address = self._routes.system_topics()
        return answer(peer, request, body=TopicList(tuple(names), address).encode())


def _of_zone(route: TopicRouteData, zone: str) -> TopicRouteData:
    """Return the route without brokers of other zones, but keep brokers without a master."""
    brokers = tuple(broker for broker in route.broker_datas if broker.zone_name == zone or broker.master is None)
    names = {broker.broker_name for broker in brokers}
    queues = tuple(queues for queues in route.queue_datas if queues.broker_name in names)
    return msgspec.structs.replace(route, broker_datas=brokers, queue_datas=queues)
