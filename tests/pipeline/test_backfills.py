"""Backfills: the range that a pipeline left out is read once, in pieces, across crashes; expired parts become gaps."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.pipeline.test_ingest import CLUSTER, ORDERS, T0, T1, Died, Reader, trace

from mqtrail import trail
from mqtrail.lake import EvidenceWriter, LakeTable
from mqtrail.lake.batches import Batches
from mqtrail.pipeline import Backfill, BackfillFiles, JobConfig, PipelineJob, StartingOffsets, shown
from mqtrail.pipeline.backfilling import Backfiller, next_piece
from mqtrail.pipeline.backfills import (
    CANCELLED,
    DONE,
    ENDED_MAX,
    OPEN_MAX,
    RUNNING,
    BackfillUnknown,
)
from mqtrail.pipeline.begin import BORDER_MS, MESSAGES_LEAD_MS
from mqtrail.pipeline.clusterjob import BACKFILL_PAUSE_S
from mqtrail.pipeline.ingest import ReadCluster
from mqtrail.pipeline.notread import NOT_READ
from mqtrail.pipeline.offsets import QueueRange
from mqtrail.pipeline.positions import (
    APP,
    Position,
    Unread,
    positions_from_json,
    positions_to_json,
    unread_in,
    without,
)
from mqtrail.wire import MessageQueue

HOUR_MS = 3_600_000
FIRST_MS = 1_700_000_000_000
SEEDS = int(os.environ.get("SEEDS", "3"))


class Filler(Reader):
    """A reader that starts at the latest messages and works on backfills."""

    def __init__(self, folder: Path, source: Any, **settings: Any) -> None:
        super().__init__(folder, source, **{"starting_offsets": StartingOffsets.LATEST} | settings)
        self.backfiller = Backfiller(self.ingest, self.lake, self.ingest._config)
        self.files = self.backfiller.files

    def fill(self, count_max: int = 1_000) -> Backfill | None:
        return self.backfiller.piece(CLUSTER, count_max)

    def fill_all(self, count_max: int = 1_000, turns_max: int = 1_000) -> int:
        """Work until no backfill is open; return the number of pieces."""
        for turn in range(turns_max):
            worked = self.fill(count_max)
            if worked is None:
                return turn
            assert not worked.problem
        raise AssertionError(f"still open after {turns_max} pieces")

    def gaps(self) -> list[tuple[Any, ...]]:
        return self.rows(trail.GAPS, "topic, broker_name, first_offset, end_offset, reason")


def history(cluster: Any, hours: int, first: int = 0) -> None:
    """Store a trace message on each broker and a message of orders for each hour."""
    for hour in range(first, first + hours):
        at_ms = FIRST_MS + hour * HOUR_MS
        cluster.append(T0, trace([2 * hour]), store_timestamp_ms=at_ms)
        cluster.append(T1, trace([2 * hour + 1]), store_timestamp_ms=at_ms)
        cluster.append(ORDERS, b"body", store_timestamp_ms=at_ms)


def assert_once(reader: Reader, relation: trail.Relation, queue: MessageQueue, offsets: Sequence[int]) -> None:
    """Each record of these offsets, and no other, is in the lake once."""
    columns = "broker_name, queue_offset" if relation is trail.TRACE_EVENTS else "broker_name, topic, queue_offset"
    found = [row[-1] for row in reader.rows(relation, columns) if row[0] == queue.broker_name]
    records = 3 if relation is trail.TRACE_EVENTS else 1
    assert sorted(found) == sorted(list(offsets) * records)


@pytest.mark.slow
def test_what_is_before_the_start_is_read_later(cluster: Any, tmp_path: Path) -> None:
    """A lake starts at the end, reports the range left out, and has each of its messages once after a backfill."""
    history(cluster, 20)
    reader = Filler(tmp_path, cluster)
    counts = reader.run()
    assert not counts.rows
    places = [("TRACE", "broker-a"), ("TRACE", "broker-b"), ("orders", "broker-a")]
    assert reader.gaps() == [(*place, 0, 20, NOT_READ) for place in places]
    history(cluster, 2, first=20)
    assert reader.run().of(trail.TRACE_EVENTS) == 12

    asked = reader.files.add(0, FIRST_MS + 100 * HOUR_MS)
    assert reader.files.add(0, FIRST_MS + 100 * HOUR_MS) == asked  # the same command again continues it
    assert reader.fill_all(7) == 11  # 20 messages, 40 trace messages of two queues, and the end
    [done] = reader.files.all()
    assert (done.state, done.read, done.left, done.gaps) == (DONE, 60, 0, 0)
    assert_once(reader, trail.TRACE_EVENTS, T0, range(22))
    assert_once(reader, trail.TRACE_EVENTS, T1, range(22))
    assert_once(reader, trail.MESSAGE_META, ORDERS, range(22))
    assert reader.gaps() == []
    assert reader.ingest.position("c").unread == {}
    reader.files.add(0, FIRST_MS)
    reader.fill_all()
    assert [one.read for one in reader.files.all()] == [60, 0]


def test_messages_come_before_their_trace(cluster: Any, tmp_path: Path) -> None:
    """Otherwise a trace record would look for a copy that is not read yet."""
    history(cluster, 4)
    reader = Filler(tmp_path, cluster)
    reader.run()
    reader.files.add(0, FIRST_MS + 100 * HOUR_MS)
    reader.fill(3)
    reader.fill(3)
    assert (len(reader.rows(trail.MESSAGE_META)), len(reader.rows(trail.TRACE_EVENTS))) == (4, 0)


@pytest.mark.parametrize(("begin", "end"), [(5, 9), (0, 0), (19, 40), (30, 40)])
def test_a_window_of_time(cluster: Any, tmp_path: Path, begin: int, end: int) -> None:
    """All records stored in the window are read, and few others; messages are read from a little earlier."""
    history(cluster, 20)
    reader = Filler(tmp_path, cluster)
    reader.run()
    reader.files.add(FIRST_MS + begin * HOUR_MS, FIRST_MS + end * HOUR_MS)
    reader.fill_all()
    found = {row[0] for row in reader.rows(trail.TRACE_EVENTS, "queue_offset")}
    wanted = set(range(begin, min(end + 1, 20)))
    assert wanted <= found <= wanted | {begin - 1, end + 1}
    assert wanted <= {row[0] for row in reader.rows(trail.MESSAGE_META, "queue_offset")}
    unread = reader.ingest.position("c").unread.get(T0, [])
    assert found.isdisjoint(offset for start, stop in unread for offset in range(start, stop))
    left = {(row[2], row[3]) for row in reader.gaps() if row[1] == "broker-a"}
    assert left == set(unread)  # what is left out is still reported


def test_the_borders_of_brokers_that_search_otherwise(cluster: Any, tmp_path: Path) -> None:
    """Some brokers return the neighbour of the requested message, and clocks may jump."""
    for step in range(40):
        # The broker's clock steps back for two messages each time.
        at_ms = FIRST_MS + step * BORDER_MS // 4 - (BORDER_MS // 3 if step % 5 == 4 else 0)
        cluster.append(T0, trace([step]), store_timestamp_ms=at_ms)
    wanted = {
        step for step in range(40) if FIRST_MS + 2 * BORDER_MS <= _stored_ms(cluster, step) <= FIRST_MS + 5 * BORDER_MS
    }
    reader = Filler(tmp_path, cluster)
    reader.run()
    reader.files.add(FIRST_MS + 2 * BORDER_MS, FIRST_MS + 5 * BORDER_MS)
    reader.fill_all()
    assert wanted <= {row[0] for row in reader.rows(trail.TRACE_EVENTS, "queue_offset")}


def _stored_ms(cluster: Any, offset: int) -> int:
    from mqtrail.wire import decode_head

    _, records = cluster._load(T0)
    return decode_head(records[offset]).store_timestamp_ms


def test_a_start_at_the_latest_has_the_copies_of_its_first_trace(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored messages are read from a little earlier than the trace."""
    now_ms = FIRST_MS + 1_000 * HOUR_MS
    monkeypatch.setattr("mqtrail.pipeline.ingest.now_ms", lambda: now_ms)
    history(cluster, 3)
    cluster.append(ORDERS, b"body", store_timestamp_ms=now_ms - MESSAGES_LEAD_MS + 1)
    cluster.append(T0, trace([7]), store_timestamp_ms=now_ms)
    reader = Filler(tmp_path, cluster)
    assert reader.run().of(trail.MESSAGE_META) == 1
    assert reader.rows(trail.TRACE_EVENTS) == []


