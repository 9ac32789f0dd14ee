"""The settings of a controller, with RocketMQ's names.

Source: ControllerConfig, apache/rocketmq common/.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from mqtrail.raft import RaftConfig
from mqtrail.wire import address_matcher, check_settings, parse_peers, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerConfig:
    """Times are ms."""

    group: str = setting("controllers", "name of the group of controllers", conf="controllerDLegerGroup", least=1)
    peers: str = setting(
        "n0-127.0.0.1:9878",
        "all controllers of the group: `<id>-<host>:<port>`, joined by `;`; 1, 3 or 5, the same list at each",
        conf="controllerDLegerPeers",
        least=1,
    )
    self_id: str = setting("n0", "id of this controller in `peers`", conf="controllerDLegerSelfId", least=1)
    elect_unclean_master: bool = setting(
        False,
        "elect a broker that is not in sync if no other is alive: acknowledged messages may be lost",
        conf="enableElectUncleanMaster",
        changeable=True,
    )
    notify_role_changed: bool = setting(
        True, "notify brokers at once when their master has changed", conf="notifyBrokerRoleChanged", changeable=True
    )
    scan_ms: int = setting(
        500,
        "interval of the check for masters whose heartbeats stopped (RocketMQ: 5 000)",
        conf="scanNotActiveBrokerInterval",
        least=1,
        changeable=True,
    )
    broker_expire_ms: int = setting(
        10_000,
        "time without a heartbeat after which a broker is dead, unless it sends a time of its own",
        least=1,
    )
    heartbeat_ms: int = setting(150, "interval of heartbeats between controllers", least=1)
    election_ms: int = setting(
        1_000,
        "time without the leading controller after which another is elected; up to as much again at random",
        least=10,
    )

    acl: bool | None = setting(
        None,
        "check the signatures of requests that change something, and of the other controllers; none: if "
        "`inner_credentials` is set; `mqtrail up --ha`: if its brokers check requests",
    )
    inner_credentials: str = setting(
        "",
        "account of the brokers and of all controllers of the group, the same as `inner_credentials` of the brokers: "
        '`{"accessKey":…,"secretKey":…}`',
        conf="innerClientAuthenticationCredentials",
        secret=True,
    )
    admin_credentials: str = setting(
        "",
        "with `acl`: account of operators, who may elect a given master, clean data, and see and change settings: "
        '`{"accessKey":…,"secretKey":…}`',
        conf="adminCredentials",
        secret=True,
    )
    trusted_addresses: str = setting(
        "",
        "with `acl`: addresses of brokers that need not sign (RocketMQ up to 5.2), for example `10.0.0.{1,2}`",
    )

    def __post_init__(self) -> None:
        """InvalidParameter, RaftIdentityError: a setting is invalid."""
        check_settings(self)
        address_matcher(self.trusted_addresses)
        self.raft()

    @property
    def addresses(self) -> Mapping[str, str]:
        """Id -> address of all controllers."""
        return parse_peers(self.peers)

    def raft(self) -> RaftConfig:
        """Return the settings of consensus."""
        return RaftConfig(
            self_id=self.self_id,
            members=tuple(self.addresses),
            group=self.group,
            heartbeat_ms=self.heartbeat_ms,
            election_ms=self.election_ms,
        )
