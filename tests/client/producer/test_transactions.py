"""Transactions: the properties of half messages, the reports of their end, and the replies to checks."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from mqtrail.client import (
    ClientError,
    InstanceConfig,
    ProducerConfig,
    SendFailed,
    TraceConfig,
    Transaction,
    TransactionProducer,
    TransactionState,
)
from mqtrail.wire import (
    EndTransaction,
    Host,
    Message,
    MessageExt,
    RemotingCommand,
    RequestCode,
    SendStatus,
    decode_trace,
    encode_command,
    encode_properties,
    encode_record,
    parse_offset_msg_id,
)
from tests.waiting import until

from ..fake_cluster import FakeBroker, fake_cluster, on_code, refuse

SEND, END = RequestCode.SEND_MESSAGE_V2, RequestCode.END_TRANSACTION
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


async def committed(message: MessageExt) -> TransactionState:
    """A check handler."""
    return COMMIT


async def ends(broker: FakeBroker, count: int) -> list[RemotingCommand]:
    """Return the END_TRANSACTIONs that the broker got, once there are count of them."""
    await until(lambda: len(broker.of(END)) >= count)
    return broker.of(END)


def check(broker: FakeBroker, msg_id: str, group: str = "PG", body: bytes = b"order") -> None:
    """Let the broker check a transaction over the newest connection."""
    record = encode_record(
        "orders",
        body,
        encode_properties({"UNIQ_KEY": msg_id, "PGROUP": group, "TRAN_MSG": "true", "TAGS": "A"}).encode(),
        queue_id=0,
        queue_offset=7,
        physical_offset=900,
        born_timestamp_ms=1,
        born_host=Host("127.0.0.1", 1).packed(),
        store_timestamp_ms=2,
        store_host=Host("127.0.0.1", 2).packed(),
    )
    ext = {"tranStateTableOffset": "7", "commitLogOffset": "900", "msgId": msg_id, "transactionId": msg_id}
    ext |= {"bname": broker.name, "topic": "orders", "offsetMsgId": "x"}
    command = RemotingCommand(RequestCode.CHECK_TRANSACTION_STATE, ext, record)
    command.flag = 2
    broker.connections[-1].write(encode_command(command))


async def test_a_committed_transaction() -> None:
    """The half message has its properties, and END_TRANSACTION returns its position."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=committed) as producer,
    ):
        (broker,) = cluster.brokers
        ids = []

        async def local(transaction: Transaction) -> TransactionState:
            ids.append(transaction.transaction_id)
            assert broker.stored("orders") == [b"order"]
            assert not broker.of(END)
            return COMMIT

        message = Message("orders", b"order", delay_level=3, properties={"DELAY": "4"})
        result = await producer.send_in_transaction(message, local)
        assert (result.state, result.error) == (COMMIT, None)
        (half,) = broker.messages("orders")
        assert half.properties["TRAN_MSG"] == "true"
        assert half.properties["PGROUP"] == "PG"
        assert "DELAY" not in half.properties
        assert int(broker.of(SEND)[0].ext["f"]) == 4
        assert ids == [half.msg_id]
        (end,) = await ends(broker, 1)
        assert end.is_oneway
        assert end.ext["commitOrRollback"] == "8"
        assert end.ext["producerGroup"] == "PG"
        assert end.ext["msgId"] == half.msg_id
        assert int(end.ext["commitLogOffset"]) == parse_offset_msg_id(half.offset_msg_id)[1]
        assert end.ext["tranStateTableOffset"] == "0"
        assert end.ext["bname"] == "broker-a"
        assert end.ext["fromTransactionCheck"] == "false"
        assert end.remark is None


