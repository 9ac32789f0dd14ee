"""Admin: requests of operators and tools to name servers and brokers.

A query to many brokers returns `Gathered`: what was found, and which brokers failed and how. "Nothing there" and "could
not look" are different answers: a broker's refusal is in `failures`, with its class. Changes return the same: the
outcome for each broker, queue or name server.Only methods with these
names or prefixes change anything: create_, set_, update_, delete_, reset_, clone_, clean_, wipe_, add_, kv_put,
consume_directly, resend_, resume_.
"""

from .access import AclVersion, AdminAccess
from .base import Gathered
from .brokers import BrokerExport, BrokerInfo, TopicRates
from .groups import Member
from .messages import END_MS_MAX, QUERY_COUNT_MAX, QueryResult, Resent, Track, TrackStatus
from .topics import Deleted

__all__ = [
    "END_MS_MAX",
    "QUERY_COUNT_MAX",
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


class Admin(AdminAccess):
    """Queries and changes a cluster. Use it with `async with`, from one event loop.

    Where several brokers may be meant, `broker` is one by its name or address, `cluster` all masters of a cluster, and
    neither all masters there are.
    """
