"""A directory with popped messages changes hands: each side brings again what the other handed out in vain."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from interop.apache import ApacheBroker, ApacheNameServer
from interop.ours import OurServer
from interop.probe import request, wait_until
from interop.story import SERVER_PROPERTIES

from mqtrail.wire import (
    AckHeader,
    CreateTopicHeader,
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

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC, GROUP = "PopHandover", "pop_handover"
SEGMENT_SIZE = 64 << 20
AGAIN_S = 90.0
HIDDEN_MS = 20_000


@contextmanager
def apache_on(store: Path, folder: Path) -> Iterator[str]:
    """Run Apache's broker on a directory; yields its address, and stops in good order."""
    namesrv = ApacheNameServer("5.3.3", folder / "namesrv").start()
    broker = ApacheBroker("5.3.3", folder / "broker", namesrv.address, store=store, properties=SERVER_PROPERTIES)
    try:
        broker.start()
        yield broker.address
    finally:
        broker.stop()
        namesrv.kill()


@contextmanager
def ours_on(folder: Path) -> Iterator[str]:
    """Run our server on its directory; yields its broker's address, and stops in good order."""
    server = OurServer(folder, segment_size=SEGMENT_SIZE).start()
    try:
        yield server.broker_address
    finally:
        server.stop()


def ask(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[dict[str, str], bytes]:
    """Return ext fields and body of an answer that says 0."""
    header, found = request(address, code, ext, body=body, timeout_s=10)
    assert header["code"] == 0, header
    return header.get("extFields") or {}, found


def send(address: str, *bodies: str, queue_id: int = 0) -> None:
    for body in bodies:
        text = encode_properties({"UNIQ_KEY": body.replace(" ", "-")})
        header = SendMessageHeader("pg", TOPIC, queue_id=queue_id, born_timestamp=1, properties=text)
        ask(address, RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body.encode())


def pop(
    address: str, invisible_ms: int, *, order: bool = False, queue_id: int = 0
) -> list[tuple[MessageExt, PopHandle]]:
    """Return what a pop of the queue brings, none when there is nothing, with the handles that a client makes."""
    now_ms = int(time.time() * 1000)
    header = PopHeader(GROUP, TOPIC, queue_id, 32, invisible_ms, 0, now_ms, 0, "TAG", "*", order=order)
    reply, body = request(address, RequestCode.POP_MESSAGE, header.to_ext(), timeout_s=10)
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
                start, found.pop_time, invisible_ms, found.revive_qid, marker, "broker-a", message.queue_id
            )
        popped.append((message, handle))
    return popped


def ack(address: str, message: MessageExt, handle: PopHandle) -> None:
    topic = topic_of_marker(handle.marker, TOPIC, GROUP)
    header = AckHeader(GROUP, topic, handle.queue_id, handle.encode(), message.queue_offset)
    ask(address, RequestCode.ACK_MESSAGE, header.to_ext())


def take(address: str, invisible_ms: int, acked: set[str]) -> list[str]:
    """Pop everything, acknowledge these bodies and no others; return what came."""
    found = []
    for message, handle in pop(address, invisible_ms):
        body = message.body.decode()
        if body in acked:
            ack(address, message, handle)
        found.append(body)
    return found


def take_until(address: str, wanted: set[str], acked: set[str] | None = None) -> list[str]:
    """Pop until all of wanted have come, acknowledge these (acked: only these); return what came, in order."""
    found: list[str] = []

    def all_here() -> bool:
        found.extend(take(address, HIDDEN_MS, wanted if acked is None else acked))
        return wanted <= set(found)

    wait_until(all_here, f"{wanted} once more", AGAIN_S, interval_s=0.5)
    return found


def test_there_and_back(tmp_path: Path) -> None:
    """Ours, Apache's, ours: what was acknowledged under one does not come under the other, everything else does."""
    folder = tmp_path / "ours"
    store = OurServer(folder).store
    with ours_on(folder) as address:
        ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, CreateTopicHeader(TOPIC, 2, 2, 6).to_ext())
        send(address, "ours done", "ours open")
        assert take(address, HIDDEN_MS, {"ours done"}) == ["ours done", "ours open"]
        send(address, "order one", "order two", queue_id=1)
        first = pop(address, 1_000, order=True, queue_id=1)
        assert [message.body for message, _ in first] == [b"order one", b"order two"]
        ack(address, *first[0])
    with apache_on(store, tmp_path / "apache") as address:
        assert take_until(address, {"ours open"}) == ["ours open"]
        [(message, _)] = pop(address, 60_000, order=True, queue_id=1)
        assert message.body == b"order two"
        send(address, "apache done", "apache open")
        # Apache's queues show a message a moment after its send is answered
        assert take_until(address, {"apache done", "apache open"}, acked={"apache done"}) == [
            "apache done",
            "apache open",
        ]
    with ours_on(folder) as address:
        assert take_until(address, {"apache open"}) == ["apache open"]
        assert pop(address, 1_000, order=True, queue_id=1) == []  # closed for Apache's minute, as its file says
