"""Documented views of a lake for SQL: messages, group_results, verdicts, deliveries, lag, group_lag, clocks …

Unlike the lake's tables, they have timestamps and lists, and only rows that are current. Times are UTC. NULL is
"unknown", never 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mqtrail import trail

from .lag_sql import DRAIN_SECONDS, OVER_MS, TREND, LagSql

TABLES_SCHEMA: Final = "lake"
"""The lake's own tables are in this schema, as docs/design/lake.md describes them."""
PUBLISHED_MS: Final = f"coalesce({', '.join(f't.{column}' for column in trail.PUBLISHED_FROM)})"
"""Time of publication: when the message was sent, else stored, else visible, else its last known event."""


@dataclass(frozen=True, slots=True)
class ViewColumn:
    """name, its SQL over the view's source, and its meaning."""

    name: str
    sql: str
    meaning: str


@dataclass(frozen=True, slots=True)
class View:
    """A view: what a row is, its columns, and the SQL after their list."""

    name: str
    row: str
    columns: tuple[ViewColumn, ...]
    source: str

    @property
    def sql(self) -> str:
        """The view's SELECT."""
        columns = ", ".join(f"{column.sql} AS {column.name}" for column in self.columns)
        return f"SELECT {columns} {self.source}"


def _at(name: str, ms: str, meaning: str) -> ViewColumn:
    return ViewColumn(name, f"epoch_ms({ms})", meaning)


def _same(name: str, meaning: str, alias: str = "t") -> ViewColumn:
    return ViewColumn(name, f"{alias}.{name}", meaning)


def _list(name: str, joined: str, meaning: str, separator: str = ",") -> ViewColumn:
    text = f"CASE WHEN {joined} = '' THEN [] ELSE string_split({joined}, '{separator}') END"
    return ViewColumn(name, text, meaning)


def _message(alias: str = "t") -> tuple[ViewColumn, ...]:
    return (
        _same("cluster", "cluster of the brokers", alias),
        _same("msg_id", "id of the message", alias),
        _same("topic", "business topic", alias),
    )


_CLUSTER_AND_ID = "USING (cluster, msg_id)"
_PUBLISHED = _at("published_at", PUBLISHED_MS, "when it was sent, else stored, else visible, else its last event")
_CODE_VALUES = ", ".join(
    f"('{code.name}', '{'group' if code.about == 'beside' else code.about}', '{code.severity}')"
    for code in trail.CODES.values()
)

_LAG = LagSql(TABLES_SCHEMA)
_TRENDS = (
    _same("consumed_per_second", "messages read since an earlier sample, NULL if unknown", "l"),
    _same("produced_per_second", "messages written since then, NULL if unknown", "l"),
    ViewColumn("trend", TREND, "EMPTY, DRAINS, GROWS, STEADY or UNKNOWN"),
    ViewColumn("drain_seconds", DRAIN_SECONDS, "until nothing waits at these rates; NULL: never, or unknown"),
)

_CLOCKS = trail.clocks_sql(f"{TABLES_SCHEMA}.{trail.CLOCK_BOUNDS.name}")
_SPLIT_ROWS = (
    f"(SELECT v.*, t.broker_name, t.producer_host, t.stored_ms FROM {TABLES_SCHEMA}.verdicts AS v "
    f"JOIN {TABLES_SCHEMA}.trajectories AS t {_CLUSTER_AND_ID})"
)

_COVERAGE = (
    f"WITH {', '.join(f'{name} AS (SELECT * FROM {TABLES_SCHEMA}.{name})' for name in trail.COVERAGE_TABLES)} "
    f"{trail.coverage_sql()}"
)

