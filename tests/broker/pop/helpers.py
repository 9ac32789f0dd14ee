"""Functions that pop, acknowledge, and check the results."""

from dataclasses import dataclass
from typing import Any

from mqtrail.wire import (
    AckHeader,
    ChangeInvisibleHeader,
    MessageExt,
    Peer,
    PopHandle,
    PopHeader,
    PopResponseHeader,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    decode_message_offsets,
    decode_records,
    decode_start_offsets,
    marker_of,
    pop_retry_topic,
)

from ..helpers import PEER, Bench

REVIVE_TOPIC = "rmq_sys_REVIVE_LOG_DefaultCluster"
TIMER_TOPIC = "rmq_sys_wheel_timer"
RETRY = pop_retry_topic("orders", "g")
INVISIBLE_MS = 10_000
SETTLED_MS = 4_000  # past a message's time it has come again: 2 s for late acks, 1 s each for timer and revive


@dataclass
class Popped:
    """One message with the handle that a Java client builds from the reply."""

    message: MessageExt
    handle: PopHandle
    topic: str
    """The topic it is stored in."""

    @property
    def body(self) -> str:
        return self.message.body.decode()


def popped_of(reply: RemotingCommand, group: str = "g") -> list[Popped]:
    """Return the messages of a reply, with handles built like MQClientAPIImpl.processPopResponse."""
    header = PopResponseHeader.from_ext(reply.ext)
    starts = decode_start_offsets(header.start_offset_info or "")
    offsets = decode_message_offsets(header.msg_offset_info or "")
    found = []
    for message in decode_records(reply.body):
        text = message.properties.get("POP_CK")
        if text is not None:
            handle = PopHandle.decode(text)
        else:
            marker = marker_of(message.topic)
            queue = (marker, message.queue_id)
            assert message.queue_offset in offsets[queue]
            handle = PopHandle(
                starts[queue],
                header.pop_time,
                header.invisible_time,
                header.revive_qid,
                marker,
                "broker-a",
                message.queue_id,
                message.queue_offset,
            )
        topic = (
            message.topic if handle.marker == "0" else pop_retry_topic(message.topic, group, v2=handle.marker == "2")
        )
        found.append(Popped(message, handle, topic))
    return found


def pop_header(bench: Bench, **fields: Any) -> PopHeader:
    values: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "orders",
        "queue_id": -1,
        "max_msg_nums": 32,
        "invisible_time": INVISIBLE_MS,
        "poll_time": 0,
        "born_time": bench.now_ms,
        "init_mode": 0,
        "exp_type": "TAG",
        "exp": "*",
    }
    return PopHeader(**(values | fields))


def ask_pop(bench: Bench, peer: Peer = PEER, **fields: Any) -> RemotingCommand:
    return bench.ask(RequestCode.POP_MESSAGE, pop_header(bench, **fields).to_ext(), peer=peer)


def hold_pop(bench: Bench, peer: Peer = PEER, **fields: Any) -> list[Send]:
    """Send a pop that may wait 10 s; return the immediate replies: none if it waits."""
    header = pop_header(bench, **({"poll_time": 10_000} | fields))
    return bench.tell(RequestCode.POP_MESSAGE, header.to_ext(), peer=peer)


def pop(bench: Bench, **fields: Any) -> list[Popped]:
    """Return the popped messages; none if the reply is 210."""
    reply = ask_pop(bench, **fields)
    if reply.code == ResponseCode.POLLING_TIMEOUT:
        return []
    assert reply.code == ResponseCode.SUCCESS, reply
    return popped_of(reply, fields.get("consumer_group", "g"))


def bodies(popped: list[Popped]) -> list[str]:
    return [one.body for one in popped]


def ack(bench: Bench, one: Popped, group: str = "g") -> RemotingCommand:
    header = AckHeader(group, one.topic, one.handle.queue_id, one.handle.encode(), one.message.queue_offset)
    return bench.ask(RequestCode.ACK_MESSAGE, header.to_ext())


def hide(bench: Bench, one: Popped, invisible_ms: int, group: str = "g") -> RemotingCommand:
    header = ChangeInvisibleHeader(
        group, one.topic, one.handle.queue_id, one.handle.encode(), one.message.queue_offset, invisible_ms
    )
    return bench.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext())


def send(bench: Bench, *names: str, **fields: Any) -> None:
    for name in names:
        assert bench.send(body=name.encode(), **fields).code == ResponseCode.SUCCESS
