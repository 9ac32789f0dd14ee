"""Dead letters of a lake: why each failed, and how many failed alike."""

from __future__ import annotations

from collections.abc import Sequence

from mqtrail.lake import fetch
from mqtrail.trail.incidents import error_text

from .lakeview import LakeView
from .live import Row
from .model import Event
from .search import between
from .summaries import DeadLetter, DeadLetterConditions, DeadLetterError, DeadLettersAnswer
from .views import PUBLISHED_MS


def dead_letters(view: LakeView, wanted: DeadLetterConditions, now_ms: int) -> DeadLettersAnswer:
    """Return the latest dead letters that match, and the errors of all that match but for their error."""
    view.define_views()
    duck = view.connection
    where, values = between(wanted.first_ms, wanted.end_ms)
    for column, value in (("v.group_name", wanted.group_name), ("t.topic", wanted.topic)):
        if value:
            where += f" AND {column} = ?"
            values.append(value)
    duck.execute(
        f"CREATE OR REPLACE TEMP TABLE dead AS SELECT t.cluster, t.msg_id, t.topic, t.keys, t.tags, v.group_name, "
        f"{PUBLISHED_MS} AS published_ms, v.dead_ms, v.dead_cause, v.delivery_count, v.detail, "
        f"{error_text('v.detail')} AS error FROM verdicts AS v JOIN trajectories AS t USING (cluster, msg_id) "
        f"WHERE {where} AND list_contains(string_split(v.codes, ','), 'DEAD_LETTERED')",
        values,
    )
    errors = fetch(
        duck,
        """SELECT cluster, group_name, topic, error, count(*) AS message_count, min(dead_ms) AS first_dead_ms,
          max(dead_ms) AS last_dead_ms, min(msg_id) AS example
        FROM dead GROUP BY cluster, group_name, topic, error
        ORDER BY message_count DESC, cluster, group_name, topic, error""",
    )
    alike = "true" if wanted.error is None else "error = ?"
    chosen = [] if wanted.error is None else [wanted.error]
    [counted] = fetch(duck, f"SELECT count(*) AS n FROM dead WHERE {alike}", chosen)
    rows = fetch(
        duck,
        f"""SELECT chosen.*, t.events FROM (SELECT * FROM dead WHERE {alike}
          ORDER BY coalesce(dead_ms, published_ms) DESC NULLS LAST, msg_id, group_name LIMIT ? OFFSET ?) AS chosen
        JOIN trajectories AS t USING (cluster, msg_id)
        ORDER BY coalesce(dead_ms, published_ms) DESC NULLS LAST, msg_id, group_name""",
        [*chosen, wanted.limit, wanted.skip],
    )
    return DeadLettersAnswer(
        view.scope(now_ms), counted["n"], tuple(DeadLetterError(**row) for row in errors), tuple(map(_letter, rows))
    )


def _letter(row: Row) -> DeadLetter:
    return DeadLetter(
        cluster=row["cluster"],
        msg_id=row["msg_id"],
        topic=row["topic"] or "",
        keys=tuple((row["keys"] or "").split()),
        tags=row["tags"] or "",
        group_name=row["group_name"],
        published_ms=row["published_ms"],
        dead_ms=row["dead_ms"],
        cause=row["dead_cause"] or "",
        error=row["error"],
        delivery_count=row["delivery_count"],
        attempts=_attempts([Event(**event) for event in row["events"] or ()], row["group_name"]),
    )


def _attempts(events: Sequence[Event], group: str) -> tuple[Event, ...]:
    """Return the deliveries to a group. A RESULT is about the same delivery as a HANDLED, and knows its error."""
    own = [event for event in events if event.group_name == group]
    numbers = {event.retry_times for event in own if event.kind == "RESULT"}
    return tuple(
        event
        for event in own
        if event.kind == "RESULT" or (event.kind == "HANDLED" and event.retry_times not in numbers)
    )
