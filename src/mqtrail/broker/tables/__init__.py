"""Tables of a broker: topics, groups, consumer offsets, clients, queue locks, held pulls, limits.

Tables that survive a restart are JSON files (`broker.files`). A table only finds and changes its entries and counts
their versions. registration builds the commands that tell name servers about topics.
"""

from .attributes import GROUP_ATTRIBUTES, TOPIC_ATTRIBUTES, alter, parse_changes
from .clients import Client, ClientTable, subscriptions_size
from .groups import GroupTable
from .held import DUE_A_SLICE, Arrived, HeldPull, HeldPulls, HeldRoom, QueueKey
from .limits import RateLimits
from .locks import LockTable
from .offsets import OffsetTable
from .registration import register_command, register_topic_command, unregister_command
from .topics import TopicTable
from .watched import HeldPopCounts
from .young import is_young

__all__ = [
    "DUE_A_SLICE",
    "GROUP_ATTRIBUTES",
    "TOPIC_ATTRIBUTES",
    "Arrived",
    "Client",
    "ClientTable",
    "GroupTable",
    "HeldPopCounts",
    "HeldPull",
    "HeldPulls",
    "HeldRoom",
    "LockTable",
    "OffsetTable",
    "QueueKey",
    "RateLimits",
    "TopicTable",
    "alter",
    "is_young",
    "parse_changes",
    "register_command",
    "register_topic_command",
    "subscriptions_size",
    "unregister_command",
]
