"""Administration of a cluster: topics, groups, offsets, messages, brokers and access. `Admin` has all methods."""

from .access import AclVersion
from .admin import Admin
from .backlog import (
    ClusterLag,
    GroupLag,
    LagSum,
    QueueLag,
    QueueReading,
    Trend,
    TrendState,
    WaitingMessage,
    group_lag,
    queue_lag,
    ranked_lags,
    reasons_of,
    with_age,
)
from .base import Gathered
from .brokers import BrokerExport, BrokerInfo, TopicRates
from .delays import BrokerDelays, DelayedMessage, LevelCount
from .groups import Member
from .half_messages import BrokerHalfMessages, HalfMessage
from .handed_out import BrokerPops, HandedOut
from .ledger_groups import LedgerMemberInfo, LedgerReport
from .messages import END_MS_MAX, QueryResult, Resent, Track, TrackStatus
from .offsets import SERVER_SIDE_RESET, QueueMove
from .places import OFFSETS_AT_MEMBERS
from .replicas import ReplicaInfo, ReplicaReport
from .topics import Deleted

__all__ = [
    "END_MS_MAX",
    "OFFSETS_AT_MEMBERS",
    "SERVER_SIDE_RESET",
    "AclVersion",
    "Admin",
    "BrokerDelays",
    "BrokerExport",
    "BrokerHalfMessages",
    "BrokerInfo",
    "BrokerPops",
    "ClusterLag",
    "DelayedMessage",
    "Deleted",
    "Gathered",
    "GroupLag",
    "HalfMessage",
    "HandedOut",
    "LagSum",
    "LedgerMemberInfo",
    "LedgerReport",
    "LevelCount",
    "Member",
    "QueryResult",
    "QueueLag",
    "QueueMove",
    "QueueReading",
    "ReplicaInfo",
    "ReplicaReport",
    "Resent",
    "TopicRates",
    "Track",
    "TrackStatus",
    "Trend",
    "TrendState",
    "WaitingMessage",
    "group_lag",
    "queue_lag",
    "ranked_lags",
    "reasons_of",
    "with_age",
]
