"""Decides: what a broker answers and does. Pure: no socket, clock, thread or chance (docs/design/broker.md).

`Broker` is the front; one module a concern stands behind it: send, pull and held, offsets, topics, groups, clients,
delays, send_back, query, admin_*, stats, trace. config has what may be set, Peer and Send (wire) what goes in and out;
lane is the short road of the hot requests.
"""

from mqtrail.wire import Peer, PeerId, Send

from .access import USERS_FILE, AclFiles, Key, PlainRules, User, inner_credentials, keys_of, read_rules, read_users
from .broker import Broker
from .config import BROKER_CONF, BrokerConfig, properties_text
from .histogram import Histogram
from .lane import Lane
from .metric_table import ABSENT, METRICS, Metric
from .metrics import Sample, samples
from .settings import RETENTION_CONF

__all__ = [
    "ABSENT",
    "BROKER_CONF",
    "METRICS",
    "RETENTION_CONF",
    "USERS_FILE",
    "AclFiles",
    "Broker",
    "BrokerConfig",
    "Histogram",
    "Key",
    "Lane",
    "Metric",
    "Peer",
    "PeerId",
    "PlainRules",
    "Sample",
    "Send",
    "User",
    "inner_credentials",
    "keys_of",
    "properties_text",
    "read_rules",
    "read_users",
    "samples",
]
