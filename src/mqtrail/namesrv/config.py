"""What a name server may be told, with RocketMQ's names beside ours.

Source: NamesrvConfig, apache/rocketmq common/.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """Times are ms."""

    listen_port: int = 9876  # RocketMQ: listenPort; told to those who ask for the configuration
    broker_expire_ms: int = 120_000  # a broker silent for so long is forgotten, where it names no time of its own
    scan_ms: int = 5_000  # RocketMQ: scanNotActiveBrokerInterval
    topic_list: bool = True  # RocketMQ: enableAllTopicList, enableTopicList
    order_conf_in_route: bool = False  # RocketMQ: orderMessageEnable
    order_conf_to_broker: bool = True  # RocketMQ: returnOrderTopicConfigToBroker
    delete_with_registration: bool = False  # RocketMQ: deleteTopicWithBrokerRegistration
    brokers_max: int = 10_000  # registrations kept; further brokers are refused
