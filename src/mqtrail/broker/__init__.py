"""The core of a broker, without sockets, clocks, threads or randomness (docs/design/broker.md).

`Broker` (broker.py) is the front: it passes each request to its handler. The rooms behind it, highest first:

    lane, metrics          fast path of the frequent requests, which bypasses the front; the broker's metrics
    requests.py            table of request codes: handler, permission, wait, ports
    concerns.py            creates the objects that serve requests and do periodic work
    operator, pop          requests of operators; consumption by POP
    messages               send, send back, pull, query, reply
    clients                heartbeats, queue locks, consumer offsets, requests forwarded to clients
    timing, transactions   delay levels and timers; half messages
    state.py               state shared by these rooms: settings, store, tables, statistics, trace, writer
    writer.py              the only path into the store
    telemetry              statistics, histograms, trace records
    tables                 topics, groups, offsets, clients, locks, held pulls, rate limits
    access, filter, ha     access control; filters of subscriptions; replicas

All of them use config, bounds, errors, files, jobs and properties. The input is a Peer and its command, the output is a
list of Sends (wire).
"""

from mqtrail.wire import Peer, PeerId, Send

from .access import (
    USERS_FILE,
    AclFiles,
    Key,
    PlainRules,
    User,
    inner_credentials,
    keys_of,
    read_credentials,
    read_rules,
    read_users,
)
from .broker import Broker
from .config import SLAVE, SYNC_MASTER, BrokerConfig, ledger_number, properties_text
from .ha import (
    APPLYING_FILE,
    EPOCH_FILE,
    IDENTITY_FILE,
    Epoch,
    EpochError,
    EpochFollower,
    Epochs,
    Follower,
    Following,
    HaError,
    Identity,
    InSyncSet,
    LedgerState,
    LogSender,
    MasterTerm,
    Replica,
    Replicas,
    TailDiffers,
    decode_epochs,
    decode_identity,
)
from .lane import Lane
from .metrics import ABSENT, METRICS, Metric, Sample, samples
from .operator import CONFIG_CODES, END_CODE, OPTIONAL_CODES, PROGRESS_CODES, master_end
from .requests import OWN_PORT_CODES
from .tables import HeldPull
from .telemetry import Histogram

__all__ = [
    "ABSENT",
    "APPLYING_FILE",
    "CONFIG_CODES",
    "END_CODE",
    "EPOCH_FILE",
    "IDENTITY_FILE",
    "METRICS",
    "OPTIONAL_CODES",
    "OWN_PORT_CODES",
    "PROGRESS_CODES",
    "SLAVE",
    "SYNC_MASTER",
    "USERS_FILE",
    "AclFiles",
    "Broker",
    "BrokerConfig",
    "Epoch",
    "EpochError",
    "EpochFollower",
    "Epochs",
    "Follower",
    "Following",
    "HaError",
    "HeldPull",
    "Histogram",
    "Identity",
    "InSyncSet",
    "Key",
    "Lane",
    "LedgerState",
    "LogSender",
    "MasterTerm",
    "Metric",
    "Peer",
    "PeerId",
    "PlainRules",
    "Replica",
    "Replicas",
    "Sample",
    "Send",
    "TailDiffers",
    "User",
    "decode_epochs",
    "decode_identity",
    "inner_credentials",
    "keys_of",
    "ledger_number",
    "master_end",
    "properties_text",
    "read_credentials",
    "read_rules",
    "read_users",
    "samples",
]
