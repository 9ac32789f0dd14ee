"""Queue selectors: functions by which the application chooses a message's queue.

    await producer.send(message, select=by_hash("customer-7"))

A selector is any function of (queues, message) that returns one of the queues; their topics have no namespace prefix. A
send with a selector is tried again only when its broker gets another master: another queue would not be the one chosen.
Source: the classes of client/producer/selector, apache/rocketmq.
"""

import random
from collections.abc import Callable, Collection, Sequence

from mqtrail.wire import Message, MessageQueue, java_string_hash

Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue | None]
"""None: no queue fits; the send fails."""

_INT_MIN, _INT_MAX = -(1 << 31), (1 << 31) - 1


def java_hash(key: str | int) -> int:
    """Return Java's hashCode of a String, an Integer, or (beyond 32 bits) a Long. ValueError beyond 64 bits."""
    if isinstance(key, str):
        return java_string_hash(key)
    if _INT_MIN <= key <= _INT_MAX:
        return key
    if not -(1 << 63) <= key < 1 << 63:
        raise ValueError(f"found the key {key}, expected a number of at most 64 bits, as Java's Long: pass it as text")
    folded = (key ^ (key >> 32)) & 0xFFFFFFFF
    return folded - (1 << 32) if folded > _INT_MAX else folded


def queue_of_hash(queues: Sequence[MessageQueue], key: str | int) -> MessageQueue:
    """Return the queue that Java's SelectMessageQueueByHash picks. queues must not be empty."""
    return queues[abs(java_hash(key)) % len(queues)]


def by_hash(key: str | int) -> Selector:
    """Send all messages of one key to one queue, as long as the topic's queues do not change."""
    return lambda queues, message: queue_of_hash(queues, key)


def by_random(chance: random.Random | None = None) -> Selector:
    """Choose any queue at random. chance: a seeded generator, for tests."""
    choose = (chance or random).choice
    return lambda queues, message: choose(queues)


def by_machine_room(rooms: Collection[str], chance: random.Random | None = None) -> Selector:
    """Choose any queue of the brokers in these machine rooms, named `room@broker`.

    Java's class of this name selects nothing. The broker names are those of its AllocateMessageQueueByMachineRoom.
    """
    choose = (chance or random).choice
    wanted = frozenset(rooms)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue | None:
        near = [queue for queue in queues if queue.broker_name.partition("@")[0] in wanted and "@" in queue.broker_name]
        return choose(near) if near else None

    return select
