"""Answers from a live cluster, alone and together with a lake."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mqtrail import trail
from mqtrail.answers import Answers, Status, TraceAnswer, live, moment_text
from mqtrail.broker import BrokerConfig
from mqtrail.client import ClientInstance, InstanceConfig, ProducerConfig, QueryResult, SyncAdmin, SyncProducer
from mqtrail.client.core import Composer, unique_ids
from mqtrail.clock import now_ms
from mqtrail.lake import connect, stored_rows
from mqtrail.testing import embedded
from mqtrail.wire import (
    DELAY_LEVELS_MS,
    SCHEDULE_TOPIC,
    TRACE_TOPIC,
    CompressionType,
    Message,
    compress,
    decode_record,
    encode_record,
)
from tests.answers.conftest import Shop
from tests.answers.lakes import id_of
from tests.loops import run


def until(look: Callable[[], TraceAnswer | None]) -> TraceAnswer:
    """Repeat until there is an answer: the broker's index is a moment behind."""
    end_s = time.monotonic() + 60
    while (answer := look()) is None:
        assert time.monotonic() < end_s
        time.sleep(0.05)
    return answer


def ask(shop: Shop, asked: str, lake: Path | None = None) -> TraceAnswer:
    cluster = "send ok" if lake else ""  # the lake has a cluster a history
    return Answers(lake, shop.namesrv, cluster=cluster).trace(asked, time.time_ns() // 1_000_000)


def test_a_traced_message(shop: Shop) -> None:
    """By id and by key its send and delivery are found in the broker's index and judged."""
    for asked in (shop.traced, "order-42"):
        answer = ask(shop, asked)
        assert answer.status is Status.FOUND
        [found] = answer.trajectories
        assert found.msg_id == shop.traced
        assert found.send_codes == ("SEND_OK",)
        assert {group.group_name: group.state for group in found.groups} == {"billing": "CONSUMED"}
        assert found.place.startswith("broker-a/orders/")
        assert any("without a lake" in omission for omission in answer.scope.omissions)


@pytest.mark.slow
def test_by_the_brokers_id(shop: Shop) -> None:
    """The id in the broker's send reply finds the message."""
    [found] = ask(shop, shop.traced).trajectories
    answer = ask(shop, found.offset_msg_id)
    assert answer.status is Status.FOUND
    assert [one.msg_id for one in answer.trajectories] == [shop.traced]


def test_an_untraced_message(shop: Shop) -> None:
    """It is stored without any trace: neither FOUND nor NOT_FOUND."""
    answer = ask(shop, shop.untraced)
    assert answer.status is Status.NOT_TRACED
    assert "trace is off" in answer.why
    [found] = answer.trajectories
    assert found.place.startswith("broker-a/stock/")


def test_a_delayed_message(shop: Shop) -> None:
    """A message that waits for its delay level is found in the schedule topic."""
    [found] = ask(shop, shop.delayed).trajectories
    assert found.message_codes == ("SCHEDULED",)
    assert found.due_ms is not None
    assert found.due_ms > time.time() * 1000 + 3_600_000


def test_an_id_that_was_never_sent(shop: Shop, lake_path: Path) -> None:
    """All sources were searched: it does not exist."""
    answer = ask(shop, "7F" * 16, lake_path)
    assert answer.status is Status.NOT_FOUND
    assert len(answer.scope.sources) >= 3


@pytest.mark.slow
def test_invalid_trace_records(shop: Shop) -> None:
    """Records with null and invalid offsets beside the message's own trace: it is found; unknown values stay unknown,
    and undecodable records are listed."""
    records = [
        f"Pub\x01170\x01R\x01PG\x01orders\x01{shop.traced}\x01A\x01junk-key\x01h:1\x0111\x017\x010\x01OID\x01true\x02",
        "Delivered\x01170\x01broker-a\x01billing\x01orders\x010\x01null\x01c\x02",
        "Delivered\x01170\x01broker-a\x01billing\x01orders\x010\x01x,1,,9999999999999999999999\x01c\x02",
        "Delivered\x01now\x01broker-a\x01billing\x01orders\x010\x011\x01c\x02",
    ]
    with SyncProducer("junk", shop.namesrv) as producer:
        producer.send(Message("RMQ_SYS_TRACE_TOPIC", "".join(records).encode(), keys="junk-key"))

    def found() -> TraceAnswer | None:
        answer = ask(shop, "junk-key")
        return answer if answer.status is Status.FOUND else None

    answer = until(found)
    assert [one.msg_id for one in answer.trajectories] == [shop.traced]
    assert any("timeStamp: found 'now'" in omission for omission in answer.scope.omissions)


BOMB = compress(bytes(trail.TRACE_BODY_SIZE_MAX + 1), CompressionType.ZSTD)


async def put_trace(namesrv: str, *bodies: tuple[str, bytes, int]) -> None:
    """Store trace messages: key, body as stored, sysFlag of its compression."""
    composer = Composer("PRaw", ProducerConfig(), unique_ids().next)
    client = ClientInstance(namesrv, InstanceConfig())
    await client.start()
    try:
        queue = (await client.route(TRACE_TOPIC)).publish_queues[0]
        for key, body, sys_flag in bodies:
            out = composer.message(Message(TRACE_TOPIC, body, keys=key))
            out.sys_flag = sys_flag
            command = composer.command(out, queue, now_ms())
            reply = await client.pool.request(client.master(queue.broker_name), command, 10_000)
            assert reply.code == 0, reply.remark
    finally:
        await client.close()


def test_trace_messages_that_cannot_be_read_are_no_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """An id whose trace messages are all undecodable is neither "not found" nor "not traced", with the reason; also if
    they are found by their time. An id beside them is still "not found"."""
    zstd, next_id = CompressionType.ZSTD.sys_flag, unique_ids().next
    ids = {name: next_id() for name in ("bomb", "garbage", "other")}
    with embedded(broker=BrokerConfig(trace_topic_enable=True)) as broker:
        with SyncProducer("silent", broker.namesrv_address) as producer:
            stored = producer.send(Message("orders", b"1")).msg_id
        bodies = ((ids["bomb"], BOMB, zstd), (ids["garbage"], b"\xff\x02", 0), (stored, BOMB, zstd))
        run(put_trace(broker.namesrv_address, *bodies))

        def asked(msg_id: str) -> TraceAnswer:
            return Answers(None, broker.namesrv_address).trace(msg_id, time.time_ns() // 1_000_000)

        answer = until(lambda: found if (found := asked(stored)).status is Status.CANNOT_LOOK else None)
        assert "is stored" in answer.why
        assert len(answer.trajectories) == 1
        for name, reason in (("bomb", f"expected at most {trail.TRACE_BODY_SIZE_MAX}"), ("garbage", "record type")):
            answer = asked(ids[name])
            assert (answer.status, answer.trajectories) == (Status.CANNOT_LOOK, ())
            assert "trace messages about it could not be read" in answer.why
            assert any(reason in omission for omission in answer.scope.omissions)
        assert asked(ids["other"]).status is Status.NOT_FOUND
        monkeypatch.setattr(SyncAdmin, "query", forgetting(ids["bomb"]))
        assert asked(ids["bomb"]).status is Status.CANNOT_LOOK


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [("²", None), ("9" * 5_000, None), ("-1", None), ("0", None), ("x", None), ("2", 5_000), ("9999999999", 7_200_000)],
)
def test_invalid_properties(level: str, delay_ms: int | None) -> None:
    """DELAY is set by the sender; an invalid level has no delay, one above the highest has that of the highest."""
    message = decode_record(
        encode_record(
            "orders",
            b"",
            f"DELAY\x01{level}\x02UNIQ_KEY\x01k".encode(),
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            born_timestamp_ms=(1 << 63) - 1,
            born_host=bytes(8),
            store_timestamp_ms=1,
            store_host=bytes(8),
        )
    )[0]
    [row] = stored_rows(connect(threads=1), [live._stored(message, SCHEDULE_TOPIC)], "c", DELAY_LEVELS_MS, 2)
    assert (row["delay_ms"], row["due_ms"]) == (delay_ms, None if delay_ms is None else 1 + delay_ms)
    assert (row["cluster"], row["stored_kind"], row["born_ms"]) == ("c", "DELAY_WAIT", (1 << 63) - 1)


@pytest.mark.parametrize("at_ms", [1 << 62, -(1 << 63), -62_135_596_800_001, 253_402_300_800_000])
def test_moments_that_no_calendar_has(at_ms: int) -> None:
    """They are shown as their number."""
    assert moment_text(at_ms, "%H:%M:%S.%f", cut=3) == f"{at_ms} ms"


def test_lake_and_cluster_together(shop: Shop, lake_path: Path) -> None:
    """The lake's message is returned although the cluster does not have it."""
    answer = ask(shop, id_of("send ok"), lake_path)
    assert answer.status is Status.FOUND
    [found] = answer.trajectories
    assert [group.state for group in found.groups] == ["CONSUMED"]
    [live] = ask(shop, shop.traced, lake_path).trajectories
    assert live.send_codes == ("SEND_OK",)


def test_a_look_up_leaves_no_mark(shop: Shop) -> None:
    """Queries create no topic and no group."""
    with SyncAdmin(shop.namesrv) as admin:
        [address] = admin.masters().values()
        before = admin.topics(), set(admin.groups(address).subscription_group_table)
        ask(shop, "order-42")
        assert before == (admin.topics(), set(admin.groups(address).subscription_group_table))


def forgetting(msg_id: str) -> Callable[..., QueryResult]:
    """SyncAdmin.query of brokers whose index has no entries of one id, as after a kill."""
    real = SyncAdmin.query

    def query(admin: SyncAdmin, topic: str, key: str, **more: Any) -> QueryResult:
        return QueryResult((), {}) if key == msg_id else real(admin, topic, key, **more)

    return query


@pytest.mark.slow
def test_an_id_that_the_index_forgot(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time in the id bounds a read of the trace topic, and the broker's id in the trace leads to the copy."""
    before = ask(shop, shop.traced)
    monkeypatch.setattr(SyncAdmin, "query", forgetting(shop.traced))
    answer = ask(shop, shop.traced)
    assert answer.status is Status.FOUND
    [found], [known] = answer.trajectories, before.trajectories
    assert (found.place, found.send_codes) == (known.place, known.send_codes)
    assert {group.group_name: group.state for group in found.groups} == {"billing": "CONSUMED"}
    [omission] = [one for one in answer.scope.omissions if "the index has no trace" in one]
    assert "up to 10 minutes after its birth" in omission


def test_the_read_of_a_birth_is_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends after so many messages, and says so."""
    monkeypatch.setattr(SyncAdmin, "query", forgetting(shop.traced))
    monkeypatch.setattr("mqtrail.answers.born.MESSAGES_MAX", 0)
    assert ask(shop, shop.traced).status is not Status.FOUND
    assert any("messages after its birth" in one for one in ask(shop, shop.traced).scope.omissions)


@pytest.mark.slow
def test_the_zone_of_a_producer(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids have the time of their producer's zone: it is taken from the latest records."""
    real, zone_ms = trail.born_ms, 8 * 3_600_000

    def of_china(msg_id: str, before_ms: int) -> int | None:
        born_ms = real(msg_id, before_ms)
        return None if born_ms is None else born_ms + zone_ms

    monkeypatch.setattr("mqtrail.trail.born_ms", of_china)
    monkeypatch.setattr(SyncAdmin, "query", forgetting(shop.traced))
    assert ask(shop, shop.traced).status is Status.FOUND