VIEWS: Final[dict[str, View]] = {
    view.name: view
    for view in (
        View(
            "messages",
            "One row per message.",
            (
                *_message(),
                _PUBLISHED,
                _list("keys", "trim(t.keys)", "keys of the message", " "),
                ViewColumn("tag", "t.tags", "its tag"),
                _same("batch_id", "id of the batch it was sent in; '' if none"),
                _same("traceparent", "context of OpenTelemetry that it carries; '' if none was read"),
                _same("producer_group", "producer group; '' without a send record"),
                _same("producer_host", "ip:port of the producer"),
                ViewColumn("broker", "t.broker_name", "broker of the first visible copy; '' if none was read"),
                _same("queue_id", "queue of that copy"),
                _same("queue_offset", "its offset in the queue"),
                _same("body_size", "bytes of the body"),
                _at("acked_at", "t.acked_ms", "first acknowledgement"),
                _at("stored_at", "t.stored_ms", "first stored copy"),
                _at("due_at", "t.due_ms", "when a delayed message is due; NULL: not delayed"),
                _at("visible_at", "t.visible_ms", "first copy in its own topic"),
                _same("send_ms", "longest time from the first try of a send to its acknowledgement"),
                ViewColumn("tries", "t.try_count", "highest number of tries of one send"),
                ViewColumn("copies", "t.copy_count", "stored copies in its own topic"),
                _list("send_codes", "t.send_codes", "codes about sending"),
                _list("message_codes", "t.message_codes", "codes about the message"),
                _list("group_codes", "t.group_codes", "distinct codes of its groups"),
                _same("knowledge", "COMPLETE, INCOMPLETE or UNKNOWN"),
                _list("reasons", "t.reasons", "what is missing and why", ";"),
                _at("judged_at", "t.as_of_ms", "time of the judgement"),
            ),
            f"FROM {TABLES_SCHEMA}.trajectories AS t",
        ),
        View(
            "group_results",
            "One row per message and consumer group. total_ms = to_stored_ms + delay_ms + to_delivered_ms + retry_ms + "
            "handler_ms, by one clock: `clocks` says how. Differences of the recorded times are in lake.verdicts.",
            (
                *_message(),
                _same("group_name", "consumer group", "v"),
                _PUBLISHED,
                _same("state", "state of the group: CONSUMED, WAITING, RETRYING and others", "v"),
                _list("codes", "v.codes", "the state and the codes beside it"),
                _list("reasons", "v.reasons", "why it is UNKNOWN, what is missing, what was found", ";"),
                _same("message_model", "CLUSTERING, BROADCASTING or ''", "v"),
                ViewColumn("deliveries", "v.delivery_count", "deliveries with a record"),
                ViewColumn("successes", "v.success_count", "deliveries that succeeded"),
                ViewColumn("failures", "v.failure_count", "deliveries that failed"),
                _at("first_delivered_at", "v.first_delivered_ms", "first delivery"),
                _at("done_at", "v.done_ms", "end of the first successful delivery"),
                _at("retry_due_at", "v.retry_due_ms", "when the latest retry copy is due"),
                _at("dead_at", "v.dead_ms", "when it was stored in %DLQ%"),
                _same("dead_cause", "ATTEMPTS_EXHAUSTED, BY_HANDLER, ORDERED_GIVE_UP or ''", "v"),
                ViewColumn("error", "v.detail", "error text of the latest failure"),
                _same("client", "client id, else ip:port, of the latest delivery", "v"),
                _same("to_stored_ms", "send start to stored", "v"),
                _same("delay_ms", "stored to visible (delay level or timer)", "v"),
                _same("to_delivered_ms", "visible to first delivery", "v"),
                _same("retry_ms", "first delivery to first successful delivery", "v"),
                _same("handler_ms", "start to end of the first successful delivery", "v"),
                _same("total_ms", "send start to the end of the first successful delivery", "v"),
                _same(
                    "clocks",
                    "AGREE: the clocks of all hosts can be equal; CORRECTED by their differences (view clocks); "
                    "ASSUMED: not known, taken as equal, but no part is negative; '' without a part between hosts",
                    "v",
                ),
                _same("clock_error_ms", "how far total_ms can be wrong by clocks; NULL: not known", "v"),
            ),
            f"FROM ({trail.corrected_splits_sql(_SPLIT_ROWS, f'({_CLOCKS})')}) AS v "
            f"JOIN {TABLES_SCHEMA}.trajectories AS t {_CLUSTER_AND_ID}",
        ),
        View(
            "verdicts",
            "One row per message and code; group_name is '' for codes about the send, the message and the knowledge.",
            (
                *_message("c"),
                _same("group_name", "consumer group; '' if the code is not about a group", "c"),
                _at("published_at", "c.published_ms", "as in messages"),
                _same("code", "verdict code", "c"),
                ViewColumn("about", "s.about", "send, message, group or knowledge"),
                ViewColumn("severity", "s.severity", "good, info, open, warning or error"),
                _list("reasons", "c.reasons", "reasons of the message, or of the group", ";"),
            ),
            f"""FROM (
  SELECT t.cluster, t.msg_id, t.topic, '' AS group_name, {PUBLISHED_MS} AS published_ms, t.reasons,
    unnest(string_split(concat_ws(',', t.send_codes, t.message_codes, t.knowledge), ',')) AS code
  FROM {TABLES_SCHEMA}.trajectories AS t
  UNION ALL
  SELECT t.cluster, t.msg_id, t.topic, v.group_name, {PUBLISHED_MS}, v.reasons, unnest(string_split(v.codes, ','))
  FROM {TABLES_SCHEMA}.verdicts AS v JOIN {TABLES_SCHEMA}.trajectories AS t {_CLUSTER_AND_ID}
) AS c JOIN (VALUES {_CODE_VALUES}) AS s(code, about, severity) USING (code)""",
        ),
        View(
            "deliveries",
            "One row per delivery of a message to a handler.",
            (
                *_message("d"),
                ViewColumn("group_name", "d.e.group_name", "consumer group"),
                _at("delivered_at", "nullif(d.e.at_ms, 0)", "start of the handler"),
                ViewColumn("outcome", "d.e.outcome", "OK, FAILED, or OPEN: no end was recorded"),
                ViewColumn("duration_ms", "d.e.duration_ms", "duration of the handler; NULL if unknown"),
                ViewColumn("retry_times", "d.e.retry_times", "reconsumeTimes of the copy; NULL if it has none"),
                ViewColumn("client", "d.e.place", "client that ran the handler"),
                ViewColumn("detail", "d.e.detail", "error text or cause"),
                ViewColumn("evidence", "d.e.evidence", "the record that shows it"),
            ),
            "FROM (SELECT t.cluster, t.msg_id, t.topic, unnest(t.events) AS e "
            f"FROM {TABLES_SCHEMA}.trajectories AS t) AS d WHERE d.e.kind = 'HANDLED'",
        ),
        View(
            "lag",
            "One row per queue and group, in the latest sample of the cluster. The earlier sample is the latest one "
            f"that is {OVER_MS // 60_000} min older, or the first one.",
            (
                _same("cluster", "cluster of the brokers", "l"),
                _same("group_name", "consumer group", "l"),
                _same("topic", "topic", "l"),
                ViewColumn("broker", "l.broker_name", "broker of the queue"),
                _same("queue_id", "queue", "l"),
                _same("is_retry", "whether it is a retry topic", "l"),
                _at("sampled_at", "l.last_ms", "time of the latest sample"),
                _same(
                    "consumer_offset", "next offset that the group will read; NULL: none is committed, or unknown", "l"
                ),
                _same("min_offset", "first kept offset", "l"),
                _same("max_offset", "next offset to be written", "l"),
                _same("lag_count", "kept messages that the group has not read, NULL if unknown", "l"),
                ViewColumn(
                    "lag_seconds", "l.lag_ms / 1000.0", "age of the oldest of them; 0 without lag, NULL if unknown"
                ),
                _at("earlier_at", "l.earlier_ms", "time of the earlier sample; NULL: it does not have the queue"),
                *_TRENDS,
            ),
            f"FROM ({_LAG.queues}) AS l",
        ),
        View(
            "group_lag",
            "One row per group in the latest sample of its cluster: sums over its queues. With unknown queues they are "
            "lower bounds, and NULL if nothing is known.",
            (
                _same("cluster", "cluster of the brokers", "l"),
                _same("group_name", "consumer group", "l"),
                _at("sampled_at", "l.last_ms", "time of the sample"),
                _same("lag_count", "messages of its topics that it has not read", "l"),
                ViewColumn("lag_seconds", "l.lag_ms / 1000.0", "age of the oldest of them"),
                _same("unknown_queues", "queues of its topics with an unknown number or age", "l"),
                ViewColumn("retry_count", "l.retry_lag_count", "messages of its retry topics that it has not read"),
                ViewColumn("retry_seconds", "l.retry_lag_ms / 1000.0", "age of the oldest of them"),
                _same("retry_unknown_queues", "queues of its retry topics with an unknown number or age", "l"),
                ViewColumn(
                    "delayed_count",
                    "CASE WHEN r.is_read THEN coalesce(d.delayed_count, 0) END",
                    "copies that wait until their next attempt is due; NULL: their topic is not read",
                ),
                _at("next_due_at", "d.next_due_ms", "when the first of them is due"),
                *_TRENDS,
            ),
            f"FROM ({_LAG.groups}) AS l LEFT JOIN ({_LAG.delayed}) AS d USING (cluster, group_name) "
            f"LEFT JOIN ({_LAG.delayed_read}) AS r USING (cluster)",
        ),
        View(
            "clocks",
            f"One row per host of a client, broker and {trail.CLOCK_WINDOW_MS // 60_000} min: the clock of the host "
            "minus that of the broker, estimated from the order of sends, stores, deliveries and trace messages.",
            (
                _same("cluster", "cluster of the brokers", "k"),
                _same("host", "IP address of the host", "k"),
                ViewColumn("broker", "k.broker_name", "broker"),
                _at("begin_at", "k.window_ms", "begin of the time, by the broker's clock"),
                _same("state", "KNOWN; PARTLY: one bound is missing; CHANGED: it was set in this time", "k"),
                _same("low_ms", "least possible difference; NULL: no bound", "k"),
                _same("high_ms", "greatest possible difference; NULL: no bound", "k"),
                _same("offset_ms", "0 if the clocks can agree, else the middle; NULL: not known", "k"),
                _same("error_ms", "how far offset_ms can be wrong", "k"),
                _same("jump_ms", "least amount by which the clock moved since the row before; 0: perhaps none", "k"),
            ),
            f"FROM ({_CLOCKS}) AS k",
        ),
        View(
            "coverage",
            "One row per time in which the trace of a client is known to be whole (TRACED), or in which records can be "
            "missing: LOST, UNREAD, VANISHED, NOT_NUMBERED, SILENT.",
            (
                _same("cluster", "cluster of the brokers", "k"),
                _same("client_id", "client; '' if the time concerns all clients", "k"),
                _same("host", "IP address in its id", "k"),
                _list("groups", "k.groups", "consumer groups of the client"),
                _same("kind", "TRACED, or why records can be missing", "k"),
                _at("from_at", "nullif(k.from_ms, 0)", "begin; NULL: not known"),
                _at("to_at", "k.to_ms", "end; NULL: it has not ended"),
                _same("lost_count", "number of trace messages or records; NULL: not known", "k"),
                _same("reason", "evidence for it", "k"),
            ),
            f"FROM ({_COVERAGE}) AS k",
        ),
        View(
            "broker_events",
            "One row per start, stop or change of the role of a broker. A sample that shows what a broker wrote itself "
            "is left out.",
            (
                _same("cluster", "cluster of the brokers", "b"),
                _at("at", "b.event_ms", "time of the event"),
                ViewColumn("broker", "b.event_broker_name", "name of the broker, which all brokers of a group have"),
                _same(
                    "event",
                    "STARTED, STOPPED, BECAME_MASTER, BECAME_SLAVE, TRUNCATED, DROPPED; in samples MASTER_SEEN, "
                    "MASTER_CHANGED, MASTER_GONE",
                    "b",
                ),
                _same("broker_id", "which broker of the group; '' if not known", "b"),
                _same("address", "its ip:port; '' if it has no master", "b"),
                _same("epoch", "epoch or term of the master; NULL: not known", "b"),
                _same("reason", "why, for example why it was elected; '' if not known", "b"),
                _same("before_id", "the master before; '' if not known", "b"),
                _same("before_address", "its address", "b"),
                _same("before_epoch", "its epoch or term", "b"),
                _at("before_until", "b.before_until_ms", "until when it was known to be master"),
                _same("from_offset", "BECAME_MASTER: end of its log; TRUNCATED: first removed byte", "b"),
                _same("to_offset", "TRUNCATED: end of what was removed", "b"),
                _same("detail", "TRUNCATED: file with what was removed; DROPPED: number of events", "b"),
                _same("source", "trace: written by the broker; sample: seen in the routes", "b"),
            ),
            f"FROM ({trail.distinct_events_sql(f'{TABLES_SCHEMA}.{trail.BROKER_EVENTS.name}')}) AS b",
        ),
        View(
            "incidents",
            "One row per incident that `mqtrail incidents` found: bad messages of a time, and what they share.",
            (
                _same("cluster", "cluster of the brokers", "i"),
                _same("incident_id", "id, as printed", "i"),
                _at("begin_at", "i.begin_ms", "first bad message"),
                _at("end_at", "i.end_ms", "last bad message"),
                _same("cause", "name of the cause, or NO_SINGLE_CAUSE", "i"),
                _list("symptoms", "i.symptoms", "what is bad; the first one decides"),
                _list("codes", "i.codes", "verdict codes of the bad messages"),
                _list("conditions", "i.conditions", "smallest set of conditions that explains it", " AND "),
                _list("same_conditions", "i.same_conditions", "conditions that hold for the same messages", "; "),
                _list("neighbours", "i.neighbours", "changes around the begin", "; "),
                _list("errors", "i.errors", "most frequent error texts", "; "),
                _list("unknown", "i.unknown", "dimensions that are not known: a cause in them cannot be found"),
                _same("message_count", "bad messages", "i"),
                _same("inside_count", "messages (of groups: pairs of message and group) under the conditions", "i"),
                _same("inside_bad_count", "bad ones of them", "i"),
                _same("outside_count", "those of the same time outside of the conditions", "i"),
                _same("outside_bad_count", "bad ones of them: left unexplained", "i"),
                ViewColumn(
                    "lift",
                    "(i.inside_bad_count / nullif(i.inside_count, 0)) / nullif(i.outside_bad_count / "
                    "nullif(i.outside_count, 0), 0)",
                    "how many times more frequent bad ones are inside; NULL: none outside, or no conditions",
                ),
                _same("certainty", "-log10 of the chance that it is an accident, at most", "i"),
                _list("examples", "i.examples", "ids of bad messages"),
                _at("found_at", "i.found_ms", "time of the search"),
            ),
            f"FROM {TABLES_SCHEMA}.incidents AS i",
        ),
    )
}
"""The documented views by name."""


def definitions() -> Iterator[str]:
    """Yield the statements that define the views. The lake's tables must be in TABLES_SCHEMA."""
    for view in VIEWS.values():
        yield f"CREATE OR REPLACE VIEW {view.name} AS {view.sql}"
