"""Administration of a cluster: topics, groups, offsets, messages, brokers and access. `Admin` has all methods."""

from .admin import (
    END_MS_MAX,
    AclVersion,
    Admin,
    BrokerExport,
    BrokerInfo,
    Deleted,
    Gathered,
    Member,
    QueryResult,
    Resent,
    TopicRates,
    Track,
    TrackStatus,
)

__all__ = [
    "END_MS_MAX",
    "AclVersion",
    "Admin",
    "BrokerExport",
    "BrokerInfo",
    "Deleted",
    "Gathered",
    "Member",
    "QueryResult",
    "Resent",
    "TopicRates",
    "Track",
    "TrackStatus",
]
