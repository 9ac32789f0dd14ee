"""Commands for name servers: register the broker with its topics (103), register one topic (217), unregister (104).

Name servers of 5.3.3 reject a broker whose first registration has exactly one topic; this broker always includes the
system topics.

Source: BrokerOuterAPI.registerBrokerAll, BrokerController.registerBrokerAll, apache/rocketmq broker/.
"""

from zlib import crc32

from msgspec.structs import replace

from mqtrail.wire import (
    BrokerHeader,
    DataVersion,
    Perm,
    QueueData,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    RemotingCommand,
    RequestCode,
    TopicConfig,
    TopicConfigTable,
    TopicHeader,
    TopicRouteData,
    dumps,
)

from ..config import BrokerConfig
from .topics import TopicTable


def register_command(config: BrokerConfig, topics: TopicTable) -> RemotingCommand:
    """Return 103 with all topics; permissions that the broker lacks are removed from each topic."""
    if _denied(config):
        table = {name: registered_topic(config, topic) for name, topic in topics.all().items()}
        entries: object = {name: topic.members() for name, topic in table.items()}
    else:
        entries = topics.encoded()
    wrapper = TopicConfigTable({}, topics.data_version, DataVersion(), {}, {}).members()
    wrapper["topicConfigTable"] = entries
    body = dumps(RegisterBrokerBody().members() | {"topicConfigSerializeWrapper": wrapper})
    header = RegisterBrokerHeader(
        broker_name=config.broker_name,
        broker_addr=str(config.address),
        cluster_name=config.cluster_name,
        ha_server_addr=str(config.ha_address),
        broker_id=config.broker_id,
        compressed=False,
        body_crc32=crc32(body) & 0x7FFFFFFF,
        enable_acting_master=False,
    )
    return RemotingCommand(RequestCode.REGISTER_BROKER, header.to_ext(), body)


def register_topic_command(config: BrokerConfig, topic: TopicConfig) -> RemotingCommand:
    """Return 217: one topic of a registered broker. Name servers before 5.0 do not support it."""
    registered = registered_topic(config, topic)
    queues = QueueData(
        config.broker_name,
        registered.read_queue_nums,
        registered.write_queue_nums,
        registered.perm,
        registered.topic_sys_flag,
    )
    body = TopicRouteData((queues,)).encode()
    return RemotingCommand(RequestCode.REGISTER_TOPIC_IN_NAMESRV, TopicHeader(topic.topic).to_ext(), body)


def registered_topic(config: BrokerConfig, topic: TopicConfig) -> TopicConfig:
    """Return a topic as it is registered: without the permissions that the broker lacks."""
    denied = _denied(config)
    return replace(topic, perm=topic.perm & ~denied) if denied else topic


def _denied(config: BrokerConfig) -> int:
    return (Perm.READ | Perm.WRITE) & ~config.permission


def unregister_command(config: BrokerConfig) -> RemotingCommand:
    """Return 104."""
    header = BrokerHeader(config.broker_name, str(config.address), config.cluster_name, config.broker_id)
    return RemotingCommand(RequestCode.UNREGISTER_BROKER, header.to_ext())
