"""What the broker tells name servers: itself and its topics (103), and that it goes (104).

5.3.3 name servers refuse a broker whose first registration has exactly one topic; ours always carries the broker's own
topics too.

Source: BrokerOuterAPI.registerBrokerAll, BrokerController.registerBrokerAll, apache/rocketmq broker/.
"""

from zlib import crc32

from msgspec.structs import replace

from mqtrail.wire import (
    BrokerHeader,
    DataVersion,
    Perm,
    RegisterBrokerBody,
    RegisterBrokerHeader,
    RemotingCommand,
    RequestCode,
    TopicConfigTable,
)

from .config import BrokerConfig
from .topics import TopicTable

REGISTER_TIMEOUT_MS = 24_000  # how long a name server may take; the node waits so long


def register_command(config: BrokerConfig, topics: TopicTable) -> RemotingCommand:
    """Return 103 with all topics; the bits that the broker itself lacks are taken from each topic's permission."""
    table = dict(topics.all())
    if config.permission & (Perm.READ | Perm.WRITE) != Perm.READ | Perm.WRITE:
        denied = (Perm.READ | Perm.WRITE) & ~config.permission
        table = {name: replace(topic, perm=topic.perm & ~denied) for name, topic in table.items()}
    wrapper = TopicConfigTable(table, topics.data_version, DataVersion(), {}, {})
    body = RegisterBrokerBody(wrapper).encode()
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


def unregister_command(config: BrokerConfig) -> RemotingCommand:
    """Return 104."""
    header = BrokerHeader(config.broker_name, str(config.address), config.cluster_name, config.broker_id)
    return RemotingCommand(RequestCode.UNREGISTER_BROKER, header.to_ext())
