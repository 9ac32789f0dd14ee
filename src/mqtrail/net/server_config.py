"""What a listening port may be told."""

from dataclasses import dataclass, field

from .tls import TlsServerConfig

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Limits and TLS of one listening port. Sizes are bytes."""

    connection_count_max: int = 10_000
    idle_timeout_ms: int = 120_000  # serverChannelMaxIdleTimeSeconds: nothing received, nothing drained
    write_pause_size: int = 1 * MIB  # unsent bytes above which a peer is no longer read from
    write_size_max: int = 64 * MIB  # unsent bytes above which a peer is cut off (held pulls may add to a paused one)
    partial_size_max: int = 256 * MIB  # bytes of unfinished frames, all connections together
    tls: TlsServerConfig = field(default_factory=TlsServerConfig)
