"""The outbox: the business transaction decides, rows are sent in order, failures and crashes lose nothing."""

import asyncio
import random
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import ClientError, InvalidMessage, OutboxRelay, ProducerConfig, RelayConfig, outbox_ddl
from mqtrail.client.core import SqlConnection
from mqtrail.client.outbox import relay as module
from mqtrail.clock import now_ms
from mqtrail.wire import InvalidParameter, Message
from tests.waiting import until

from .helpers import Shop, Sink

CONFIG = RelayConfig(poll_ms=5, retry_ms=20, retry_max_ms=40)


def relay_of(shop: Shop, sink: Any, config: RelayConfig = CONFIG) -> OutboxRelay:
    return OutboxRelay(shop.outbox, shop.connect, sink, config=config)


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path / "shop.db")


async def test_only_committed_messages_are_sent_with_all_their_fields(shop: Shop) -> None:
    """Once, in the order of their rows, as they were written."""
    sink = Sink()
    seen: list[Message] = []
    sink.after = seen.append
    msg_id = shop.place(1, "c1", tags="new", keys=("a", "b"), properties={"region": "EU"}, delay_level=3, flag=7)
    shop.place(2, "c1", commit=False)
    shop.place(3, "c1")
    relay = relay_of(shop, sink)
    assert await relay.waiting() == 2
    assert await relay.step() == 2
    assert await relay.step() == 0
    assert sink.sent[0] == (msg_id, b"1", "c1")
    assert sink.bodies == [b"1", b"3"]
    assert seen[0] == Message(
        "orders",
        b"1",
        tags="new",
        keys="a b",
        delay_level=3,
        flag=7,
        properties={"region": "EU", "UNIQ_KEY": msg_id},
    )
    assert relay.counts == (2, 0, 0)
    assert await relay.waiting() == 0


async def test_a_failure_holds_back_its_order_key_only(shop: Shop) -> None:
    """What follows under the key waits for it; everything else goes on, and the failure is in its row."""
    sink = Sink()
    sink.fails = lambda message: message.body == b"1"
    for number, key in enumerate(["a", "a", "b", None, "a"]):
        shop.place(number, key)
    shop.place(5, "c")
    relay = relay_of(shop, sink, replace(CONFIG, retry_ms=3_600_000, retry_max_ms=3_600_000))
    assert await relay.step() == 4
    assert sorted(sink.bodies) == [b"0", b"2", b"3", b"5"]
    shop.place(6, "a")
    shop.place(7, "b")
    assert await relay.step() == 1
    (row,) = shop.run("SELECT attempts, error FROM mqtrail_outbox WHERE attempts > 0")
    assert row[0] == 1
    assert "not acknowledged" in row[1]
    sink.fails = lambda message: False
    shop.run("UPDATE mqtrail_outbox SET retry_ms = 0")
    assert await relay.step() == 3
    assert [body for _, body, key in sink.sent if key == "a"] == [b"0", b"1", b"4", b"6"]


async def test_messages_that_always_fail_do_not_stop_the_others(shop: Shop) -> None:
    """Even if there are more of them than a step reads."""
    sink = Sink()
    sink.fails = lambda message: message.tags == "poison"
    for number in range(9):
        shop.place(number, f"k{number}", tags="poison")
    shop.place(100, "good")
    relay = relay_of(shop, sink, replace(CONFIG, batch_count_max=3, retry_ms=3_600_000, retry_max_ms=3_600_000))
    for _ in range(4):
        await relay.step()
    assert sink.bodies == [b"100"]
    assert await relay.step() == 0


async def test_retries_slow_down(shop: Shop) -> None:
    """The delay doubles up to its maximum."""
    sink = Sink()
    sink.fails = lambda message: True
    shop.place(1)
    relay = relay_of(shop, sink, replace(CONFIG, retry_ms=1_000, retry_max_ms=5_000))
    delays = []
    for _ in range(5):
        await relay.step()
        ((retry_ms,),) = shop.run("SELECT retry_ms FROM mqtrail_outbox")
        delays.append(round((retry_ms - now_ms()) / 1000))
        shop.run("UPDATE mqtrail_outbox SET retry_ms = 0")
    assert delays == [1, 2, 4, 5, 5]


