"""Transactions beyond their scenario file: op records, recorded frames, crashes, a store that refuses."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqtrail.broker.properties import real_queue
from mqtrail.broker.transactions.check import EndedHalfMessages
from mqtrail.broker.transactions.records import half_offsets_of, half_record, op_records
from mqtrail.store import CommitLogConfig, CommitLogStore, ConfigFileStore, PendingRecord, StoreFull
from mqtrail.wire import (
    HALF_TOPIC,
    OP_HALF_TOPIC,
    TRANSACTION_GROUP,
    CheckTransactionStateHeader,
    EndTransactionHeader,
    MessageSysFlag,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SendMessageHeader,
    decode_records,
    encode_properties,
    parse_offset_msg_id,
)
from tests.store.crash_disk import CrashDisk

from ..helpers import NOW_MS, PEER, Bench

FRAMES = Path(__file__).parents[2] / "golden" / "frames.jsonl"
COMMIT, ROLLBACK = MessageSysFlag.TRANSACTION_COMMIT, MessageSysFlag.TRANSACTION_ROLLBACK
OFFSETS = st.lists(st.integers(0, 1 << 40))


def half(bench: Bench, body: bytes, **properties: str) -> RemotingCommand:
    """Send a half message of group pg as clients do, transaction bit and all."""
    text = encode_properties({"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"ID{body.decode()}", **properties})
    header = SendMessageHeader(
        "pg",
        "orders",
        queue_id=1,
        sys_flag=MessageSysFlag.TRANSACTION_PREPARED,
        born_timestamp=bench.now_ms,
        flag=7,
        properties=text,
    )
    reply = bench.ask(RequestCode.SEND_MESSAGE_V2, header.to_ext_v2(), body)
    assert reply.code == ResponseCode.SUCCESS
    return reply


def end(bench: Bench, sent: RemotingCommand, outcome: int = COMMIT, **ext: str) -> RemotingCommand:
    _, physical_offset = parse_offset_msg_id(sent.ext["msgId"])
    header = EndTransactionHeader("pg", int(sent.ext["queueOffset"]), physical_offset, outcome, "ID")
    return bench.ask(RequestCode.END_TRANSACTION, header.to_ext() | ext)


def questions(sends: list[Send]) -> list[CheckTransactionStateHeader]:
    return [
        CheckTransactionStateHeader.from_ext(send.command.ext)
        for send in sends
        if send.command.code == RequestCode.CHECK_TRANSACTION_STATE
    ]


def bodies(bench: Bench, topic: str, queue_id: int = 0) -> set[bytes]:
    """Return the bodies of all messages of a queue, with as many reads as needed."""
    found: set[bytes] = set()
    offset = 0
    while (read := bench.store.read(topic, queue_id, offset, 100, 1 << 20)).records:
        found |= {message.body for message in decode_records(b"".join(read.records))}
        offset = read.next_queue_offset
    return found


# -- records -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "text", "offsets"),
    [
        (b"3", "TAGS\x01d\x02", [3]),  # 4.9: TransactionalMessageBridge.addRemoveTagInTransactionOp
        (b"3,17,4,", "WAIT\x01true\x02TAGS\x01d\x02", [3, 17, 4]),  # 5.x: TransactionalMessageServiceImpl.getOpMessage
        (b"3,x,,4", "TAGS\x01d\x02", [3, 4]),
        (b"3,4,", "TAGS\x01e\x02", []),  # another tag means nothing
        (b"", "TAGS\x01d\x02", []),
    ],
)
def test_op_records_of_both_formats(body: bytes, text: str, offsets: list[int]) -> None:
    """4.9 writes one offset per record, 5.x several with commas; both are read."""
    assert half_offsets_of(body, text.encode()) == offsets


@given(OFFSETS, st.integers(1, 100))
def test_op_records_round_trip(offsets: list[int], size_max: int) -> None:
    """All ended transactions are read in order, in records of about the given size."""
    records = op_records(3, offsets, size_max, NOW_MS, bytes(8))
    read = [offset for record in records for offset in half_offsets_of(bytes(record.body), record.properties)]
    assert read == offsets
    for record in records:
        assert (record.topic, record.queue_id) == (OP_HALF_TOPIC, 3)
        assert len(record.body) < size_max + 15


@given(st.text(), st.text(alphabet="abc", min_size=1, max_size=5), st.integers(0, 99))
def test_half_records_name_their_queue(value: str, topic: str, queue_id: int) -> None:
    """The properties name the real topic and queue, whatever else they contain; sysFlag has no transaction bits."""
    value = value.replace("\x02", "").replace("\x01", "") or "x"
    text = encode_properties({"REAL_TOPIC": "spoofed", "mine": value}).encode()
    record = half_record(PendingRecord(topic, queue_id, b"b", text, 0, 1, bytes(8), sys_flag=0x4 | 0x1))
    assert (record.topic, record.queue_id, record.sys_flag) == (HALF_TOPIC, 0, 0x1)
    assert real_queue(record.properties) == (topic, queue_id)


def test_what_is_remembered_of_ends_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The memory of ended transactions is bounded, however long the broker runs."""
    monkeypatch.setattr("mqtrail.broker.transactions.check.ENDED_MAX", 10)
    ended = EndedHalfMessages()
    for number in range(100):
        ended.note_copy(0, number, number + 1)
        ended.add(0, 1_000 + number)
    assert (len(ended._ended), len(ended._copies)) == (10, 10)


