"""CommitLogStore: CommitLog, ConsumeQueue and IndexFile as Apache RocketMQ keeps them (docs/design/store.md)."""

from .config import CommitLogConfig
from .store import CommitLogStore

__all__ = ["CommitLogConfig", "CommitLogStore"]
