"""Headers of POP consumption: pop, ack, change of the invisible time, notification, polling info, peek.

All their codes are above 32767 and travel with JSON headers only. queue_id -1: all readable queues of the topic.

Source: the classes of remoting/protocol/header, apache/rocketmq 5.3.3.
"""

from typing import Final

from .header import Header, Int32

__all__ = [
    "ALL_QUEUES",
    "INIT_FROM_MAX",
    "INIT_FROM_MIN",
    "AckHeader",
    "ChangeInvisibleHeader",
    "ChangeInvisibleResponseHeader",
    "NotificationHeader",
    "NotificationResponseHeader",
    "PeekHeader",
    "PollingInfoHeader",
    "PollingInfoResponseHeader",
    "PopHeader",
    "PopResponseHeader",
]

ALL_QUEUES: Final = -1  # queue id: all queues of a broker, which its members pop together
INIT_FROM_MIN = 0
INIT_FROM_MAX = 1


class PopHeader(Header):
    """200050. Times are ms; born_time: when the client asked, epoch ms by its clock, 0: now.

    init_mode: where a group without an offset starts, INIT_FROM_MIN or INIT_FROM_MAX. attempt_id: of an ordered pop;
    the same one again gets the same messages.
    """

    consumer_group: str
    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: Int32
    exp_type: str | None = None
    exp: str | None = None
    order: bool = False
    attempt_id: str | None = None


class PopResponseHeader(Header):
    """Reply to 200050, with codes 0, 209 and 210 alike. rest_num: messages that still wait in the queues read.

    The three texts are pop_info's.
    """

    pop_time: int
    invisible_time: int
    revive_qid: Int32
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckHeader(Header):
    """200051. extra_info: the handle that came with the message; offset: the message's queue offset."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int


class ChangeInvisibleHeader(Header):
    """200053: AckHeader's fields and the new invisible time in ms, counted from now."""

    consumer_group: str
    topic: str
    queue_id: Int32
    extra_info: str
    offset: int
    invisible_time: int


class ChangeInvisibleResponseHeader(Header):
    """Reply to 200053: the new parts of the message's handle."""

    pop_time: int
    invisible_time: int
    revive_qid: Int32


class NotificationHeader(Header):
    """200054: reply when there is a message to pop, without popping it."""

    consumer_group: str
    topic: str
    queue_id: Int32
    poll_time: int
    born_time: int
    order: bool = False
    attempt_id: str | None = None


class NotificationResponseHeader(Header):
    """Reply to 200054."""

    has_msg: bool
    polling_full: bool = False


class PollingInfoHeader(Header):
    """200055."""

    consumer_group: str
    topic: str
    queue_id: Int32


class PollingInfoResponseHeader(Header):
    """Reply to 200055: how many pops of the group wait at the queue."""

    polling_num: Int32


class PeekHeader(Header):
    """200052: like a pop, but the messages stay visible."""

    topic: str
    queue_id: Int32
    max_msg_nums: Int32
    consumer_group: str
