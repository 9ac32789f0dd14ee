"""Decides: what a broker answers and does. Pure: no socket, clock, thread or chance (docs/design/broker.md).

`Broker` (broker.py) is the front: it passes each request to its handler. The rooms behind it, highest first:

    lane, metrics          the frequent requests without the front; the metrics of a broker
    requests.py            what it knows of each request code: handler, permission, wait, ports
    concerns.py            all that serves requests or runs by the clock, made once from the state
    operator, pop          requests of operators; consumption by POP
    messages               send, send back, pull, query, reply
    clients                heartbeats, queue locks, consumer offsets, requests forwarded to clients
    timing, transactions   delay levels and timers; half messages
    state.py               what they share: settings, store, tables, statistics, trace, writer
    writer.py              the one way into the store
    telemetry              statistics, histograms, trace records
    tables                 topics, groups, offsets, clients, locks, held pulls, rate limits
    access, filter         who may do what; which messages of a topic a group gets

What all of them use is beside the front: config, bounds, errors, files, jobs, properties. Peer and Send (wire) are what
goes in and out.
"""

from mqtrail.wire import Peer, PeerId, Send

from .access import USERS_FILE, AclFiles, Key, PlainRules, User, inner_credentials, keys_of, read_rules, read_users
from .broker import Broker
from .config import BrokerConfig, properties_text
from .lane import Lane
from .metrics import ABSENT, METRICS, Metric, Sample, samples
from .requests import OWN_PORT_CODES
from .telemetry import Histogram

__all__ = [
    "ABSENT",
    "METRICS",
    "OWN_PORT_CODES",
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