@pytest.mark.parametrize(
    ("answer", "code", "state"),
    [(COMMIT, 8, COMMIT), (ROLLBACK, 12, ROLLBACK), (UNKNOWN, 0, UNKNOWN), (None, 0, UNKNOWN), ("yes", 0, UNKNOWN)],
)
async def test_how_a_local_transaction_ends(answer: Any, code: int, state: TransactionState) -> None:
    """Every state is reported; None and invalid values are UNKNOWN. A plain function runs in a thread."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=committed) as producer,
    ):
        threads = []

        def local(transaction: Transaction) -> Any:
            threads.append(threading.current_thread())
            return answer

        result = await producer.send_in_transaction(Message("orders", b"order"), local)
        assert result.state is state
        (end,) = await ends(cluster.brokers[0], 1)
        assert end.ext["commitOrRollback"] == str(code)
        assert threads[0] is not threading.current_thread()


async def test_a_local_transaction_that_raises_is_unknown() -> None:
    """It may have been executed before it raised, so the broker must check. The error text is reported."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=committed) as producer,
    ):

        async def local(transaction: Transaction) -> TransactionState:
            raise RuntimeError("no database")

        result = await producer.send_in_transaction(Message("orders", b"order"), local)
        assert result.state is UNKNOWN
        assert isinstance(result.error, RuntimeError)
        (end,) = await ends(cluster.brokers[0], 1)
        assert end.ext["commitOrRollback"] == "0"
        assert "no database" in (end.remark or "")