@pytest.mark.slow
def test_what_retention_has_removed_becomes_a_gap(cluster: Any, tmp_path: Path) -> None:
    """Expired ranges before the lake's start, and before the backfill, are rows; they cost no pieces."""
    history(cluster, 20)
    cluster.expire(T0, 5)
    reader = Filler(tmp_path, cluster)
    reader.run()
    cluster.expire(T0, 8)
    cluster.expire(T1, 20)
    cluster.expire(ORDERS, 20)
    reader.files.add(FIRST_MS - HOUR_MS, FIRST_MS + 30 * HOUR_MS)
    reader.fill_all(4)
    assert reader.gaps() == [
        ("TRACE", "broker-a", 0, 8, "EXPIRED"),
        ("TRACE", "broker-b", 0, 20, "EXPIRED"),
        ("orders", "broker-a", 0, 20, "EXPIRED"),
    ]
    assert_once(reader, trail.TRACE_EVENTS, T0, range(8, 20))
    [done] = reader.files.all()
    assert (done.state, done.gaps, done.read) == (DONE, 3, 12)


def test_a_lake_that_began_at_the_first_message(cluster: Any, tmp_path: Path) -> None:
    """No message is read again; a backfill finds that the range left out is gone."""
    history(cluster, 6)
    cluster.expire(T0, 2)
    reader = Filler(tmp_path, cluster, starting_offsets=StartingOffsets.EARLIEST)
    reader.run()
    assert reader.gaps() == [("TRACE", "broker-a", 0, 2, NOT_READ)]
    reader.files.add(0, FIRST_MS + 30 * HOUR_MS)
    reader.fill_all()
    assert reader.gaps() == [("TRACE", "broker-a", 0, 2, "EXPIRED")]
    assert_once(reader, trail.TRACE_EVENTS, T0, range(2, 6))


