"""The store's contract, for each kind of store (kinds.py), and against a model that is a few dicts."""

from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mqtrail.store import (
    CommitLogStore,
    GetStatus,
    MemoryStore,
    MessageStore,
    PendingRecord,
    RealDisk,
)
from mqtrail.wire import (
    LEDGER_HEAD_SIZE,
    Host,
    MessageIllegal,
    QueryNotFound,
    decode_head,
    decode_record,
    encode_record,
    tags_code,
)
from mqtrail.wire.record import RECORD_V4

from .kinds import CONFIG, KINDS, ON_SERVERS

NOW_MS = 1_700_000_000_000
BORN_HOST = Host("192.168.0.9", 50000).packed()


@pytest.fixture(
    params=[*sorted(KINDS), *(pytest.param(kind, marks=pytest.mark.databases) for kind in sorted(ON_SERVERS))]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MessageStore]:
    opened = (KINDS | ON_SERVERS)[request.param](tmp_path)
    yield opened
    opened.close()


def record(
    body: bytes = b"hello", topic: str = "orders", queue_id: int = 0, tag: str = "", **more: str
) -> PendingRecord:
    """A message with a tag and further properties."""
    values = {**({"TAGS": tag} if tag else {}), **more}
    properties = "".join(f"{name}\x01{value}\x02" for name, value in values.items()).encode()
    return PendingRecord(topic, queue_id, body, properties, tags_code(tag), NOW_MS - 5, BORN_HOST)


def head_size(store: MessageStore) -> int:
    """Bytes that the store's log has before each record: a ledger's entries have a head."""
    return LEDGER_HEAD_SIZE if hasattr(store, "ledger") else 0


def bodies(records: Iterable[bytes | bytearray | memoryview]) -> list[bytes]:
    return [decode_record(bytes(one))[0].body for one in records]


def test_append_gives_consecutive_places(store: MessageStore) -> None:
    """Tickets have the place of each record of a call, in the log and in its queue."""
    first, second, other = store.append([record(b"a"), record(b"b"), record(b"c", queue_id=1)], NOW_MS)
    assert (first.queue_offset, second.queue_offset, other.queue_offset) == (0, 1, 0)
    assert first.physical_offset == head_size(store)
    assert first.end_offset == first.physical_offset + first.size == second.physical_offset - head_size(store)
    assert other.end_offset == store.end_offset
    assert store.queue_ids("orders") == [0, 1]


def test_a_batch_is_appended_at_once(store: MessageStore) -> None:
    """Prepared in parts, stored in one piece between other appends, and found like them."""
    for number in range(3):
        store.append([record(b"other", KEYS="k")], NOW_MS + number)
    batch = store.begin_batch("orders", 0)
    for part in range(3):
        batch.add([record(b"%d" % (3 * part + one), tag="T", KEYS=f"k{part}") for one in range(3)])
        assert store.max_offset("orders", 0) == 3
    places = batch.append(NOW_MS + 5)
    assert (places.queue_offset, len(places.physical_offsets)) == (3, 9)
    assert places.end_offset == store.end_offset == places.ticket(8).end_offset
    (after,) = store.append([record(b"after", KEYS="k2")], NOW_MS + 6)
    assert (after.queue_offset, after.physical_offset) == (12, places.end_offset + head_size(store))
    assert bodies(store.read("orders", 0, 3, 10, 1 << 20).records) == [b"%d" % one for one in range(9)] + [b"after"]
    assert bodies([store.read_at(places.ticket(4).physical_offset)]) == [b"4"]
    assert {store.store_time("orders", 0, at) for at in range(3, 12)} == {NOW_MS + 5}
    assert [len(store.query("orders", key, 64, 0, 1 << 62).records) for key in ("k", "k0", "k1", "k2")] == [3, 3, 3, 4]
    with pytest.raises(MessageIllegal, match="expected at most"):
        store.begin_batch("orders", 0).add([record(bytes(CONFIG.record_size_max))])


def test_a_record_is_stored_as_sent(store: MessageStore) -> None:
    """What a reader decodes is what was appended, with the store's own fields."""
    sent = record(b"body", tag="TagA", KEYS="k1 k2", UNIQ_KEY="ID")._replace(flag=7, reconsume_times=2)
    (ticket,) = store.append([sent], NOW_MS)
    message, _ = decode_record(store.read_at(ticket.physical_offset))
    assert (message.topic, message.queue_id, message.queue_offset) == ("orders", 0, 0)
    assert message.physical_offset == ticket.physical_offset == head_size(store)
    assert (message.body, message.flag, message.reconsume_times, message.msg_id) == (b"body", 7, 2, "ID")
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (NOW_MS - 5, NOW_MS)
    assert message.born_host == Host("192.168.0.9", 50000)
    assert message.store_host == CONFIG.store_host


