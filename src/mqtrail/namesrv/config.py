"""What a name server may be told, with RocketMQ's names beside ours.

Source: NamesrvConfig, apache/rocketmq common/.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from mqtrail.wire import InvalidParameter, address_matcher


@dataclass(frozen=True, slots=True, kw_only=True)
class NameServerConfig:
    """Times are ms."""

    listen_port: int = 9876  # RocketMQ: listenPort; told to those who ask for the configuration
    broker_expire_ms: int = 120_000  # a broker silent for so long is forgotten, where it names no time of its own
    scan_ms: int = 5_000  # RocketMQ: scanNotActiveBrokerInterval
    topic_list: bool = True  # RocketMQ: enableAllTopicList
    cluster_topic_list: bool = True  # RocketMQ: enableTopicList; the topics of one cluster, of units
    order_conf_in_route: bool = False  # RocketMQ: orderMessageEnable
    order_conf_to_broker: bool = True  # RocketMQ: returnOrderTopicConfigToBroker
    delete_with_registration: bool = False  # RocketMQ: deleteTopicWithBrokerRegistration
    wait_for_service: bool = False  # RocketMQ: needWaitForService; no routes before brokers had time to register
    wait_for_service_ms: int = 45_000  # RocketMQ: waitSecondsForService, there in seconds
    brokers_max: int = 10_000  # registrations kept; further brokers are refused
    broker_topics_max: int = 100_000  # topics of one broker; a registration with more is refused
    topic_routes_max: int = 1_000_000  # topics of all brokers, each counted on each of its brokers
    acl: bool | None = None  # check who registers and who changes something; None: when this node's brokers check
    protect_routes: bool = False  # with acl: routes and topic lists need a known account too
    trusted_addresses: str = ""  # with acl: brokers from here register unsigned (RocketMQ 4.9), as 10.0.0.{1,2}

    def __post_init__(self) -> None:
        """Refuse what could not work. InvalidParameter names the field."""
        for name in ("broker_expire_ms", "scan_ms", "brokers_max", "broker_topics_max", "topic_routes_max"):
            if getattr(self, name) <= 0:
                raise InvalidParameter(f"found {name} {getattr(self, name)}, expected more than 0")
        address_matcher(self.trusted_addresses)

    def change(self, values: Mapping[str, object]) -> None:
        """Set fields of the running server: request 318, and the port once it is known. InvalidParameter: none is."""
        replace(self, **values)  # type: ignore[arg-type]
        for name, value in values.items():
            object.__setattr__(self, name, value)
