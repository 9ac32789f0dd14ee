"""Samples as changes: the rows that a new sample adds to a lake, in the form of `trail.samples`.

    changes = Changes.load(lake, cluster, retention_ms)
    rows = changes.add(found)                     # of one sample, by relation; sampled_ms must rise
    rows = changes.trace_read(at_ms, left)         # the pipeline has read the trace of all brokers but these
    rows = changes.read_up_to(sampled_ms, topics)  # the pipeline has read the messages stored before that sample

A sample becomes a keyframe when the rows since the last keyframe are several times its size, or when the last keyframe
is old. So keyframes add a fixed share to the rows written, and a reader reads a fixed multiple of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mqtrail import trail
from mqtrail.lake import Lake, connect, lake_errors, relation_of, sample_files
from mqtrail.wire import EXPRESSION_SQL92

from .group_masters import MASTERS, MasterChanges
from .sampling import ClusterSample, Question
from .unread import Before, Left, unread_ranges

if TYPE_CHECKING:
    import duckdb

Row = dict[str, Any]
Rows = dict[str, list[Row]]
Key = tuple[Any, ...]

KEYFRAME_FACTOR = 4  # rows between two keyframes, in multiples of a keyframe: it adds a quarter to the rows written
KEYFRAME_ROWS_MIN = 5_000  # fewer rows are read in milliseconds
KEYFRAME_AGE_MS_MAX = 6 * 3_600_000
GAPS_MAX = 1_000  # gaps that keyframes repeat; more are joined, the oldest first
BROKER_SILENT = "not every broker reported its groups"
JOINED = "several older gaps, and the time before the first sample"
NOT_ASKED = "not asked: its broker or topic is gone, or its broker did not answer an earlier request"


@dataclass(slots=True)
class _Kept:
    """The latest row of a key. seen_ms: the last sample that had the key; None: the latest sample has it. gone_ms: the
    first sample without it."""

    values: Key
    first: Key
    seen_ms: int | None = None
    gone_ms: int | None = None


class _Track:
    """The rows of one relation by key; `values` are the columns that change below a key, `first` those of its first.

    tells_gone: keyframes repeat also when each key was gone first.
    """

    def __init__(
        self,
        relation: trail.Relation,
        key: tuple[str, ...],
        values: tuple[str, ...] = (),
        first: tuple[str, ...] = (),
        *,
        tells_gone: bool = False,
    ) -> None:
        self.name = relation.name
        self.kept: dict[Key, _Kept] = {}
        self._key = key
        self._values = values
        self._first = first
        self._tells_gone = tells_gone

    def changes(self, rows: Iterable[Row], sampled_ms: int, before: Callable[[Row], int | None]) -> Iterator[Row]:
        """Compare with the rows of a sample.

        before: the last sample before this one that has an answer about a row's key; None: this one has none.
        """
        present = set()
        for row in rows:
            key, values = tuple(row[name] for name in self._key), tuple(row[name] for name in self._values)
            present.add(key)
            kept = self.kept.get(key)
            if kept is None:
                self.kept[key] = kept = _Kept(values, (sampled_ms, *values)[: len(self._first)])
                yield self._row(key, kept, with_first=True)
            elif kept.seen_ms is not None or kept.values != values:
                kept.values, kept.seen_ms = values, None
                yield self._row(key, kept)
        for key, kept in self.kept.items():
            if kept.seen_ms is None and key not in present:
                row = self._row(key, kept)
                if (seen_ms := before(row)) is not None:
                    kept.seen_ms, kept.gone_ms = seen_ms, sampled_ms
                    yield row | {"change": "GONE", "seen_ms": seen_ms}

    def everything(self, keep_from_ms: int) -> Iterator[Row]:
        """Return all rows, with the values of their first sample. Forget keys last seen before keep_from_ms."""
        self.kept = {
            key: kept for key, kept in self.kept.items() if kept.seen_ms is None or kept.seen_ms >= keep_from_ms
        }
        for key, kept in self.kept.items():
            yield self._row(key, kept, with_first=True)
            if self._tells_gone and kept.seen_ms is not None:
                yield self._row(key, kept) | {"sampled_ms": kept.gone_ms}

    def load(self, duck: duckdb.DuckDBPyConnection, source: str, cluster: str) -> None:
        """Read the latest row of each key from the relation's rows. source: their SQL."""
        latest = ", ".join(f"{name} := {name}" for name in (*self._values, "change", "seen_ms"))
        if self._tells_gone:
            latest += ", gone_ms := gone_ms"
            source = f"""SELECT *, min(sampled_ms) FILTER (change = 'GONE')
                OVER (PARTITION BY cluster, {", ".join(self._key)}, seen_ms) AS gone_ms FROM ({source}) AS every"""
        columns = [
            *self._key,
            f"max_by(struct_pack({latest}), sampled_ms)",
            *(f"min_by({name}, first_ms)" for name in self._first),
        ]
        query = f"""SELECT {", ".join(columns)} FROM ({source}) AS recorded WHERE cluster = ? AND change <> ''
            GROUP BY {", ".join(self._key)}"""
        size = len(self._key)
        for found in duck.execute(query, [cluster]).fetchall():
            state = found[size]
            values = tuple(state[name] for name in self._values)
            self.kept[found[:size]] = _Kept(values, found[size + 1 :], state["seen_ms"], state.get("gone_ms"))

    def _row(self, key: Key, kept: _Kept, *, with_first: bool = False) -> Row:
        row = dict(zip(self._key, key, strict=True)) | dict(zip(self._values, kept.values, strict=True))
        if with_first:
            row |= dict(zip(self._first, kept.first, strict=True))
        return row | {"change": "SEEN" if kept.seen_ms is None else "GONE", "seen_ms": kept.seen_ms}


