"""Exports the messages of a lake as spans, each once its judgement is settled, and continues where it ended.

    <lake>/_spans/<digest of the endpoint and the cluster, if it is one>.json     how far an endpoint has got

A message is settled when no later judgement can differ without new records of it. It is exported again, with the same
ids, if such records arrive. The position is written after the collector has accepted an hour of messages; a process
that ends in between exports the messages of that hour again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from threading import Event as Flag
from typing import Any, Final

import duckdb

from mqtrail.lake import (
    DataFile,
    Lake,
    LakeDamaged,
    LakePath,
    connect,
    lake_errors,
    of_cluster,
    relation_of,
    unfinished_judgement,
    write_whole,
)
from mqtrail.trail import HOUR_MS

from ..lakeview import LakeView
from ..model import trajectory_of
from .otlp import Collector
from .spans import Span, SpanNames, spans_of

FOLDER: Final = "_spans"
SPANS_MAX: Final = 2_000  # in a request, but for one message that has more
ROWS: Final = 500  # messages fetched at once
_AS_OF: Final = "as_of_ms"


@dataclass(frozen=True, slots=True)
class SpanPosition:
    """All settled messages judged up to after_ms are exported; of those up to `until_ms`, the hours up to `hour`."""

    after_ms: int = -1
    until_ms: int | None = None  # None: no export is unfinished
    hour: int | None = None


@dataclass(frozen=True, slots=True)
class ExportedSpans:
    """What one export sent. is_whole: False if it was stopped before its end."""

    message_count: int = 0
    span_count: int = 0
    as_of_ms: int | None = None  # judgements up to this one
    is_whole: bool = True


class SpanExport:
    """The export of one lake to one collector."""

    def __init__(
        self,
        lake: LakePath,
        collector: Collector,
        names: SpanNames = SpanNames.OLD,
        *,
        from_ms: int | None = None,
        cluster: str = "",
    ) -> None:
        """from_ms: leaves out messages published before. cluster: the only one to export; '': all. UnknownCluster."""
        if cluster:
            LakeView(lake, cluster).connection.close()
        self._path = lake
        self._collector = collector
        self._names = names
        self._cluster = cluster
        self._from_hour = None if from_ms is None else from_ms // HOUR_MS
        of_one = f"\n{cluster}" if cluster else ""
        digest = blake2b(f"{collector.url}{of_one}".encode(), digest_size=8).hexdigest()
        self._place = lake / FOLDER / f"{digest}.json"

    def once(self, stop: Flag | None = None) -> ExportedSpans:
        """Export what has been settled since the last export. LakeError, CollectorError."""
        lake = Lake.open(self._path)
        done = ExportedSpans()
        position = self.position()
        if position.until_ms is not None:
            position, done = self._round(lake, position, done, stop)
        last_ms = _last_judgement_ms(lake)
        if done.is_whole and last_ms is not None and last_ms > position.after_ms:
            _, done = self._round(lake, replace(position, until_ms=last_ms), done, stop)
        return done

    def position(self) -> SpanPosition:
        """Return the progress of this endpoint. LakeDamaged: the file is unreadable."""
        with lake_errors(self._path):
            try:
                found = json.loads(self._place.read_bytes())
                return SpanPosition(int(found["after_ms"]), _number(found["until_ms"]), _number(found["hour"]))
            except FileNotFoundError:
                return SpanPosition()
            except (ValueError, KeyError, TypeError) as error:
                raise LakeDamaged(
                    f"{self._place}: found {error}, expected the position of an export of spans: remove the file to "
                    "export all messages again"
                ) from None

    def _round(
        self, lake: Lake, position: SpanPosition, done: ExportedSpans, stop: Flag | None
    ) -> tuple[SpanPosition, ExportedSpans]:
        """Export judgements in (after_ms, until_ms], hour by hour of publication."""
        until_ms = position.until_ms
        assert until_ms is not None
        for hour, files in _hours(lake, position, self._cluster).items():
            if stop is not None and stop.is_set():
                return position, replace(done, is_whole=False)
            if self._from_hour is None or hour >= self._from_hour:
                for messages, spans in self._requests(lake, hour, files, position):
                    self._collector.send(spans)
                    done = replace(
                        done, message_count=done.message_count + messages, span_count=done.span_count + len(spans)
                    )
            position = replace(position, hour=hour)
            self._note(position)
        done = replace(done, as_of_ms=until_ms)
        position = SpanPosition(until_ms)
        self._note(position)
        return position, done

    def _requests(
        self, lake: Lake, hour: int, files: list[DataFile], position: SpanPosition
    ) -> Iterator[tuple[int, list[Span]]]:
        """Yield the number of messages and the spans of each request."""
        spans: list[Span] = []
        count = 0
        with closing(connect(threads=1)) as duck, lake_errors(self._path):
            for row in _rows(duck, lake, hour, files, position, self._cluster):
                made = spans_of(trajectory_of(row, row["groups"] or []), self._names)
                if spans and len(spans) + len(made) > SPANS_MAX:
                    yield count, spans
                    spans, count = [], 0
                spans += made
                count += 1
        if spans:
            yield count, spans

    def _note(self, position: SpanPosition) -> None:
        with lake_errors(self._path):
            with suppress(FileExistsError):
                self._place.parent.mkdir()
            values = {"after_ms": position.after_ms, "until_ms": position.until_ms, "hour": position.hour}
            write_whole(self._place, json.dumps(values).encode())


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _last_judgement_ms(lake: Lake) -> int | None:
    """Return the time of the last judgement that all tables have."""
    times = [file.maximum[_AS_OF] for file in lake["trajectories"].files() if _AS_OF in file.maximum]
    unfinished = unfinished_judgement(lake)
    if not times:
        return None
    return int(max(times)) if unfinished is None else min(int(max(times)), unfinished[0] - 1)


def _hours(lake: Lake, position: SpanPosition, cluster: str) -> dict[int, list[DataFile]]:
    """Return the hours that may have judgements after the position, in order, with all their files."""
    by_hour: dict[int, list[DataFile]] = defaultdict(list)
    files = lake["trajectories"].files()
    for file in of_cluster(files, cluster) if cluster else files:
        if file.hour is not None:  # the table is partitioned by hour
            by_hour[file.hour].append(file)
    return {
        hour: files
        for hour, files in sorted(by_hour.items())
        if (position.hour is None or hour > position.hour)
        and any(file.maximum.get(_AS_OF, position.after_ms + 1) > position.after_ms for file in files)
    }


def _rows(
    duck: duckdb.DuckDBPyConnection,
    lake: Lake,
    hour: int,
    files: list[DataFile],
    position: SpanPosition,
    cluster: str,
) -> Iterator[dict[str, Any]]:
    """Yield the settled trajectories of an hour, each with its verdicts in `groups`."""
    trajectories = relation_of(lake["trajectories"], files, cluster)
    verdicts = relation_of(lake["verdicts"], lake["verdicts"].files([hour]), cluster)
    cursor = duck.execute(
        f"""SELECT t.*, g.groups FROM ({trajectories}) AS t LEFT JOIN
          (SELECT v.cluster, v.msg_id, list(v) AS groups FROM ({verdicts}) AS v GROUP BY v.cluster, v.msg_id) AS g
          ON g.cluster = t.cluster AND g.msg_id = t.msg_id
        WHERE t.is_open = 0 AND t.as_of_ms > ? AND t.as_of_ms <= ?""",
        [position.after_ms, position.until_ms],
    )
    names = [column[0] for column in cursor.description or ()]
    while rows := cursor.fetchmany(ROWS):
        for row in rows:
            yield dict(zip(names, row, strict=True))
