"""What all parts of the client share: settings, errors, the instance with its connections, names and routes.

`ClientInstance` owns the connections, the heartbeat and the routes. `Composer` writes a send request, `QueueChooser`
picks its queue, `Outgoing` and the hooks describe it. This folder imports no other folder of the client.
"""

from .background import keep_going, off_loop, report
from .composer import Composer
from .config import NEVER, InstanceConfig, ProducerConfig, TraceConfig
from .consumer_config import BaseConsumerConfig, ConsumerConfig, LitePullConfig, OnUndecodable
from .empty_answers import EmptyAnswers
from .endpoint import ask_addresses, endpoint_url
from .errors import (
    AttemptFailure,
    BrokerUnknown,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoControllers,
    NoNameServer,
    NoReply,
    NotARequest,
    OffsetUnavailable,
    ReadFailed,
    RetryLater,
    RouteNotFound,
    SendFailed,
    TooManyInFlight,
)
from .faults import FaultTable, QueueChooser
from .hooks import ConsumeHook, SendHook
from .identity import local_address, unique_ids
from .instance import ClientInstance, TransactionChecker
from .nameservers import read_body
from .namespaces import with_namespace, without_namespace
from .naming import Names
from .numbers import reply_number
from .outgoing import Outgoing, SendResult, send_result
from .replies import make_reply
from .reply_records import requested_records
from .routes import TopicRoute, queue_name, read_route
from .spool_file import DAMAGED_MAX, SpoolError, SpoolFile, SpoolFull, folder_name, orphans
from .sql import Connect, SqlConnection, SqlDialect, delete_in_pieces, table_name, transaction

__all__ = [
    "DAMAGED_MAX",
    "NEVER",
    "AttemptFailure",
    "BaseConsumerConfig",
    "BrokerUnknown",
    "ClientClosed",
    "ClientError",
    "ClientInstance",
    "Composer",
    "Connect",
    "ConsumeHook",
    "ConsumerConfig",
    "EmptyAnswers",
    "FaultTable",
    "InstanceConfig",
    "InvalidMessage",
    "LitePullConfig",
    "Names",
    "NoControllers",
    "NoNameServer",
    "NoReply",
    "NotARequest",
    "OffsetUnavailable",
    "OnUndecodable",
    "Outgoing",
    "ProducerConfig",
    "QueueChooser",
    "ReadFailed",
    "RetryLater",
    "RouteNotFound",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SpoolError",
    "SpoolFile",
    "SpoolFull",
    "SqlConnection",
    "SqlDialect",
    "TooManyInFlight",
    "TopicRoute",
    "TraceConfig",
    "TransactionChecker",
    "ask_addresses",
    "delete_in_pieces",
    "endpoint_url",
    "folder_name",
    "keep_going",
    "local_address",
    "make_reply",
    "off_loop",
    "orphans",
    "queue_name",
    "read_body",
    "read_route",
    "reply_number",
    "report",
    "requested_records",
    "send_result",
    "table_name",
    "transaction",
    "unique_ids",
    "with_namespace",
    "without_namespace",
]
