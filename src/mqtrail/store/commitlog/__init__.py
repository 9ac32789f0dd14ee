"""CommitLogStore: CommitLog, ConsumeQueue and IndexFile as Apache RocketMQ keeps them (docs/design/store.md)."""

from mqtrail.store.commitlog.config import CommitLogConfig
from mqtrail.store.commitlog.recovery import Recovery
from mqtrail.store.commitlog.store import CommitLogStore

__all__ = ["CommitLogConfig", "CommitLogStore", "Recovery"]
