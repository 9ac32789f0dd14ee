"""A directory with timer messages and open transactions moves between brokers: each completes the other's."""

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
    OP_HALF_TOPIC,
    EndTransactionHeader,
    MessageSysFlag,
    PullHeader,
    PullSysFlag,
    RequestCode,
    SendMessageHeader,
    decode_records,
    encode_properties,
    parse_offset_msg_id,
)

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC, GROUP = "TimedHandover", "TimedGroup"
SEGMENT_SIZE = 64 << 20
TIMERS = 6  # messages that our broker has in the timer topic when it ends, a recall among them


@contextmanager
def apache_on(store: Path, folder: Path) -> Iterator[str]:
    """Run Apache's broker on a directory; yields its address, and stops it cleanly."""
    namesrv = ApacheNameServer("5.3.3", folder / "namesrv").start()
    properties = {**SERVER_PROPERTIES, "recallMessageEnable": "true"}
    broker = ApacheBroker("5.3.3", folder / "broker", namesrv.address, store=store, properties=properties)
    try:
        broker.start()
        yield broker.address
    finally:
        broker.stop()
        namesrv.kill()


@contextmanager
def ours_on(folder: Path, *, kill: bool = False) -> Iterator[str]:
    """Run our server on its directory; yields its broker's address, and ends it cleanly or by kill -9."""
    server = OurServer(folder, segment_size=SEGMENT_SIZE).start()
    try:
        yield server.broker_address
    finally:
        if kill:
            server.kill()
        else:
            server.stop()


def ask(address: str, code: int, ext: dict[str, str], body: bytes = b"") -> tuple[dict[str, str], bytes]:
    """Return ext fields and body of an answer with code 0."""
    header, found = request(address, code, ext, body=body, timeout_s=10)
    assert header["code"] == 0, header
    return header.get("extFields") or {}, found


def send(address: str, body: str, **properties: str) -> dict[str, str]:
    text = encode_properties({"UNIQ_KEY": body.replace(" ", "-"), **properties})
    header = SendMessageHeader("pg", TOPIC, queue_id=0, born_timestamp=int(time.time() * 1000), properties=text)
    return ask(address, RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body.encode())[0]


def end(address: str, sent: dict[str, str], outcome: int) -> None:
    _, place = parse_offset_msg_id(sent["msgId"])
    header = EndTransactionHeader("pg", int(sent["queueOffset"]), place, outcome, sent["transactionId"], topic=TOPIC)
    ask(address, RequestCode.END_TRANSACTION, header.to_ext())


def delivered(address: str) -> list[str]:
    """Return the bodies in the topic's queue 0, in order."""
    bodies: list[str] = []
    while True:
        header = PullHeader(GROUP, TOPIC, 0, len(bodies), 32, int(PullSysFlag.SUBSCRIPTION), 0, 0, "*")
        reply, data = request(address, RequestCode.PULL_MESSAGE, header.to_ext(), timeout_s=10)
        if reply["code"] != 0:
            return bodies
        bodies += [message.body.decode() for message in decode_records(data)]


def wait_for(address: str, wanted: set[str], timeout_s: float) -> None:
    wait_until(lambda: wanted <= set(delivered(address)), f"{wanted} in {TOPIC}", timeout_s, interval_s=0.5)


def taken_in(store: Path) -> int:
    """Return how many messages of the timer topic our broker has read: config/timercheck, third field."""
    checkpoint = store / "config" / "timercheck"
    return int.from_bytes(checkpoint.read_bytes()[16:24], "big") if checkpoint.exists() else 0


def ended(address: str) -> int:
    """Return how many op records there are."""
    found, _ = ask(address, RequestCode.GET_MAX_OFFSET, {"topic": OP_HALF_TOPIC, "queueId": "0"})
    return int(found["offset"])


@pytest.mark.parametrize("kill", [False, True], ids=["stopped", "killed"])
def test_there_and_back(tmp_path: Path, kill: bool) -> None:
    """Ours (stopped or killed), Apache's, ours: each timer message once, no recalled one, and only committed halves."""
    folder = tmp_path / "ours"
    store = OurServer(folder).store
    with ours_on(folder, kill=kill) as address:
        send(address, "past", TIMER_DELAY_SEC="1")
        wait_for(address, {"past"}, 120)
        send(address, "ours for apache", TIMER_DELAY_SEC="12")
        handle = send(address, "recalled at ours", TIMER_DELAY_SEC="14")["recallHandle"]
        ask(address, RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": handle, "producerGroup": "pg"})
        later = send(address, "recalled at apache", TIMER_DELAY_SEC="80")["recallHandle"]
        send(address, "ours for ours", TIMER_DELAY_SEC="75")
        half = send(address, "committed at apache", TRAN_MSG="true", PGROUP="pg")
        done = send(address, "committed at ours", TRAN_MSG="true", PGROUP="pg")
        end(address, done, MessageSysFlag.TRANSACTION_COMMIT)
        wait_until(lambda: taken_in(store) >= TIMERS and ended(address) >= 1, "a save, and an op record", 120)
    with apache_on(store, tmp_path / "apache") as address:
        end(address, half, MessageSysFlag.TRANSACTION_COMMIT)
        send(address, "apache for ours", TIMER_DELAY_SEC="50")
        rolled_back = send(address, "rolled back at ours", TRAN_MSG="true", PGROUP="pg")
        ask(address, RequestCode.RECALL_MESSAGE, {"topic": TOPIC, "recallHandle": later, "producerGroup": "pg"})
        wait_for(address, {"ours for apache", "committed at apache"}, 120)
        wait_until(lambda: ended(address) >= 2, "the op record of what was committed", 120)
    with ours_on(folder) as address:
        end(address, rolled_back, MessageSysFlag.TRANSACTION_ROLLBACK)
        wait_for(address, {"ours for ours", "apache for ours"}, 120)
        send(address, "the last", TIMER_DELAY_SEC="7")  # due after the recalled message
        wait_for(address, {"the last"}, 120)
        found = delivered(address)
    expected = {
        "past",
        "ours for apache",
        "committed at apache",
        "committed at ours",
        "ours for ours",
        "apache for ours",
        "the last",
    }
    assert set(found) == expected
    assert kill or len(found) == len(
        expected
    )  # after a kill, messages delivered since the last save are delivered twice
