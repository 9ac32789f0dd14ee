"""The settings of a listening port."""

from dataclasses import dataclass, field

from mqtrail.wire import SECONDS, check_settings, setting

from .tls import TlsServerConfig

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits and TLS of one listening port. Sizes are bytes."""

    connection_count_max: int = setting(10_000, "maximum number of connections per port", least=1)
    idle_timeout_ms: int = setting(
        120_000,
        "time without traffic after which a connection is closed (RocketMQ: seconds)",
        conf="serverChannelMaxIdleTimeSeconds",
        unit=SECONDS,
        least=1,
    )
    write_pause_size: int = setting(1 * MIB, "unsent bytes above which requests of a peer are no longer read")
    write_size_max: int = setting(
        64 * MIB, "unsent bytes above which the connection of a peer is closed (held pulls may add to a paused one)"
    )
    partial_size_max: int = setting(256 * MIB, "maximum bytes of incomplete frames of all connections")
    tls: TlsServerConfig = field(default_factory=TlsServerConfig)

    def __post_init__(self) -> None:
        """InvalidParameter: a setting is outside its bounds."""
        check_settings(self)
