"""Producers, consumers and administration of RocketMQ, asyncio first, each with a synchronous twin.

`Producer` and `Consumer` send and receive, with a trace by one argument. `Admin` asks and arranges. `QueueReader`
reads queues with blocking sockets and leaves no mark on the cluster. Nothing runs at import; loops, threads and
connections begin with the first use.
"""

from mqtrail.client.admin import Admin, QueryResult
from mqtrail.client.admin_base import Gathered
from mqtrail.client.config import ConsumerConfig, InstanceConfig, ProducerConfig, TraceConfig, parse_namesrv
from mqtrail.client.consumer import Consumer
from mqtrail.client.delivery import Delivery
from mqtrail.client.errors import (
    AttemptFailure,
    BrokerUnknown,
    ClientClosed,
    ClientError,
    InvalidMessage,
    NoNameServer,
    ReadFailed,
    RetryLater,
    RouteNotFound,
    SendFailed,
)
from mqtrail.client.hooks import ConsumeHook, SendHook
from mqtrail.client.identity import local_address, unique_ids
from mqtrail.client.instance import ClientInstance
from mqtrail.client.outgoing import Outgoing, SendResult
from mqtrail.client.producer import Producer
from mqtrail.client.pull import PullResult, PullStatus
from mqtrail.client.reader import QueueReader, RateLimit, ReaderConfig
from mqtrail.client.sync import SyncConsumer, SyncDelivery, SyncProducer
from mqtrail.client.sync_admin import SyncAdmin
from mqtrail.client.trace import TraceCounts
from mqtrail.wire import ConsumeFromWhere, Message, MessageModel

__all__ = [
    "Admin",
    "AttemptFailure",
    "BrokerUnknown",
    "ClientClosed",
    "ClientError",
    "ClientInstance",
    "ConsumeFromWhere",
    "ConsumeHook",
    "Consumer",
    "ConsumerConfig",
    "Delivery",
    "Gathered",
    "InstanceConfig",
    "InvalidMessage",
    "Message",
    "MessageModel",
    "NoNameServer",
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
    "RetryLater",
    "RouteNotFound",
    "SendFailed",
    "SendHook",
    "SendResult",
    "SyncAdmin",
    "SyncConsumer",
    "SyncDelivery",
    "SyncProducer",
    "TraceConfig",
    "TraceCounts",
    "local_address",
    "parse_namesrv",
    "unique_ids",
]