# -- recorded frames ---------------------------------------------------------------------------------------------------


def recorded(code: int, release: str) -> dict[str, Any]:
    rows = [json.loads(line) for line in FRAMES.read_text().splitlines()]
    return next(row for row in rows if row["code"] == code and row["release"] == release and row["serialize"] == "JSON")


@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"])
def test_questions_look_as_recorded(release: str) -> None:
    """39 has the recorded ext fields and carries the half message with its real topic and queue."""
    row = recorded(39, release)
    theirs = json.loads(row["header"])
    bench = Bench()
    bench.heartbeat()
    sent = half(bench, b"1")
    bench.now_ms += 40_000
    asked = [send.command for send in bench.broker.tick(bench.now_ms) if send.peer == PEER.id]
    assert [command.code for command in asked] == [39]
    assert asked[0].is_oneway
    ours = asked[0].ext
    assert ours.keys() == theirs["extFields"].keys() | {"topic", "bname"}  # 5.x adds both
    assert ours["topic"] == HALF_TOPIC
    (message,), (expected,) = decode_records(asked[0].body), decode_records(bytes.fromhex(row["body_hex"]))
    assert (message.topic, message.queue_id, message.flag) == ("orders", 1, 7)
    assert (expected.topic, expected.sys_flag) == ("CapTopic", message.sys_flag)
    assert message.queue_offset == int(ours["tranStateTableOffset"]) == 1
    assert message.physical_offset == int(ours["commitLogOffset"]) != parse_offset_msg_id(sent.ext["msgId"])[1]
    assert expected.queue_offset == int(theirs["extFields"]["tranStateTableOffset"])
    assert expected.physical_offset == int(theirs["extFields"]["commitLogOffset"])
    names = ("TRAN_MSG", "PGROUP", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES")
    assert all(name in message.properties and name in expected.properties for name in names)


@pytest.mark.parametrize("release", ["5.3.3", "4.9.7"])
def test_recorded_ends_are_understood(release: str) -> None:
    """A recorded 37 commits our half message at the same position."""
    ext = json.loads(recorded(37, release)["header"])["extFields"]
    bench = Bench()
    sent = half(bench, b"1", PGROUP=ext["producerGroup"])
    ext |= {"commitLogOffset": str(parse_offset_msg_id(sent.ext["msgId"])[1]), "tranStateTableOffset": "0"}
    assert bench.tell(37, ext)[0].command.code == ResponseCode.SUCCESS
    (message,) = bench.messages("orders", 1)
    assert (message.body, message.sys_flag, message.flag) == (b"1", COMMIT, 7)


# -- the store ---------------------------------------------------------------------------------------------------------


def test_a_commit_is_answered_when_it_is_durable() -> None:
    """Under SYNC_FLUSH the reply waits for the end of the committed message's record; so does a repeated commit's."""
    bench = Bench(sync_flush=True)
    sent = half(bench, b"1")
    _, place = parse_offset_msg_id(sent.ext["msgId"])
    ext = EndTransactionHeader("pg", 0, place, COMMIT, "ID").to_ext()
    (first,) = bench.tell(37, ext)
    assert first.after_offset == bench.store.end_offset
    (second,) = bench.tell(37, ext)
    assert second.after_offset == bench.store.end_offset


def test_a_store_that_refuses_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit that cannot be stored does not end the transaction; op records and copies are retried at intervals."""
    bench = Bench()
    bench.heartbeat()
    done, open_ = half(bench, b"1"), half(bench, b"2")
    assert end(bench, done).code == ResponseCode.SUCCESS
    with monkeypatch.context() as patch:

        def full(*_: object) -> None:
            raise StoreFull("full")

        patch.setattr(bench.store, "append", full)
        assert end(bench, open_).code == ResponseCode.SERVICE_NOT_AVAILABLE
        ticks = 0
        end_ms = bench.now_ms + 40_000
        while (next_ms := bench.broker.next_tick_ms()) <= end_ms:
            bench.now_ms = max(bench.now_ms, next_ms)
            assert questions(bench.broker.tick(bench.now_ms)) == []
            ticks += 1
        bench.now_ms = end_ms
        assert ticks < 80
    bench.heartbeat()
    (question,) = questions(bench.advance(2_000))
    assert question.msg_id == "ID2"
    assert [message.body for message in bench.messages(OP_HALF_TOPIC)] == [b"0,"]


def test_producers_are_asked_in_turn() -> None:
    """Each check goes to one live producer of the group; without one only the counter rises."""
    bench = Bench()
    half(bench, b"1")
    assert questions(bench.advance(40_000)) == []
    bench.heartbeat()
    (question,) = questions(bench.advance(30_000))
    (copy,) = [
        message for message in bench.messages(HALF_TOPIC) if message.queue_offset == question.tran_state_table_offset
    ]
    assert copy.properties["TRANSACTION_CHECK_TIMES"] == "2"


def test_half_messages_are_asked_about_after_the_clock_went_forward_and_back() -> None:
    """Messages stored meanwhile have store times in the future and are checked nevertheless."""
    bench = Bench()
    bench.heartbeat()
    bench.now_ms += 86_400_000
    bench.send("other")
    bench.now_ms -= 86_400_000
    bench.broker.tick(bench.now_ms)
    half(bench, b"1")
    assert questions(bench.advance(120_000))


def test_a_stroke_reads_so_many_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round over many ends yields between its reads and processes all of them."""
    monkeypatch.setattr("mqtrail.broker.transactions.check.ENDS_READ_MAX", 5)
    monkeypatch.setattr("mqtrail.broker.transactions.check.READ_COUNT", 1)
    bench = Bench(transaction_op_size_max=20)
    for number in range(40):
        end(bench, half(bench, b"%d" % number))
    bench.advance(3_000)
    reads: list[int] = []
    read = bench.store.read

    def counted(topic: str, *rest: Any, **more: Any) -> Any:
        reads.append(topic == OP_HALF_TOPIC)
        return read(topic, *rest, **more)

    monkeypatch.setattr(bench.store, "read", counted)
    bench.now_ms += 40_000
    strokes = []
    while bench.broker.next_tick_ms() <= bench.now_ms:
        reads.clear()
        bench.broker.tick(bench.now_ms)
        strokes.append(sum(reads))
    assert max(strokes) == 1
    assert sum(strokes) == len(bench.messages(OP_HALF_TOPIC)) > 5
    assert questions(bench.advance(40_000)) == []
    assert bench.broker.transactions._check._half == {0: 40}


def test_offsets_wait_for_the_flush() -> None:
    """The progress of the check counts only when its copies are durable: a power loss would lose them otherwise."""
    bench = Bench()
    bench.flushes = False
    bench.heartbeat()
    half(bench, b"1")
    bench.advance(40_000)
    bench.broker.save(bench.now_ms)
    assert bench.broker.offsets.queues(TRANSACTION_GROUP, HALF_TOPIC) == {}
    bench.store.flush()
    bench.broker.save(bench.now_ms)
    assert bench.broker.offsets.queues(TRANSACTION_GROUP, HALF_TOPIC) == {0: 1}


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 25))])
def test_no_transaction_is_lost(seed: int) -> None:
    """After any number of crashes at any time, committed messages exist, and others are checked or given up."""
    chance = random.Random(seed)
    disk = CrashDisk()
    config = CommitLogConfig(
        segment_size=1 << 18, queue_entries=200, index_slots=16, index_entries=64, message_size_max=16 * 1024
    )
    committed: set[bytes] = set()
    rolled_back: set[bytes] = set()
    known: dict[bytes, None] = {}
    bench = Bench(transaction_check_ms=10_000, offsets_save_ms=2_000)

    def start() -> None:
        bench.store = CommitLogStore(disk, config)
        bench.files = ConfigFileStore(disk)
        bench.broker = bench._new_broker()

    def settle(sends: list[Send]) -> None:
        for question in questions(sends):
            assert question.msg_id is not None
            body = question.msg_id.removeprefix("ID").encode()
            outcome = COMMIT if body in committed else ROLLBACK if body in rolled_back else 0
            header = EndTransactionHeader(
                "pg", question.tran_state_table_offset, question.commit_log_offset, outcome, "ID", True
            )
            bench.tell(37, header.to_ext())

    start()
    for number in range(60):
        match chance.choice(["send", "send", "send", "advance", "advance", "flush", "crash", "stop"]):
            case "send":
                body = b"%d" % number
                sent = half(bench, body)
                bench.store.flush()  # acknowledged
                known[body] = None
                match chance.choice(["commit", "rollback", "silence", "late"]):
                    case "commit":
                        committed.add(body)
                        end(bench, sent)  # one way: the sender does not learn whether it arrived
                    case "rollback":
                        rolled_back.add(body)
                        end(bench, sent, ROLLBACK)
                    case "late":
                        committed.add(body)
            case "advance":
                bench.heartbeat()
                settle(bench.advance(chance.choice([1_000, 8_000, 20_000])))
            case "flush":
                bench.store.flush()
            case "crash":
                bench.store.abandon()
                disk.crash(chance)
                start()
            case "stop":
                bench.broker.stop(bench.now_ms)
                bench.store.close()
                start()
    for _ in range(20):
        bench.heartbeat()
        settle(bench.advance(10_000))
        bench.store.flush()
    found = bodies(bench, "orders", 1)
    assert found == committed
    assert rolled_back.isdisjoint(found)
    given_up = bodies(bench, "TRANS_CHECK_MAX_TIME_TOPIC")
    assert given_up == known.keys() - committed - rolled_back