def test_a_read_does_not_end_where_the_last_write_did(tmp_path: Path) -> None:
    """Written and buffered queue entries are read as one range, also across a file's end."""
    with closing(CommitLogStore(RealDisk(tmp_path), CONFIG)) as store:
        count = CONFIG.queue_entries + 5
        for number in range(count):
            store.append([record(b"%d" % number)], NOW_MS)
            if number in (0, CONFIG.queue_entries - 1):
                store.write_queues()
        first = store.read("orders", 0, 0, 2, 1 << 20)
        assert bodies(first.records) == [b"0", b"1"]
        around = store.read("orders", 0, CONFIG.queue_entries - 2, 4, 1 << 20)
        assert bodies(around.records) == [b"%d" % (CONFIG.queue_entries + more) for more in (-2, -1, 0, 1)]


@pytest.mark.parametrize(
    ("queue_offset", "status", "following"),
    [(0, "FOUND", 3), (2, "FOUND", 3), (3, "OFFSET_OVERFLOW_ONE", 3), (4, "OFFSET_OVERFLOW_BADLY", 3)],
)
def test_read_statuses(store: MessageStore, queue_offset: int, status: str, following: int) -> None:
    """Each position relative to a queue has its status. Source: store.md §10 of the references."""
    store.append([record(b"%d" % number) for number in range(3)], NOW_MS)
    found = store.read("orders", 0, queue_offset, 32, 1 << 20)
    assert (found.status, found.next_queue_offset, found.min_offset, found.max_offset) == (status, following, 0, 3)


def test_reading_a_queue_that_is_not_there(store: MessageStore) -> None:
    """A queue never written has no range."""
    found = store.read("nothing", 0, 5, 32, 1 << 20)
    assert (found.status, found.next_queue_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)
    assert (store.min_offset("nothing", 0), store.max_offset("nothing", 0)) == (0, 0)
    assert store.offset_by_time("nothing", 0, NOW_MS) == 0


def test_read_bounds(store: MessageStore) -> None:
    """Count and bytes limit a result, but one record always fits."""
    store.append([record(bytes((number,)) * 1000) for number in range(5)], NOW_MS)
    assert len(store.read("orders", 0, 0, 2, 1 << 20).records) == 2
    assert len(store.read("orders", 0, 0, 32, 2500).records) == 2
    assert len(store.read("orders", 0, 0, 32, 1).records) == 1


def test_tag_filter(store: MessageStore) -> None:
    """Only records with the wanted tags are read; scanned entries with other tags are skipped."""
    store.append([record(tag, tag=tag.decode()) for tag in (b"A", b"B", b"A", b"C")], NOW_MS)
    found = store.read("orders", 0, 0, 32, 1 << 20, frozenset({tags_code("A")}))
    assert (bodies(found.records), found.next_queue_offset) == ([b"A", b"A"], 4)
    found = store.read("orders", 0, 0, 32, 1 << 20, frozenset({tags_code("D")}))
    assert (found.status, found.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 4)


def test_properties_filter(store: MessageStore) -> None:
    """accepts gets the properties of records with matching tags; records that it rejects are not returned."""
    store.append([record(b"%d" % n, tag="AB"[n % 2], n=str(n)) for n in range(6)], NOW_MS)
    v6 = PendingRecord("orders", 0, b"6", b"n\x016\x02", 0, 1, Host("::1", 1).packed())
    store.append([v6], NOW_MS)
    seen: list[bytes] = []

    def accepts(properties: bytes) -> bool:
        seen.append(properties)
        return properties.endswith((b"n\x012\x02", b"n\x014\x02", b"n\x016\x02"))

    found = store.read("orders", 0, 0, 2, 10**6, accepts=accepts)
    assert (bodies(found.records), found.next_queue_offset, len(seen)) == ([b"2", b"4"], 5, 5)
    found = store.read("orders", 0, 5, 2, 10**6, accepts=accepts)
    assert (bodies(found.records), found.next_queue_offset, seen[-1]) == ([b"6"], 7, b"n\x016\x02")
    seen.clear()
    tagged = store.read("orders", 0, 0, 9, 10**6, frozenset({tags_code("B")}), accepts=accepts)
    assert (tagged.status, tagged.next_queue_offset) == (GetStatus.NO_MATCHED_MESSAGE, 7)
    assert len(seen) == 3