def test_queues_that_come_later_are_read_whole(cluster: Any, tmp_path: Path) -> None:
    """This also holds for a lake that started at the latest messages: those of new queues are later."""
    cluster.append(T0, trace([1]))
    reader = Filler(tmp_path, cluster)
    reader.run()
    cluster.append(T1, trace([2]), trace([3]))
    assert reader.run().of(trail.TRACE_EVENTS) == 6


def test_a_silent_broker(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other queues are read; the backfill stays open with its problem, and continues when the broker is back."""
    history(cluster, 4)
    reader = Filler(tmp_path, cluster)
    reader.run()
    asked = reader.files.add(0, FIRST_MS + 30 * HOUR_MS)
    plain = reader.ingest.bounds

    def without_b(*arguments: Any) -> Any:
        return {queue: ends for queue, ends in plain(*arguments).items() if queue.broker_name != "broker-b"}

    with monkeypatch.context() as patch:
        patch.setattr(reader.ingest, "bounds", without_b)
        for _ in range(5):
            worked = reader.fill()
    assert worked is not None
    assert (worked.state, worked.problem) == (RUNNING, "1 queues have no broker that answers now")
    assert "no broker that answers" in next(shown([worked]))
    cluster.break_down("offset_by_time", 100)
    worked = reader.fill()
    assert worked is not None
    assert "failed for 1000 ms" in worked.problem
    cluster.break_down("offset_by_time", 0)
    reader.fill_all()
    assert reader.files.one(asked.id).state == DONE
    assert_once(reader, trail.TRACE_EVENTS, T1, range(4))


def test_live_cycles_do_not_wait_for_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a piece with a problem the next one waits a while; until then each cycle reports the problem."""
    [job] = PipelineJob(JobConfig(namesrv="", lake=tmp_path)).use(cast(Any, SimpleNamespace())).jobs
    tried: list[int] = []
    stuck = Backfill(id="0" * 8, from_ms=0, to_ms=1, requested_ms=0, problem="no answer")

    def backfilled(count_max: int) -> Backfill | None:
        tried.append(count_max)
        return stuck if len(tried) == 1 else None

    monkeypatch.setattr(job, "backfilled", backfilled)
    clock = iter([1_000.0, 1_000.0, 1_000.0 + BACKFILL_PAUSE_S - 1, 1_000.0 + BACKFILL_PAUSE_S])
    with monkeypatch.context() as patch:
        patch.setattr("mqtrail.pipeline.clusterjob.time", SimpleNamespace(monotonic=lambda: next(clock)))
        problems = [job.backfill_problem() for _ in range(3)]
    assert problems == [("backfill 00000000: no answer",)] * 2 + [()]
    assert tried == [job.config.backfill_messages_max] * 2


@pytest.mark.slow
def test_one_that_is_cancelled(cluster: Any, tmp_path: Path) -> None:
    """Its read messages stay, the rest is still reported as left out, and a later backfill reads it."""
    history(cluster, 4)
    reader = Filler(tmp_path, cluster)
    reader.run()
    asked = reader.files.add(0, FIRST_MS + 30 * HOUR_MS)
    for _ in range(3):
        reader.fill(2)
    BackfillFiles(tmp_path / "lake").cancel(asked.id)
    assert reader.fill() is None
    ended = reader.files.one(asked.id)
    assert (ended.state, ended.read, ended.left) == (CANCELLED, 6, 6)
    assert reader.gaps() == [("TRACE", "broker-a", 1, 4, NOT_READ), ("TRACE", "broker-b", 1, 4, NOT_READ)]
    reader.files.add(0, FIRST_MS + 31 * HOUR_MS)
    reader.fill_all(3)
    assert reader.gaps() == []
    assert_once(reader, trail.TRACE_EVENTS, T0, range(4))


WRITES = (
    (EvidenceWriter, "finish"),
    (Batches, "_write"),
    (LakeTable, "commit_actions"),
    (BackfillFiles, "_write"),
    (Backfiller, "_end"),
)


class Deaths:
    """Lets the process die before or after one of the next calls."""

    def __init__(self, chance: Random) -> None:
        self.chance = chance
        self.left = chance.randint(1, 12)

    def around(self, plain: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            is_last = self.left == 0
            if is_last:
                self.left = self.chance.randint(1, 15)
                if self.chance.random() < 0.5:
                    raise Died
            result = plain(*arguments, **named)
            if is_last:
                raise Died
            return result

        return call


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEEDS))
def test_crashes_at_any_point(cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Live cycles, backfills, cancellations and retention run in random order, with crashes before and after any write:
    each record that was kept until it was requested is in the lake once, and each other one is in one gap."""
    chance = Random(seed)
    hours = 12
    history(cluster, hours)
    first = {T0: 0, T1: 0, ORDERS: 0}
    deaths = Deaths(chance)
    for place, name in WRITES:
        monkeypatch.setattr(place, name, deaths.around(getattr(place, name)))
    for _ in range(25):
        try:
            reader = Filler(tmp_path, cluster)
            for _ in range(chance.randint(1, 6)):
                match chance.choice(["live", "fill", "fill", "fill", "ask", "cancel", "expire", "store"]):
                    case "live":
                        reader.run(fail_on_data_loss=False)
                    case "fill":
                        reader.fill(chance.randint(1, 5))
                    case "ask":
                        begin = chance.randint(0, hours)
                        reader.files.add(FIRST_MS + begin * HOUR_MS, FIRST_MS + chance.randint(begin, hours) * HOUR_MS)
                    case "cancel" if found := reader.files.all():
                        reader.files.cancel(chance.choice(found).id)
                    case "expire":
                        queue = chance.choice(list(first))
                        first[queue] = min(first[queue] + chance.randint(0, 1), 6)
                        cluster.expire(queue, first[queue])
                    case "store":
                        history(cluster, 1, first=hours)
                        hours += 1
        except Died:
            continue
    monkeypatch.undo()
    reader = Filler(tmp_path, cluster)
    reader.run(fail_on_data_loss=False)
    reader.files.add(0, FIRST_MS + 1_000 * HOUR_MS)
    reader.fill_all(5)
    assert not reader.run().rows
    assert all(not one.is_open for one in reader.files.all())
    gaps = reader.gaps()
    for relation, queue in ((trail.TRACE_EVENTS, T0), (trail.TRACE_EVENTS, T1), (trail.MESSAGE_META, ORDERS)):
        gone = [
            offset
            for topic, broker, start, end, reason in gaps
            for offset in range(start, end)
            if (topic, broker) == (queue.topic, queue.broker_name)
        ]
        assert len(set(gone)) == len(gone), f"a gap is reported twice, {seed=}"
        assert all(offset < first[queue] for offset in gone), f"a gap that is none, {seed=}"
        kept = [offset for offset in range(hours) if offset not in gone]
        assert_once(reader, relation, queue, kept)


@pytest.mark.slow
def test_tasks_read_large_pieces(cluster: Any, tmp_path: Path) -> None:
    """As in live batches, the driver reads small pieces, and those with expired parts."""
    history(cluster, 20)
    reader = Filler(tmp_path, cluster, driver_messages_max=4)
    reader.run()
    cluster.expire(T0, 3)
    reader.files.add(0, FIRST_MS + 30 * HOUR_MS)
    reader.fill_all(15)
    assert_once(reader, trail.TRACE_EVENTS, T0, range(3, 20))
    assert_once(reader, trail.TRACE_EVENTS, T1, range(20))
    assert ("TRACE", "broker-a", 0, 3, "EXPIRED") in reader.gaps()


# -- the cluster of a lake --------------------------------------------------------------------------------------------


def test_clusters_have_positions_of_their_own(cluster: Any, tmp_path: Path) -> None:
    """Another cluster is read from its beginning, and the first one continues at its offsets."""
    history(cluster, 1)
    reader = Reader(tmp_path, cluster)
    one = reader.run()
    before = reader.ingest.position("c")
    other = ReadCluster("other", ("TRACE",), ("orders",), ())
    assert reader.ingest.run(other, fail_on_data_loss=True).rows == one.rows
    assert reader.ingest.position("c") == before
    assert reader.ingest.position("other").offsets == before.offsets
    assert not reader.run().rows


def test_a_position_without_a_name_is_taken_over(cluster: Any, tmp_path: Path) -> None:
    """A lake of an earlier version continues at its offsets."""
    history(cluster, 3)
    reader = Reader(tmp_path, cluster)
    reader.lake.batches.commit(APP, 1, {}, {"offsets": {"TRACE": {"broker-a": {"0": 2}}}})
    assert reader.run().of(trail.MESSAGE_META) == 3
    last = reader.lake.batches.last(APP)
    assert last is not None
    assert list(last.notes["clusters"]) == ["c"]
    assert_once(reader, trail.TRACE_EVENTS, T0, range(2, 3))


# -- arithmetic, and files ---------------------------------------------------------------------------------------------

QUEUES = [MessageQueue(topic, broker, number) for topic in ("T", "M") for broker in ("a", "b/:1") for number in (0, 12)]
RANGES = st.tuples(st.sampled_from(QUEUES), st.integers(0, 60), st.integers(0, 30)).map(
    lambda each: QueueRange(each[0], each[1], each[1] + each[2])
)


def flat(unread: Unread) -> set[tuple[MessageQueue, int]]:
    return {(queue, at) for queue, ranges in unread.items() for start, end in ranges for at in range(start, end)}


def of(ranges: list[QueueRange]) -> list[tuple[MessageQueue, int]]:
    return [(each.queue, at) for each in ranges for at in range(each.start, each.end)]


@given(st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 60)), st.lists(RANGES))
def test_ranges_taken_are_no_longer_unread(starts: dict[MessageQueue, int], taken: list[QueueRange]) -> None:
    """Exactly these offsets are removed; the notes of a batch keep the rest unchanged."""
    unread: Unread = {queue: [(0, end)] for queue, end in starts.items()}
    left = without(unread, taken)
    assert flat(left) == flat(unread) - set(of(taken))
    positions = {"c": Position({QUEUES[0]: 3}, left), "d": Position()}
    assert positions_from_json(json.loads(json.dumps(positions_to_json(positions)))) == positions


@pytest.mark.parametrize("notes", [{}, {"clusters": 1}, {"clusters": {"c": {}}}, {"clusters": {"c": {"offsets": 1}}}])
def test_notes_of_another_shape(notes: Any) -> None:
    """They are refused, so that no record is read twice."""
    with pytest.raises(ValueError, match="expected"):
        positions_from_json(notes)


@given(
    st.dictionaries(st.sampled_from(QUEUES), st.integers(1, 60), min_size=1),
    st.lists(RANGES),
    st.dictionaries(st.sampled_from(QUEUES), st.tuples(st.integers(0, 40), st.integers(0, 40))),
    st.integers(1, 50),
)
def test_pieces_take_everything(
    starts: dict[MessageQueue, int],
    taken: list[QueueRange],
    ends: dict[MessageQueue, tuple[int, int]],
    count_max: int,
) -> None:
    """Each piece has a limited number of existing messages; together they cover everything, messages before trace."""
    unread = without({queue: [(0, end)] for queue, end in starts.items()}, taken)
    bounds = dict.fromkeys(QUEUES, (0, 0)) | {queue: (a, a + b) for queue, (a, b) in ends.items()}
    windows = dict.fromkeys(QUEUES, (0, 100))
    read: list[tuple[MessageQueue, int]] = []
    topics: list[str] = []
    expected = flat(unread)
    while due := unread_in(unread, windows):
        piece, _ = next_piece(due, bounds, ("T",), count_max, 10)
        assert piece
        stored = [1 for queue, at in of(piece) if bounds[queue][0] <= at < bounds[queue][1]]
        assert len(stored) <= count_max
        read += of(piece)
        topics += [each.queue.topic for each in piece]
        unread = without(unread, piece)
    assert len(read) == len(set(read))
    assert set(read) == expected
    assert topics == sorted(topics)  # M, then T


def test_files_of_backfills(tmp_path: Path) -> None:
    """Their number is limited, damaged ones are ignored, and an unknown id is an error."""
    files = BackfillFiles(tmp_path)
    assert files.all() == []
    asked = files.add(1, 2)
    with pytest.raises(BackfillUnknown, match="found no backfill 'ffff', expected one that"):
        files.cancel("ffff")
    folder = tmp_path / "_backfill"
    for name in ("00000000.json", "11111111.json", "22222222.state.json", "x.json", "33333333.part"):
        (folder / name).write_text('{"id": "11111111", "from_ms": "1"' if name[0] == "0" else "[" * 100_000)
    assert files.all() == [asked]
    for number in range(OPEN_MAX - 1):
        files.add(number, 10_000)
    with pytest.raises(BackfillUnknown, match=rf"found {OPEN_MAX} open backfills"):
        files.add(5, 6)
    for one in files.all():
        files.note(
            Backfill(**{name: getattr(one, name) for name in ("id", "from_ms", "to_ms", "requested_ms")}, state=DONE)
        )
    files.tidy()
    assert len(files.all()) == ENDED_MAX