async def test_the_block_commits_by_default() -> None:
    """A transaction as a context manager: it commits at its end, is UNKNOWN if it raises, or ends as it says
    explicitly."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=committed) as producer,
    ):
        message = Message("orders", b"order")
        async with producer.transaction(message):
            pass
        with pytest.raises(KeyError):
            async with producer.transaction(message):
                raise KeyError("lost")
        async with producer.transaction(message) as transaction:
            await transaction.rollback()
            with pytest.raises(ClientError, match="already ended"):
                await transaction.commit()
        found = await ends(cluster.brokers[0], 3)
        assert [end.ext["commitOrRollback"] for end in found] == ["8", "0", "12"]


async def test_a_half_message_that_is_not_safe_is_rolled_back() -> None:
    """If the half message is stored less safely than requested, the local transaction does not run."""
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=committed) as producer,
    ):
        (broker,) = cluster.brokers

        def unsafe(command: RemotingCommand) -> RemotingCommand:
            reply = broker.send(command)
            reply.code = 12
            return reply

        broker.script = on_code(SEND, unsafe)
        ran: list[object] = []
        result = await producer.send_in_transaction(Message("orders", b"order"), ran.append)
        assert (result.state, result.send.status, ran) == (ROLLBACK, SendStatus.FLUSH_SLAVE_TIMEOUT, [])
        with pytest.raises(ClientError, match="FLUSH_SLAVE_TIMEOUT"):
            async with producer.transaction(Message("orders", b"order")):
                ran.append(None)
        assert [end.ext["commitOrRollback"] for end in await ends(broker, 2)] == ["12", "12"]
        broker.script = on_code(SEND, refuse(14))
        with pytest.raises(SendFailed):
            await producer.send_in_transaction(Message("orders", b"order"), ran.append)
        assert ran == []


async def test_a_check_is_answered() -> None:
    """The handler gets the half message; the reply has the offsets that the broker sent."""
    asked: list[MessageExt] = []

    def look_up(message: MessageExt) -> TransactionState:
        asked.append(message)
        if message.body == b"broken":
            raise LookupError("gone")
        return ROLLBACK

    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=look_up) as producer,
    ):
        (broker,) = cluster.brokers
        await producer.send(Message("orders", b"plain"))
        await until(lambda: broker.of(RequestCode.HEART_BEAT))
        check(broker, "ID1")
        check(broker, "ID2", group="other")
        check(broker, "ID3", body=b"broken")
        first, second = await ends(broker, 2)
        assert [message.msg_id for message in asked] == ["ID1", "ID3"]
        expected = {"commitOrRollback": "12", "fromTransactionCheck": "true", "tranStateTableOffset": "7"}
        expected |= {"commitLogOffset": "900", "msgId": "ID1", "transactionId": "ID1", "producerGroup": "PG"}
        assert expected.items() <= first.ext.items()
        assert first.ext["topic"] == "orders"
        assert second.ext["commitOrRollback"] == "0"
        assert "gone" in (second.remark or "")
        assert first.is_oneway


async def test_a_producer_is_known_to_its_broker_before_it_could_be_asked() -> None:
    """The heartbeat is sent with the first connection, and again after that broke."""
    config = ProducerConfig(retry_count=0)
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=committed, config=config) as producer,
    ):
        (broker,) = cluster.brokers
        await producer.send(Message("orders", b"x"))
        await until(lambda: len(broker.of(RequestCode.HEART_BEAT)) == 1)
        broker.connections[-1].close()
        await until(lambda: not broker.connections)
        await until(lambda: not producer._client.pool.connected(broker.address))
        await producer.send(Message("orders", b"x"))
        await until(lambda: len(broker.of(RequestCode.HEART_BEAT)) == 2)


async def test_checks_are_bounded() -> None:
    """Running and waiting checks are limited; further ones are dropped, and the broker checks again."""
    gate = asyncio.Event()
    running = 0
    running_max = 0

    async def slow(message: MessageExt) -> TransactionState:
        nonlocal running, running_max
        running += 1
        running_max = max(running_max, running)
        await gate.wait()
        running -= 1
        return COMMIT

    config = ProducerConfig(check_concurrency=2, check_queue_max=3)
    async with (
        fake_cluster({"orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=slow, config=config) as producer,
    ):
        (broker,) = cluster.brokers
        await producer.send(Message("orders", b"plain"))
        check(broker, "ID0")
        check(broker, "ID1")
        await until(lambda: running == 2)
        for number in range(2, 12):
            check(broker, f"ID{number}")
        await producer.send(Message("orders", b"plain"))  # behind them on the same connection
        gate.set()
        await ends(broker, 5)
        await producer.send(Message("orders", b"plain"))
        assert {end.ext["msgId"] for end in broker.of(END)} == {f"ID{number}" for number in range(5)}
        assert running_max == 2


async def test_a_check_handler_is_needed() -> None:
    """Without a check handler, half messages of failed transactions would stay open."""
    producer = TransactionProducer("PG", "127.0.0.1:1")
    with pytest.raises(ClientError, match="check"):
        await producer.start()
    producer.checker(committed)
    await producer.start()
    await producer.close()


async def test_namespaces_reach_the_group() -> None:
    """The wrapped group is in PGROUP, the heartbeat and END_TRANSACTION; the check handler sees the plain topic."""
    asked: list[MessageExt] = []

    async def look_up(message: MessageExt) -> TransactionState:
        asked.append(message)
        return COMMIT

    config = ProducerConfig(instance=InstanceConfig(namespace="shop"))
    async with (
        fake_cluster({"shop%orders": 1}) as cluster,
        TransactionProducer("PG", cluster.namesrv, check=look_up, config=config) as producer,
    ):
        (broker,) = cluster.brokers
        async with producer.transaction(Message("orders", b"x")):
            pass
        (end,) = await ends(broker, 1)
        assert (end.ext["producerGroup"], end.ext["topic"]) == ("shop%PG", "shop%orders")
        assert broker.messages("shop%orders")[0].properties["PGROUP"] == "shop%PG"
        check(broker, "ID", group="shop%PG")
        await until(lambda: asked)
        assert asked[0].topic == "orders"


async def test_the_trace_tells_how_it_ended(tmp_path: Path) -> None:
    """There is one EndTransaction for the producer's decision and one for the check, as the Java client writes them."""
    config = ProducerConfig(trace=TraceConfig(spool_dir=tmp_path, linger_ms=10))
    async with fake_cluster({"orders": 1, "RMQ_SYS_TRACE_TOPIC": 1}) as cluster:
        (broker,) = cluster.brokers
        async with TransactionProducer("PG", cluster.namesrv, check=committed, config=config, trace=True) as producer:
            async with producer.transaction(Message("orders", b"x", tags="T", keys=["a", "b"])) as transaction:
                await transaction.rollback()
            check(broker, "ID")
            await ends(broker, 2)
        records: list[Any] = []
        for message in broker.messages("RMQ_SYS_TRACE_TOPIC"):
            found, rejects = decode_trace(message.body)
            assert not rejects
            records += found
        first, second = [record for record in records if isinstance(record, EndTransaction)]
        assert (first.msg_id, first.transaction_state, first.from_transaction_check) == (
            transaction.transaction_id,
            "ROLLBACK_MESSAGE",
            False,
        )
        assert (first.tags, first.keys, first.group_name, first.topic) == ("T", "a b", "PG", "orders")
        assert first.store_host == broker.address
        assert first.msg_type == 2
        assert (second.msg_id, second.transaction_state, second.from_transaction_check) == (
            "ID",
            "COMMIT_MESSAGE",
            True,
        )
        (pub,) = [record for record in records if type(record).__name__ == "Pub"]
        assert pub.msg_type == 1  # half