def test_entries_and_topics(store: MessageStore) -> None:
    """A queue's entries by queue offset, none out of range; the topics that have queues."""
    tickets = store.append([record(b"a", tag="A"), record(b"b")], NOW_MS)
    assert store.entries("orders", 0, 0, 9) == [
        (tickets[0].physical_offset, tickets[0].size, tags_code("A")),
        (tickets[1].physical_offset, tickets[1].size, 0),
    ]
    assert store.entries("orders", 0, 1, 9) == store.entries("orders", 0, 0, 9)[1:]
    for queue_id, queue_offset in ((0, 2), (0, -1), (7, 0)):
        assert store.entries("orders", queue_id, queue_offset, 9) == []
    assert store.topics() == ["orders"]
    list(store.clean_queues())
    assert store.max_offset("orders", 0) == 2


def test_query(store: MessageStore) -> None:
    """A message is found by its unique id and by each of its keys, within a range of store times."""
    store.append([record(b"1", UNIQ_KEY="ID1", KEYS="red round")], NOW_MS)
    store.append([record(b"2", UNIQ_KEY="ID2", KEYS="red")], NOW_MS + 10_000)
    assert bodies(store.query("orders", "ID1", 64, 0, 2**62).records) == [b"1"]
    assert bodies(store.query("orders", "red", 64, 0, 2**62).records) == [b"1", b"2"]
    assert bodies(store.query("orders", "red", 64, NOW_MS + 5_000, 2**62).records) == [b"2"]
    assert bodies(store.query("orders", "red", 64, 0, NOW_MS + 5_000).records) == [b"1"]
    assert bodies(store.query("orders", "round", 64, 0, 2**62).records) == [b"1"]
    assert list(store.query("other", "red", 64, 0, 2**62).records) == []


def test_prepared_and_rolled_back_are_in_no_queue(store: MessageStore) -> None:
    """Only plain and committed messages take a place. Source: store.md §3 and §15.4."""
    flags = (0x4, 0x8, 0xC, 0x0)
    tickets = store.append([record()._replace(sys_flag=flag) for flag in flags], NOW_MS)
    assert [ticket.queue_offset for ticket in tickets] == [0, 0, 0, 1]
    assert store.max_offset("orders", 0) == 2
    found = store.read("orders", 0, 0, 32, 1 << 20)
    assert [decode_record(bytes(one))[0].sys_flag for one in found.records] == [0x8, 0x0]


def test_offset_by_time(store: MessageStore) -> None:
    """Boundaries as RocketMQ's: lower gives the first at or after, upper the last at or before."""
    for at_ms in (100, 200, 200, 300):
        store.append([record()], NOW_MS + at_ms)
    lower = [store.offset_by_time("orders", 0, NOW_MS + at_ms) for at_ms in (0, 100, 150, 200, 250, 300, 301)]
    assert lower == [0, 0, 1, 1, 3, 3, 4]
    upper = [store.offset_by_time("orders", 0, NOW_MS + at_ms, upper=True) for at_ms in (100, 150, 200, 250, 300, 999)]
    assert upper == [0, 0, 2, 2, 3, 3]
    assert [store.store_time("orders", 0, place) - NOW_MS for place in range(4)] == [100, 200, 200, 300]
    assert store.store_time("orders", 0, 4) == -1


def test_read_at_refuses_other_places(store: MessageStore) -> None:
    """Only a record's own place has a record."""
    store.append([record(), record()], NOW_MS)
    for place in (-1, 1, store.end_offset, store.end_offset + 10_000_000):
        with pytest.raises(QueryNotFound):
            store.read_at(place)


def test_bytes_like_a_record_are_none(store: MessageStore) -> None:
    """Neither a whole record in a body, nor the beginning of one in a body and its end in a later one: it would have
    the records between them as its body."""
    store.append([record()], NOW_MS)
    start = store.end_offset + head_size(store) + RECORD_V4.size
    places: dict[str, Any] = {"queue_id": 0, "queue_offset": 1, "physical_offset": start}
    times: dict[str, Any] = {
        "born_timestamp_ms": NOW_MS,
        "born_host": BORN_HOST,
        "store_timestamp_ms": NOW_MS,
        "store_host": BORN_HOST,
    }
    whole = encode_record("orders", b"forged", **places, **times)
    (ticket,) = store.append([record(whole)], NOW_MS)
    assert decode_head(store.read_at(ticket.physical_offset)).body_start + ticket.physical_offset == start
    with pytest.raises(QueryNotFound):
        store.read_at(start)
    assert store.read_at(ticket.physical_offset)

    others, end = record(b"private", topic="secret"), bytes((6,)) + b"orders" + bytes(2)
    sizes = [ticket.size for ticket in store.append([record(bytes(RECORD_V4.size)), others, record(end)], NOW_MS)]
    start = store.end_offset + head_size(store) + RECORD_V4.size
    places |= {"physical_offset": start, "queue_offset": store.max_offset("orders", 0)}
    reach = (
        sizes[0] + sizes[1] + 2 * head_size(store) - RECORD_V4.size
    )  # from the forged body's beginning to the end in the third body
    head = encode_record("orders", bytes(reach), **places, **times)[: RECORD_V4.size]
    store.append([record(head), others, record(end)], NOW_MS)
    with pytest.raises(QueryNotFound):
        store.read_at(start)


