"""POP by single requests, as a client in any language could send them, to our server or Apache's."""

from __future__ import annotations

import time
from dataclasses import dataclass

from interop.probe import request, wait_until
from mqtrail.wire import (
    AckHeader,
    ChangeInvisibleHeader,
    ChangeInvisibleResponseHeader,
    GetMaxOffsetHeader,
    MessageExt,
    PopHandle,
    PopHeader,
    PopResponseHeader,
    RequestCode,
    ResponseCode,
    SendMessageHeader,
    decode_records,
    decode_start_offsets,
    encode_properties,
    marker_of,
    topic_of_marker,
)

TIMEOUT_S = 10.0
BROKER = "broker-a"


@dataclass(frozen=True)
class Popper:
    """One group on one topic of a broker. A refused request raises AssertionError with the reply's header."""

    address: str
    topic: str
    group: str

    def ask(self, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[dict[str, str], bytes]:
        """Return ext fields and body of a successful reply."""
        return ask(self.address, code, ext, body)

    def send(self, *bodies: str, queue_id: int = 0) -> None:
        """Send each body to the queue; return when a pop finds them, which takes a moment on Apache's broker."""
        last = -1
        for body in bodies:
            text = encode_properties({"UNIQ_KEY": body.replace(" ", "-")})
            header = SendMessageHeader("pg", self.topic, queue_id=queue_id, born_timestamp=1, properties=text)
            last = int(self.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body.encode())[0]["queueOffset"])
        place = GetMaxOffsetHeader(self.topic, queue_id).to_ext()
        wait_until(
            lambda: int(self.ask(RequestCode.GET_MAX_OFFSET, place)[0]["offset"]) > last, "what was sent", TIMEOUT_S
        )

    def pop(
        self,
        invisible_ms: int,
        *,
        order: bool = False,
        queue_id: int = 0,
        count: int = 32,
        attempt_id: str | None = None,
    ) -> list[tuple[MessageExt, PopHandle]]:
        """Return the messages of a pop of the queue, with the handles that a client makes; [] if there is none."""
        now_ms = int(time.time() * 1000)
        header = PopHeader(
            self.group, self.topic, queue_id, count, invisible_ms, 0, now_ms, 0, "TAG", "*", order, attempt_id
        )
        reply, body = request(self.address, RequestCode.POP_MESSAGE, header.to_ext(), timeout_s=TIMEOUT_S)
        if reply["code"] == ResponseCode.POLLING_TIMEOUT:
            return []
        assert reply["code"] == 0, reply
        found = PopResponseHeader.from_ext(reply["extFields"])
        starts = decode_start_offsets(found.start_offset_info or "")
        popped = []
        for message in decode_records(body):
            if "POP_CK" in message.properties:
                handle = PopHandle.decode(message.properties["POP_CK"])
            else:
                marker = marker_of(message.topic)
                start = starts[marker, message.queue_id]
                handle = PopHandle(
                    start, found.pop_time, invisible_ms, found.revive_qid, marker, BROKER, message.queue_id
                )
            popped.append((message, handle))
        return popped

    def ack(self, message: MessageExt, handle: PopHandle) -> int:
        """Acknowledge the message; return the reply code."""
        topic = topic_of_marker(handle.marker, self.topic, self.group)
        header = AckHeader(self.group, topic, handle.queue_id, handle.encode(), message.queue_offset)
        reply, _ = request(self.address, RequestCode.ACK_MESSAGE, header.to_ext(), timeout_s=TIMEOUT_S)
        return int(reply["code"])

    def hide(self, message: MessageExt, handle: PopHandle, invisible_ms: int) -> tuple[int, PopHandle]:
        """Hide the message for this long from now; return the reply code and the new handle."""
        topic = topic_of_marker(handle.marker, self.topic, self.group)
        header = ChangeInvisibleHeader(
            self.group, topic, handle.queue_id, handle.encode(), message.queue_offset, invisible_ms
        )
        reply, _ = request(self.address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header.to_ext(), timeout_s=TIMEOUT_S)
        if reply["code"]:
            return int(reply["code"]), handle
        found = ChangeInvisibleResponseHeader.from_ext(reply["extFields"])
        return 0, handle._replace(
            pop_time_ms=found.pop_time, invisible_ms=found.invisible_time, revive_queue_id=found.revive_qid
        )


def ask(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[dict[str, str], bytes]:
    """Return ext fields and body of a successful reply."""
    header, found = request(address, code, ext, body=body, timeout_s=TIMEOUT_S)
    assert header["code"] == 0, header
    return header.get("extFields") or {}, found