class Changes:
    """Computes the changes of the next sample from the latest one of a cluster in a lake."""

    def __init__(self, cluster: str, retention_ms: int) -> None:
        self.cluster = cluster
        self.sampled_ms: int | None = None
        """The latest sample."""
        self._retention_ms = retention_ms
        self._keyframe_ms: int | None = None
        self._row_count = 0  # rows since the keyframe
        place = ("topic", "broker_name", "queue_id")
        subscription = ("topic", "expression_type", "expression", "consume_type", "message_model")
        client = ("group_name", "status", "client_id", "client_host", "language", "version", "ordered")
        self._offsets = _Track(
            trail.GROUP_OFFSETS, ("group_name", *place), ("consumer_offset",), ("first_ms", "first_offset")
        )
        self._clients = _Track(trail.CLIENTS, client, (), ("first_ms",), tells_gone=True)
        self._subscriptions = _Track(trail.SUBSCRIPTIONS, ("group_name", *subscription), (), ("first_ms",))
        self._ranges = _Track(trail.QUEUE_RANGES, place, ("min_offset", "max_offset"))
        self._masters = MasterChanges()
        self._failed: dict[Question, int | None] = {}
        """Questions without an answer -> the last sample that has one."""
        self._answered: set[Question] = set()
        self._gaps: dict[str, list[tuple[int | None, int, str]]] = {}
        """Broker -> (last sample before, first sample after, reason) of each time without a sample of its groups."""
        self._topics: dict[str, int | None] = {}
        """Topics that are read -> None; that were read -> the last sample that was read up to."""
        self._listed: frozenset[str] = frozenset()
        """Topics of the latest sample of this process."""
        self._read_ms: int | None = None
        self._trace: dict[str, tuple[str, int | None, int]] = {}
        """Broker -> (status, seen_ms, sampled_ms) of its latest TRACE row. One without a row is read."""

    @property
    def groups(self) -> list[str]:
        """The groups in the samples, because a broker forgets a group without offsets and members."""
        return sorted({key[0] for track in (self._clients, self._offsets) for key in track.kept})

    @property
    def sql_topics(self) -> frozenset[str]:
        """The topics to which a group subscribes, or did, by SQL92."""
        return frozenset(topic for _, topic, kind, *_ in self._subscriptions.kept if kind == EXPRESSION_SQL92)

    @property
    def left_topics(self) -> frozenset[str]:
        """The topics of queues whose broker has left, or lost the topic, until the retention: how far they went is
        not known."""
        return frozenset(
            topic for (what, _, topic), seen_ms in self._failed.items() if what == "RANGES" and seen_ms is not None
        )

    # -- rows of a new sample --------------------------------------------------------------------------------------

    def add(self, found: ClusterSample) -> Rows:
        """Return the rows that a sample adds, by relation. Its time must be later than that of the latest sample."""
        assert self.sampled_ms is None or found.sampled_ms > self.sampled_ms, "samples come in the order of their times"
        at_ms, last_ms = found.sampled_ms, self.sampled_ms
        unread = list(unread_ranges(self._before(), found))
        was_whole = {broker for what, broker, _ in self._answered if what == "GROUPS"}
        questions = list(self._questions(found, last_ms))
        gaps = list(self._new_gaps(found, last_ms, was_whole))

        def answered(what: str, row: Row) -> int | None:
            question = (what, row["broker_name"], row["topic"] if what == "RANGES" else "")
            return self._last_answer.get(question) if question in self._answered else None

        made = {
            self._offsets.name: [*self._changes(self._offsets, found, lambda row: answered("OFFSETS", row))],
            self._clients.name: [*self._changes(self._clients, found, lambda row: last_ms)],
            self._subscriptions.name: [*self._changes(self._subscriptions, found, lambda row: last_ms)],
            self._ranges.name: [*self._changes(self._ranges, found, lambda row: answered("RANGES", row))],
        }
        self._row_count += 1 + len(questions) + len(gaps) + sum(map(len, made.values()))
        if self._is_keyframe_due(at_ms):
            keep_from_ms = at_ms - self._retention_ms
            made = {track.name: list(track.everything(keep_from_ms)) for track in self._tracks}
            questions = self._every_question(keep_from_ms, found.answers)
            # READ rows of a keyframe are dated 1 ms earlier, so that a later READ row of this sample replaces them.
            questions += [row | {"sampled_ms": at_ms - 1} for row in self._every_reading(keep_from_ms)]
            gaps = [*self._every_gap(keep_from_ms), *(self._trace_row(broker) for broker in sorted(self._trace))]
            self._keyframe_ms, self._row_count = at_ms, 0
        self.sampled_ms, self._listed = at_ms, frozenset(found.topics)
        taken: Row = {"what": "SAMPLE", "status": "OK", "keyframe_ms": self._keyframe_ms}
        made[trail.SAMPLES.name] = [taken, *gaps, *questions]
        made[trail.UNREAD_RANGES.name] = unread
        rows = self._stamped(made, at_ms)
        if MASTERS in found.rows and (events := self._masters.events(found.rows[MASTERS], at_ms, last_ms)):
            rows[trail.BROKER_EVENTS.name] = [row | {"cluster": self.cluster} for row in events]
        return rows

    def read_up_to(self, sampled_ms: int, topics: Iterable[str]) -> Rows:
        """Return the rows that record that the messages of exactly these topics were read up to a sample."""
        if self._read_ms is not None and sampled_ms <= self._read_ms:
            return {}
        now = set(topics)
        rows: list[Row] = []
        for topic in sorted(now):
            if topic not in self._topics or self._topics[topic] is not None:
                self._topics[topic] = None
                rows.append(self._read_row(topic))
        for topic in sorted(self._topics.keys() - now):
            if self._topics[topic] is None:
                self._topics[topic] = self._read_ms
                rows.append(self._read_row(topic))
        self._read_ms = sampled_ms
        rows.append({"what": "READ", "status": "OK", "seen_ms": sampled_ms})
        self._row_count += len(rows)
        return self._stamped({trail.SAMPLES.name: rows}, sampled_ms)

    def trace_read(self, at_ms: int, left: Mapping[str, bool]) -> Rows:
        """Return the rows that record that the trace of exactly these brokers was not read to its end by at_ms.

        left: their names, and whether they are still there. Call it before read_up_to of the same reading. An earlier
        instant than that of the latest row adds nothing.
        """
        if any(at_ms <= changed_ms for _, _, changed_ms in self._trace.values()):
            return {}
        rows = []
        for broker in sorted(left.keys() | self._trace.keys()):
            status = "OK" if broker not in left else "FAILED" if left[broker] else "GONE"
            before, seen_ms, _ = self._trace.get(broker, ("OK", None, 0))
            if status != before:
                seen_ms = None if status == "OK" else self._read_ms if before == "OK" else seen_ms
                self._trace[broker] = status, seen_ms, at_ms
                rows.append(self._trace_row(broker))
        self._row_count += len(rows)
        return self._stamped({trail.SAMPLES.name: rows}, at_ms)

    def _before(self) -> Before | None:
        """The last sample as far as unread ranges depend on it; None: there is none."""
        if self.sampled_ms is None:
            return None
        return Before(
            offsets={key: kept.values[0] for key, kept in self._offsets.kept.items() if kept.seen_ms is None},
            ranges={
                key: (kept.values[0], kept.values[1]) for key, kept in self._ranges.kept.items() if kept.seen_ms is None
            },
            clients=[(key[0], key[1]) for key, kept in self._clients.kept.items() if kept.seen_ms is None],
            answered=self._answered,
            left=self._left(),
        )

    def _left(self) -> Left | None:
        """The topics that the latest sample lists without ranges, although their brokers answered since they had."""
        since = {
            (broker, topic): seen_ms
            for (what, broker, topic), seen_ms in self._failed.items()
            if what == "RANGES" and seen_ms is not None and topic in self._listed and self._is_whole(broker, seen_ms)
        }
        if not since:
            return None
        first_ms = min(since.values())

        def is_of(topic: str, broker: str, kept: _Kept) -> bool:
            seen_ms = since.get((broker, topic))
            return seen_ms is not None and (kept.seen_ms is None or kept.seen_ms >= seen_ms)

        return Left(
            offsets={key: kept.values[0] for key, kept in self._offsets.kept.items() if is_of(key[1], key[2], kept)},
            ranges={
                key: (kept.values[0], kept.values[1])
                for key, kept in self._ranges.kept.items()
                if is_of(key[0], key[1], kept)
            },
            clients=[
                (key[0], key[1])
                for key, kept in self._clients.kept.items()
                if kept.seen_ms is None or kept.seen_ms >= first_ms
            ],
        )

    def _is_whole(self, broker: str, since_ms: int) -> bool:
        """Whether a broker has told its groups and offsets in all samples since an instant."""
        gaps = (*self._gaps.get(broker, ()), *self._gaps.get("", ()))
        is_answering = {("OFFSETS", broker, ""), ("GROUPS", broker, "")} <= self._answered
        return is_answering and not any(until_ms > since_ms for _, until_ms, _ in gaps)

    def _questions(self, found: ClusterSample, last_ms: int | None) -> Iterator[Row]:
        """Note which questions the sample answers; return the rows of those that changed."""
        self._last_answer = dict.fromkeys(self._answered, last_ms) | self._failed
        for question in sorted(self._answered | self._failed.keys() | found.answers.keys()):
            why = found.answers.get(question, NOT_ASKED)
            if not why and question not in self._answered:
                self._failed.pop(question, None)
                self._answered.add(question)
                yield self._question_row(question, "")
            elif why and question not in self._failed:
                self._failed[question] = last_ms if question in self._answered else None
                self._answered.discard(question)
                yield self._question_row(question, why)

    def _new_gaps(self, found: ClusterSample, last_ms: int | None, was_whole: set[str]) -> Iterator[Row]:
        """Return the times that end with this sample in which groups of a broker, or of any (''), were not sampled."""
        for what, broker, topic in sorted(self._answered):
            if what != "GROUPS":
                continue
            if broker in was_whole and not found.gap:
                continue
            seen_ms = self._last_answer.get((what, broker, topic))
            self._gaps.setdefault(broker, []).append((seen_ms, found.sampled_ms, found.gap or BROKER_SILENT))
            yield self._gap_row(broker, *self._gaps[broker][-1])

    def _every_gap(self, keep_from_ms: int) -> list[Row]:
        """The rows of all gaps. Those before keep_from_ms and the oldest of too many are joined with the first one."""
        for broker, gaps in self._gaps.items():
            kept = [gap for gap in gaps if gap[1] >= keep_from_ms][-GAPS_MAX:]
            if len(kept) < len(gaps):
                self._gaps[broker] = [(None, gaps[len(gaps) - len(kept) - 1][1], JOINED), *kept]
        return [self._gap_row(broker, *gap) for broker, gaps in sorted(self._gaps.items()) for gap in gaps]

    @staticmethod
    def _gap_row(broker: str, seen_ms: int | None, until_ms: int, reason: str) -> Row:
        """A gap's row has the time of the sample that ended it, also in later keyframes."""
        own = {"what": "GAP", "broker_name": broker, "status": "FAILED", "seen_ms": seen_ms, "reason": reason}
        return own | {"sampled_ms": until_ms}

    def _every_question(self, keep_from_ms: int, answers: dict[Question, str]) -> list[Row]:
        """The rows of all questions. Forget those without an answer since before keep_from_ms."""
        self._failed = {each: seen for each, seen in self._failed.items() if (seen or 0) >= keep_from_ms}
        rows = [self._question_row(each, "") for each in sorted(self._answered)]
        return rows + [self._question_row(each, answers.get(each, NOT_ASKED)) for each in sorted(self._failed)]

    def _every_reading(self, keep_from_ms: int) -> list[Row]:
        """The rows of all topics that are read, or were until after keep_from_ms."""
        if self._read_ms is None:
            return []
        self._topics = {each: seen for each, seen in self._topics.items() if seen is None or seen >= keep_from_ms}
        rows = [self._read_row(each) for each in sorted(self._topics)]
        return [*rows, {"what": "READ", "status": "OK", "seen_ms": self._read_ms}]

    def _question_row(self, question: Question, why: str) -> Row:
        what, broker, topic = question
        status, seen_ms = ("FAILED", self._failed[question]) if why else ("OK", None)
        return {
            "what": what,
            "broker_name": broker,
            "topic": topic,
            "status": status,
            "seen_ms": seen_ms,
            "reason": why,
        }

    def _trace_row(self, broker: str) -> Row:
        """The row has the time of the change, also in later keyframes."""
        status, seen_ms, at_ms = self._trace[broker]
        return {"what": "TRACE", "broker_name": broker, "status": status, "seen_ms": seen_ms, "sampled_ms": at_ms}

    def _read_row(self, topic: str) -> Row:
        seen_ms = self._topics[topic]
        return {"what": "READ", "topic": topic, "status": "OK" if seen_ms is None else "FAILED", "seen_ms": seen_ms}

    def _changes(self, track: _Track, found: ClusterSample, before: Callable[[Row], int | None]) -> Iterator[Row]:
        return track.changes(found.rows.get(track.name, ()), found.sampled_ms, before)

    def _is_keyframe_due(self, at_ms: int) -> bool:
        if self._keyframe_ms is None or at_ms - self._keyframe_ms >= KEYFRAME_AGE_MS_MAX:
            return True
        size = sum(len(track.kept) for track in self._tracks) + len(self._answered) + len(self._failed)
        size += sum(map(len, self._gaps.values()))
        return self._row_count >= max(KEYFRAME_ROWS_MIN, KEYFRAME_FACTOR * size)

    @property
    def _tracks(self) -> tuple[_Track, ...]:
        return self._offsets, self._clients, self._subscriptions, self._ranges

    def _stamped(self, rows: Rows, sampled_ms: int) -> Rows:
        stamp = {"cluster": self.cluster, "sampled_ms": sampled_ms}
        return {name: [stamp | row for row in some] for name, some in rows.items() if some}

    # -- reading a lake --------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, lake: Lake, cluster: str, retention_ms: int) -> Self:
        """Read the latest sample of a cluster in a lake."""
        changes = cls(cluster, retention_ms)
        with lake_errors(lake.path):
            lake.refresh()
            sources = {name: relation_of(lake[name], files) for name, files in sample_files(lake, _EVER_MS).items()}
            duck = connect(threads=1)  # one for all queries: to make it takes longer than a query
            for track in changes._tracks:
                track.load(duck, sources[track.name], cluster)
            changes._load_questions(duck, sources[trail.SAMPLES.name])
            changes._masters.load(lake, cluster, duck)
            counts = [
                duck.execute(
                    f"SELECT count(*) FROM ({source}) AS recorded WHERE cluster = ? AND sampled_ms > ?",
                    [cluster, changes._keyframe_ms or 0],
                ).fetchall()[0][0]
                for source in sources.values()
            ]
        changes._row_count = sum(counts)
        return changes

    def _load_questions(self, duck: duckdb.DuckDBPyConnection, source: str) -> None:
        own = f"({source}) AS recorded WHERE cluster = ?"
        [(self.sampled_ms, self._keyframe_ms)] = duck.execute(
            f"SELECT max(sampled_ms), max(keyframe_ms) FROM {own} AND what = 'SAMPLE'", [self.cluster]
        ).fetchall()
        rows = duck.execute(
            f"""SELECT what, broker_name, topic,
              max_by(struct_pack(status := status, seen_ms := seen_ms, at_ms := sampled_ms), sampled_ms)
            FROM {own} AND what IN ('OFFSETS', 'RANGES', 'GROUPS', 'READ', 'TRACE')
            GROUP BY what, broker_name, topic""",
            [self.cluster],
        ).fetchall()
        gaps = duck.execute(
            f"""SELECT broker_name, seen_ms, sampled_ms, min(reason) FROM {own} AND what = 'GAP'
            AND sampled_ms <= {self.sampled_ms or 0} GROUP BY broker_name, seen_ms, sampled_ms ORDER BY sampled_ms""",
            [self.cluster],
        ).fetchall()
        for broker, seen_ms, until_ms, reason in gaps:
            self._gaps.setdefault(broker, []).append((seen_ms, until_ms, reason))
        for what, broker, topic, state in rows:
            if what == "READ":
                if topic:
                    self._topics[topic] = state["seen_ms"]
                else:
                    self._read_ms = state["seen_ms"]
            elif what == "TRACE":
                self._trace[broker] = state["status"], state["seen_ms"], state["at_ms"]
            elif state["status"] == "OK":
                self._answered.add((what, broker, topic))
            else:
                self._failed[what, broker, topic] = state["seen_ms"]


_EVER_MS = 2**62