def test_delete_topic(store: MessageStore) -> None:
    """A deleted topic starts again at offset 0."""
    store.append([record(), record(topic="other")], NOW_MS)
    store.delete_topic("orders")
    assert store.queue_ids("orders") == []
    assert store.max_offset("orders", 0) == 0
    (ticket,) = store.append([record()], NOW_MS)
    assert ticket.queue_offset == 0
    assert store.max_offset("other", 0) == 1


def test_too_large_is_refused_and_takes_no_place(store: MessageStore) -> None:
    """A call with one bad record is refused, and none of its records is stored."""
    with pytest.raises(MessageIllegal, match="expected at most"):
        store.append([record(b"good"), record(bytes(200_000))], NOW_MS)
    with pytest.raises(MessageIllegal):
        store.append([record(b"good"), record(X="y" * 33_000)], NOW_MS)
    assert store.end_offset == 0
    (ticket,) = store.append([record(b"next")], NOW_MS)
    assert (ticket.physical_offset, ticket.queue_offset) == (head_size(store), 0)


@pytest.mark.parametrize("topic", ["", "..", ".", "a/b", "../../etc", "a\0b", "x" * 300], ids=repr)
def test_a_topic_that_is_no_file_name_is_refused(store: MessageStore, topic: str) -> None:
    """Topics become folders: a path that leaves the folder is rejected before anything is written."""
    with pytest.raises(MessageIllegal):
        store.append([record(topic=topic)], NOW_MS)
    assert store.end_offset == 0


def test_long_retry_topics_are_v2_records(store: MessageStore) -> None:
    """A topic above 127 bytes has a two-byte length under another magic."""
    topic = "%RETRY%" + "g" * 150
    (ticket,) = store.append([record(b"long", topic=topic)], NOW_MS)
    raw = store.read_at(ticket.physical_offset)
    assert raw[4:8].hex() == "daa320ab"
    assert decode_record(raw)[0].topic == topic
    assert bodies(store.read(topic, 0, 0, 1, 1).records) == [b"long"]


def test_flush_makes_everything_durable(store: MessageStore) -> None:
    """flush reports how far; a flush that began before an append need not include it."""
    assert store.flushed_offset == 0
    (ticket,) = store.append([record()], NOW_MS)
    assert store.flushed_offset in (0, ticket.end_offset)
    assert store.flush() == store.flushed_offset == ticket.end_offset
    (later,) = store.append([record()], NOW_MS)
    assert store.flushed_offset in (ticket.end_offset, later.end_offset)
    assert store.flush() == later.end_offset == store.end_offset


OPERATION = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]), st.integers(0, 2), st.sampled_from([0, 1, 50, 3_000]), st.sampled_from("XYZ")
    ),
    min_size=1,
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(calls=st.lists(OPERATION, max_size=30), count_max=st.integers(1, 9), wanted=st.sets(st.sampled_from("XYZ")))
def test_reads_agree_with_a_model(
    tmp_path_factory: pytest.TempPathFactory,
    calls: list[list[tuple[str, int, int, str]]],
    count_max: int,
    wanted: set[str],
) -> None:
    """Any appends, read in any pieces and through any filter, also after a restart, equal those of a list."""
    folder = tmp_path_factory.mktemp("store")
    stores = [MemoryStore(CONFIG), CommitLogStore(RealDisk(folder), CONFIG)]
    model: dict[tuple[str, int], list[tuple[bytes, str]]] = {}
    number = 0
    for call in calls:
        records = []
        for topic, queue_id, size, tag in call:
            body = b"%d:" % number + bytes(size)
            records.append(record(body, topic, queue_id, tag))
            model.setdefault((topic, queue_id), []).append((body, tag))
            number += 1
        assert stores[0].append(records, NOW_MS) == stores[1].append(records, NOW_MS)
    stores[1].close()
    stores[1] = CommitLogStore(RealDisk(folder), CONFIG)
    codes = frozenset(map(tags_code, wanted)) if wanted else None
    for store in stores:
        for (topic, queue_id), messages in model.items():
            seen: list[bytes] = []
            at = 0
            while at < len(messages):
                found = store.read(topic, queue_id, at, count_max, 5_000, codes)
                seen += bodies(found.records)
                assert found.next_queue_offset > at
                at = found.next_queue_offset
            assert seen == [body for body, tag in messages if not wanted or tag in wanted]
        store.close()
