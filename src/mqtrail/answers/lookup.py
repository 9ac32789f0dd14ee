"""Where is this message? From the lake, and from the cluster for what came after it, judged by one definition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mqtrail import trail
from mqtrail.answers.live import LiveEvidence, Row, gather
from mqtrail.answers.model import Scope, Status, TraceAnswer, Trajectory, trajectory_of
from mqtrail.client import SyncAdmin
from mqtrail.lake import Lake, LakeError, LookUp, connect, judge_rows, relation_of
from mqtrail.wire import TRACE_TOPIC, MQError

HOUR_MS = 3_600_000
KEY_IDS_MAX = 20  # messages of one key that are shown


class Answers:
    """Look-ups over a lake, a cluster, or both. At least one of them is needed.

    lake: its folder. namesrv: the cluster's name servers. settings: thresholds of what is judged here.
    """

    def __init__(
        self,
        lake: Path | None = None,
        namesrv: str = "",
        *,
        settings: trail.Settings | None = None,
        trace_topic: str = TRACE_TOPIC,
    ) -> None:
        self._lake_path = lake
        self._namesrv = namesrv
        self._settings = settings
        self._trace_topic = trace_topic

    def trace(self, asked: str, now_ms: int) -> TraceAnswer:
        """Answer for an id (of the client or the broker) or a key."""
        omissions: list[str] = []
        sources: list[str] = []
        opened: tuple[str, ...] = ()
        look: LookUp | None = None
        first_ms: int | None = None
        end_ms: int | None = None
        is_whole = True
        found: list[Trajectory] = []
        if self._lake_path is not None:
            try:
                look = LookUp(Lake.open(self._lake_path))
                hours = look.lake["trajectories"].hours()
                if hours:
                    first_ms, end_ms = hours[0] * HOUR_MS, (hours[-1] + 1) * HOUR_MS
                found, opened, cut = _from_lake(look, asked)
                sources.append(f"lake {self._lake_path} ({len(opened)} files opened)")
                if cut:
                    omissions.append(f"the key is on more than {KEY_IDS_MAX} messages, the latest are shown")
            except LakeError as error:
                is_whole = False
                omissions.append(f"lake: {error}")
        live: LiveEvidence | None = None
        if self._namesrv:
            topic = found[0].topic if found else ""
            live, problem = self._ask_cluster(asked, topic, now_ms)
            if live is not None:
                sources += live.sources
                omissions += live.omissions
                is_whole = is_whole and live.is_reachable
                found = self._merge(look, found, live, now_ms) or found
            else:
                is_whole = False
                omissions.append(problem)
        elif look is not None:
            omissions.append("the cluster itself was not asked for what came after the lake: name it with --namesrv")
        as_of_ms = max((one.as_of_ms for one in found), default=now_ms)
        scope = Scope(as_of_ms, tuple(sources), first_ms, end_ms, tuple(omissions))
        return _conclude(asked, found, live, scope, is_whole)

    def _ask_cluster(self, asked: str, topic: str, now_ms: int) -> tuple[LiveEvidence | None, str]:
        try:
            with SyncAdmin(self._namesrv) as admin:
                clusters = admin.cluster().cluster_addr_table
                name = next(iter(sorted(clusters)), "")
                return gather(admin, asked, topic, name, now_ms, self._trace_topic), ""
        except (MQError, OSError) as error:
            return None, f"cluster {self._namesrv} could not be asked: {error}"

    def _merge(
        self, look: LookUp | None, known: Sequence[Trajectory], live: LiveEvidence, now_ms: int
    ) -> list[Trajectory]:
        """Judge lake and cluster together, as of now. Nothing when the cluster adds nothing."""
        if not live.is_traced and not live.knows_message:
            return []
        duck = connect()
        evidence = dict(live.rows)
        _fill_kinds(duck, evidence.get(trail.MESSAGE_META.name, []))
        if look is not None and known:
            for relation, rows in _lake_evidence(look, [one.msg_id for one in known]).items():
                evidence[relation] = [*rows, *evidence.get(relation, [])]
        judge_rows(evidence, now_ms, self._settings, duck)
        ids = {one.msg_id for one in known} | live.ids
        return [one for one in read_trajectories(duck, "true") if one.msg_id in ids]


def _from_lake(look: LookUp, asked: str) -> tuple[list[Trajectory], tuple[str, ...], bool]:
    answer = look.trajectories(asked)
    opened = answer.opened
    ids = [asked]
    cut = False
    if not answer.rows:
        by_key = look.ids_of_key(asked, KEY_IDS_MAX + 1)
        opened += by_key.opened
        ids = [row["msg_id"] for row in by_key.rows]
        cut = len(ids) > KEY_IDS_MAX
    found = []
    for msg_id in ids[:KEY_IDS_MAX]:
        rows = answer.rows
        if msg_id != asked:
            answer_of_id = look.trajectories(msg_id)
            rows, opened = answer_of_id.rows, opened + answer_of_id.opened
        if not rows:
            continue
        verdicts = look.verdicts(msg_id)
        opened += verdicts.opened
        found += [
            trajectory_of(row, [one for one in verdicts.rows if one["cluster"] == row["cluster"]])
            for row in _latest(rows)
        ]
    return found, tuple(dict.fromkeys(opened)), cut


def _latest(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the latest judgement of each cluster and message."""
    latest: dict[tuple[str, str], Mapping[str, Any]] = {}
    for row in rows:
        key = (row["cluster"], row["msg_id"])
        if key not in latest or latest[key]["as_of_ms"] < row["as_of_ms"]:
            latest[key] = row
    return list(latest.values())