async def test_one_relay_works_at_a_time(shop: Shop) -> None:
    """Another one takes over when it lets go, or when its lease ends."""
    first, second = Sink(), Sink()
    one, two = relay_of(shop, first), relay_of(shop, second)
    shop.place(1)
    assert await one.step() == 1
    shop.place(2)
    assert await two.step() == 0
    assert await one.step() == 1
    one.close()
    await one.run()
    shop.place(3)
    assert await two.step() == 1
    shop.place(4)
    assert await one.step() == 0
    shop.run("UPDATE mqtrail_outbox_lease SET until_ms = 5")
    assert await one.step() == 1
    assert (first.bodies, second.bodies) == ([b"1", b"2", b"4"], [b"3"])


async def test_a_relay_that_slept_sends_nothing_more(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of its lease is over: another one may soon send, so the rest of the rows waits for the next step."""
    sink = Sink()
    relay = relay_of(shop, sink)
    sink.after = lambda message: setattr(relay, "_lease_ends_s", 0.0)
    for number in range(3):
        shop.place(number, "a")
    assert await relay.step() == 1
    assert await relay.step() == 1
    assert sink.bodies == [b"0", b"1"]


async def test_sent_rows_are_deleted_in_pieces(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """After keep_ms; what is not sent stays, however old."""
    monkeypatch.setattr(module, "PRUNED_AT_ONCE", 4)
    sink = Sink()
    sink.fails = lambda message: message.body == b"0"
    for number in range(10):
        shop.place(number)
    relay = relay_of(shop, sink, replace(CONFIG, keep_ms=-1, prune_ms=0))
    await relay.step()
    for left in (6, 2, 1, 1):
        await relay._turn()
        assert shop.run("SELECT count(*) FROM mqtrail_outbox") == [(left,)]
    assert relay.counts.pruned == 9


async def test_run_sends_what_is_written_until_it_is_closed(shop: Shop) -> None:
    """Also after the database was away."""
    sink = Sink()
    relay = relay_of(shop, sink)
    running = asyncio.create_task(relay.run())
    shop.place(1)
    await until(lambda: sink.bodies == [b"1"])
    shop.run("ALTER TABLE mqtrail_outbox RENAME TO away")
    shop.run("ALTER TABLE away RENAME TO mqtrail_outbox")
    shop.place(2)
    await until(lambda: sink.bodies == [b"1", b"2"])
    relay.close()
    await running
    assert shop.run("SELECT owner, until_ms FROM mqtrail_outbox_lease") == [("", 0)]


async def test_marks_survive_a_database_that_is_away(shop: Shop) -> None:
    """It failed between send and mark: the next step marks first, and sends nothing twice."""
    sink = Sink()
    shop.place(1)
    shop.place(2)
    sink.fails = lambda message: message.body == b"2"
    sink.after = lambda message: [shop.run("ALTER TABLE mqtrail_outbox RENAME TO away")].clear()
    relay = relay_of(shop, sink, replace(CONFIG, retry_ms=3_600_000, retry_max_ms=3_600_000))
    with pytest.raises(sqlite3.OperationalError):
        await relay.step()
    shop.run("ALTER TABLE away RENAME TO mqtrail_outbox")
    shop.place(3)
    sink.after = lambda message: None
    assert await relay.step() == 1
    assert sink.bodies == [b"1", b"3"]
    assert shop.run("SELECT attempts FROM mqtrail_outbox WHERE sent_ms = 0") == [(1,)]


async def test_a_cancelled_step_marks_what_was_sent(shop: Shop) -> None:
    """An orderly stop of the process sends nothing twice."""
    sink = Sink()
    for number in range(20):
        shop.place(number, "a")
    relay = relay_of(shop, sink)
    step = asyncio.create_task(relay.step())
    sink.after = lambda message: [step.cancel() for _ in range(message.body == b"3")].clear()
    with pytest.raises(asyncio.CancelledError):
        await step
    assert len(sink.sent) < 20
    while await relay.step():
        pass
    assert sink.bodies == [str(number).encode() for number in range(20)]


class Crash(BaseException):
    """kill -9, as far as one process can play it."""


@pytest.mark.parametrize("seed", [1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(10, 20))])
async def test_crashes_lose_and_reorder_nothing(shop: Shop, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers roll back or commit, sends fail, relays crash after a send, before or after the commit of the marks.

    A checker reads only what the broker got: every committed message, none that was rolled back, one id for each, and
    each key in order once repeats are dropped by their id, as a consumer with an inbox does.
    """
    chance = random.Random(seed)
    sink = Sink()
    committed: dict[str, tuple[int, str | None]] = {}
    mode = ""

    def crash_at(place: str) -> None:
        if mode == place and chance.random() < 0.3:
            raise Crash

    sink.after = lambda message: crash_at("sent")
    sink.fails = lambda message: mode == "fails" and chance.random() < 0.5
    mark = OutboxRelay._mark

    def marked(self: OutboxRelay, sql: SqlConnection, *args: Any) -> None:
        crash_at("before mark")
        mark(self, sql, *args)
        crash_at("before commit")

    monkeypatch.setattr(OutboxRelay, "_mark", marked)
    relay = relay_of(shop, sink, replace(CONFIG, batch_count_max=4, retry_ms=0, retry_max_ms=0))
    number = 0
    for _ in range(40):
        for _ in range(chance.randrange(4)):
            number += 1
            key = chance.choice(["a", "b", None])
            commit = chance.random() < 0.8
            msg_id = shop.place(number, key, commit=commit)
            if commit:
                committed[msg_id] = (number, key)
        mode = chance.choice(["sent", "fails", "before mark", "before commit", "fine"])
        try:
            await relay.step()
        except (Crash, BaseExceptionGroup):  # the process is gone, its lease ends
            relay = relay_of(shop, sink, relay.config)
            shop.run("UPDATE mqtrail_outbox_lease SET until_ms = 5")
    mode = "fine"
    while await relay.step():
        pass
    first = {msg_id: body for msg_id, body, _ in reversed(sink.sent)}
    assert first == {msg_id: str(number).encode() for msg_id, (number, _) in committed.items()}, f"{seed=}"
    order = list(dict.fromkeys(msg_id for msg_id, _, _ in sink.sent))
    for key in ("a", "b"):
        numbers = [committed[msg_id][0] for msg_id in order if committed[msg_id][1] == key]
        assert numbers == sorted(numbers), f"{seed=}"


def test_wrong_messages_are_refused_before_they_are_written(shop: Shop) -> None:
    """A row that no broker takes would hold back its key."""
    connection = shop.connect()
    with pytest.raises(InvalidParameter):
        shop.outbox.add(connection, Message("a topic", b"x"))
    body: Any
    for body in (b"", "text"):
        with pytest.raises(InvalidMessage, match="expected bytes"):
            shop.outbox.add(connection, Message("orders", body))
    for key in ("", "x" * 256):
        with pytest.raises(InvalidMessage, match="order key"):
            shop.outbox.add(connection, Message("orders", b"x"), order_key=key)
    connection.close()
    assert shop.run("SELECT count(*) FROM mqtrail_outbox") == [(0,)]


def test_settings_that_cannot_work_are_refused(shop: Shop) -> None:
    """An empty step; a lease that ends during a send."""
    sink = Sink()
    with pytest.raises(ClientError, match="batch_count_max"):
        relay_of(shop, sink, RelayConfig(batch_count_max=0))
    sink.config = ProducerConfig(send_timeout_ms=20_000)
    with pytest.raises(ClientError, match="at least twice the timeout"):
        relay_of(shop, sink)
    sink.config = ProducerConfig(degrade=True)
    with pytest.raises(ClientError, match="with degrade"):
        relay_of(shop, sink)
    assert "sales.outbox" in outbox_ddl("mysql", "sales.outbox")[0]
