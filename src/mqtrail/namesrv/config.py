"""The settings of a name server, with RocketMQ's names.

Source: NamesrvConfig, apache/rocketmq common/.
"""

from dataclasses import dataclass

from mqtrail.wire import SECONDS, address_matcher, check_settings, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """Times are ms."""

    listen_port: int = setting(9876, "port reported with the configuration", like="listenPort")
    broker_expire_ms: int = setting(
        120_000,
        "time without a heartbeat after which a broker is removed, unless the broker sends a time of its own",
        least=1,
    )
    scan_ms: int = setting(
        5_000, "interval of the check for expired brokers", conf="scanNotActiveBrokerInterval", least=1, changeable=True
    )
    topic_list: bool = setting(
        True, "answer requests for the list of all topics (206)", conf="enableAllTopicList", changeable=True
    )
    cluster_topic_list: bool = setting(
        True, "answer requests for the topics of a cluster or unit", conf="enableTopicList", changeable=True
    )
    order_conf_in_route: bool = setting(
        False, "include the order configuration of topics in routes", conf="orderMessageEnable", changeable=True
    )
    order_conf_to_broker: bool = setting(
        True,
        "send the order configuration of topics to brokers",
        conf="returnOrderTopicConfigToBroker",
        changeable=True,
    )
    delete_with_registration: bool = setting(
        False,
        "delete topics that a registration of their broker does not contain",
        conf="deleteTopicWithBrokerRegistration",
        changeable=True,
    )
    wait_for_service: bool = setting(
        False, "return no routes until brokers had time to register", conf="needWaitForService", changeable=True
    )
    wait_for_service_ms: int = setting(
        45_000,
        "time that brokers have to register (RocketMQ: seconds)",
        conf="waitSecondsForService",
        unit=SECONDS,
        changeable=True,
    )
    brokers_max: int = setting(10_000, "maximum number of registered brokers; further ones are rejected", least=1)
    broker_topics_max: int = setting(
        100_000, "maximum number of topics of one broker; a registration with more is rejected", least=1
    )
    topic_routes_max: int = setting(
        1_000_000,
        "maximum number of topics of all brokers, counted once per broker; further ones are rejected",
        least=1,
    )
    acl: bool | None = setting(
        None,
        "check the signatures of registrations and changes; none: enabled if the brokers of this node check requests",
    )
    protect_routes: bool = setting(False, "with `acl`: require a known account to read routes and topic lists")
    trusted_addresses: str = setting(
        "",
        "with `acl`: addresses of brokers that may register unsigned (RocketMQ up to 5.2), for example `10.0.0.{1,2}`",
    )

    def __post_init__(self) -> None:
        """InvalidParameter: a setting is invalid."""
        check_settings(self)
        address_matcher(self.trusted_addresses)