def _lake_evidence(look: LookUp, ids: Sequence[str]) -> dict[str, list[Row]]:
    """Return the lake's evidence about messages, and its samples of who reads their topics."""
    duck, lake = look.connection, look.lake
    marks = ", ".join("?" for _ in ids)
    wanted = {
        trail.TRACE_EVENTS.name: f"msg_id IN ({marks})",
        trail.MESSAGE_META.name: f"own_unique_key IN ({marks}) OR last_unique_key IN ({marks})",
    }
    found: dict[str, list[Row]] = {}
    for name, where in wanted.items():
        values = list(ids) * where.count(marks)
        found[name] = _rows(duck, f"SELECT * FROM ({relation_of(lake[name])}) WHERE {where}", values)
    for relation in (trail.GROUP_OFFSETS, trail.CLIENTS, trail.SUBSCRIPTIONS, trail.QUEUE_RANGES, trail.GAPS):
        found[relation.name] = _rows(duck, f"SELECT * FROM ({relation_of(lake[relation.name])})", [])
    return found


def _fill_kinds(duck: Any, rows: list[Row]) -> None:
    """Fill stored_kind of message_meta rows by trail's own text."""
    if not rows:
        return
    columns = ("topic", "real_topic", "tags", "origin_msg_id", "own_unique_key", "last_unique_key")
    numbers = ("delay_level", "delay_ms", "due_ms")
    for row in rows:
        picks = [f"cast(? AS varchar) AS {name}" for name in columns]
        picks += [f"cast(? AS bigint) AS {name}" for name in numbers]
        values = [row.get(name, "") for name in columns] + [row.get(name) for name in numbers]
        text = f"SELECT {trail.stored_kind()} FROM (SELECT {', '.join(picks)})"
        row["stored_kind"] = duck.execute(text, values).fetchone()[0]


def _rows(duck: Any, text: str, values: Sequence[Any]) -> list[Row]:
    cursor = duck.execute(text, list(values))
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def read_trajectories(duck: Any, where: str, values: Sequence[Any] = (), *, tail: str = "") -> list[Trajectory]:
    """Return trajectories with their verdicts from the views or tables of those names in a DuckDB connection."""
    rows = _rows(duck, f"SELECT * FROM trajectories WHERE {where} {tail}", values)
    verdicts: dict[tuple[str, str], list[Row]] = {}
    ids = sorted({row["msg_id"] for row in rows})
    if ids:
        for verdict in _rows(duck, "SELECT * FROM verdicts WHERE msg_id IN (SELECT unnest(?))", [ids]):
            verdicts.setdefault((verdict["cluster"], verdict["msg_id"]), []).append(verdict)
    return [trajectory_of(row, verdicts.get((row["cluster"], row["msg_id"]), [])) for row in rows]


def _conclude(
    asked: str, found: Sequence[Trajectory], live: LiveEvidence | None, scope: Scope, is_whole: bool
) -> TraceAnswer:
    if found:
        untraced = live is not None and live.knows_message and not live.is_traced
        if untraced and all(not one.send_codes and not any(g.delivery_count for g in one.groups) for one in found):
            why = (
                "The message is stored, and no trace of it is to be had: trace is off at its clients, or its records "
                "were lost or have expired."
            )
            return TraceAnswer(asked, Status.NOT_TRACED, scope, tuple(found), why)
        return TraceAnswer(asked, Status.FOUND, scope, tuple(found))
    if live is not None and live.knows_message:
        why = "The message is stored, and nothing of it is traced: is trace on at its producer and consumers?"
        return TraceAnswer(asked, Status.NOT_TRACED, scope, (), why)
    if not is_whole or not scope.sources:
        why = "Nothing was found, but not everything could be searched: this is no proof that the message is not there."
        return TraceAnswer(asked, Status.CANNOT_LOOK, scope, (), why)
    why = f"No message with the id or key {asked!r} in what was searched."
    return TraceAnswer(asked, Status.NOT_FOUND, scope, (), why)
