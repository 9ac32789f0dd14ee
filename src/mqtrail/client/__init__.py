"""Producers, consumers and administration of RocketMQ, asyncio first, each with a synchronous twin.

`Producer` and `Consumer` send and receive, with a trace by one argument. `Admin` asks and arranges. `QueueReader`
reads queues with blocking sockets and leaves no mark on the cluster. Nothing runs at import; loops, threads and
connections begin with the first use.
"""

from mqtrail.client.admin import (
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
from mqtrail.client.allocate import (
    Allocation,
    Averagely,
    ByCircle,
    Configured,
    ConsistentHash,
    MachineRoom,
    MachineRoomNearby,
)
from mqtrail.client.batch import Batch
from mqtrail.client.config import InstanceConfig, ProducerConfig, TraceConfig
from mqtrail.client.consumer import Consumer
from mqtrail.client.consumer_config import ConsumerConfig, LitePullConfig, OnUndecodable
from mqtrail.client.delivery import Delivery
from mqtrail.client.errors import (
    AttemptFailure,
    BrokerUnknown,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoNameServer,
    NoReply,
    NotARequest,
    ReadFailed,
    RetryLater,
    RouteNotFound,
    SendFailed,
    TooManyInFlight,
)
from mqtrail.client.hooks import ConsumeHook, SendHook
from mqtrail.client.identity import local_address, unique_ids
from mqtrail.client.instance import ClientInstance
from mqtrail.client.lite_pull import LitePullConsumer
from mqtrail.client.outgoing import Outgoing, SendResult
from mqtrail.client.producer import Producer
from mqtrail.client.pull import PullResult, PullStatus
from mqtrail.client.reader import QueueReader, RateLimit, ReaderConfig
from mqtrail.client.replies import make_reply
from mqtrail.client.selectors import Selector, by_hash, by_machine_room, by_random
from mqtrail.client.splitting import BatchOutcome, split_batches
from mqtrail.client.subscriptions import Sql
from mqtrail.client.sync_admin import SyncAdmin
from mqtrail.client.sync_consumers import SyncBatch, SyncConsumer, SyncDelivery, SyncLitePullConsumer
from mqtrail.client.sync_producer import SyncProducer, SyncTransaction, SyncTransactionProducer
from mqtrail.client.trace import TraceCounts
from mqtrail.client.transactions import (
    CheckHandler,
    LocalHandler,
    Transaction,
    TransactionProducer,
    TransactionResult,
    TransactionState,
)
from mqtrail.net import TlsClientConfig, parse_namesrv
from mqtrail.wire import (
    CompressionType,
    ConsumeFromWhere,
    Credentials,
    Message,
    MessageExt,
    MessageModel,
    MessageQueue,
    SendStatus,
)

__all__ = [
    "END_MS_MAX",
    "AclVersion",
    "Admin",
    "Allocation",
    "AttemptFailure",
    "Averagely",
    "Batch",
    "BatchOutcome",
    "BrokerExport",
    "BrokerInfo",
    "BrokerUnknown",
    "ByCircle",
    "CheckHandler",
    "ClientClosed",
    "ClientError",
    "ClientInstance",
    "CompressionType",
    "Configured",
    "ConsistentHash",
    "ConsumeFromWhere",
    "ConsumeHook",
    "Consumer",
    "ConsumerConfig",
    "Credentials",
    "Deleted",
    "Delivery",
    "Gathered",
    "InstanceConfig",
    "InvalidMessage",
    "LitePullConfig",
    "LitePullConsumer",
    "LocalHandler",
    "MachineRoom",
    "MachineRoomNearby",
    "Member",
    "Message",
    "MessageExt",
    "MessageModel",
    "MessageQueue",
    "NoNameServer",
    "NoReply",
    "NotARequest",
    "OnUndecodable",
    "Outgoing",
    "Producer",
    "ProducerConfig",
    "PullResult",
    "PullStatus",
    "QueryResult",
    "QueueReader",
    "RateLimit",
    "ReadFailed",
    "ReaderConfig",
    "Resent",
    "RetryLater",
    "RouteNotFound",
    "Selector",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SendStatus",
    "Sql",
    "SyncAdmin",
    "SyncBatch",
    "SyncConsumer",
    "SyncDelivery",
    "SyncLitePullConsumer",
    "SyncProducer",
    "SyncTransaction",
    "SyncTransactionProducer",
    "TlsClientConfig",
    "TooManyInFlight",
    "TopicRates",
    "TraceConfig",
    "TraceCounts",
    "Track",
    "TrackStatus",
    "Transaction",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "by_hash",
    "by_machine_room",
    "by_random",
    "local_address",
    "make_reply",
    "parse_namesrv",
    "split_batches",
    "unique_ids",
]
