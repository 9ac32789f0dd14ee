"""The trajectory of a message: knowledge, reasons, and events in order."""

from __future__ import annotations

from .alike import REASON as SENT_BEFORE_REASON
from .broadcasts import REASON as BROADCAST_REASON
from .codes import GROUP_CODES
from .context import ip
from .ends import HIDDEN, TX_LACKS, TX_OPEN, UNDECIDED
from .evidence import OF_MESSAGES, RANGE_NOT_READ
from .judgement import LOSS_NAME, LOSS_TO_MS, named
from .messages import AWAITS_SAMPLE, SENDS_MISSING, UNPROVEN, copy_unread, has_code
from .packing import number_at, packed, padded, part
from .results import EVENT_FIELDS, TRAJECTORIES, VERDICTS
from .settings import Settings
from .stages import Stage


def trajectory_stages(as_of_ms: int, settings: Settings) -> list[Stage]:
    """group_sums, send_losses, lost_copies, message_events, trajectories and verdicts (the results of these names)."""
    return [
        Stage("group_sums", _group_sums(), ("group_verdicts",)),
        Stage("send_losses", _send_losses(settings), ("messages", "widest_losses")),
        Stage("lost_copies", _lost_copies(settings), ("messages", "losses")),
        Stage("message_events", _message_events(), ("resolved",)),
        Stage(
            "trajectories",
            _trajectories(as_of_ms, settings),
            ("messages", "unsampled", "broadcasts", "group_sums", "send_losses", "lost_copies", "message_events"),
        ),
        Stage("verdicts", f"SELECT {VERDICTS.typed()} FROM group_verdicts", ("group_verdicts",)),
    ]


def _group_sums() -> str:
    flags = ", ".join(
        f"max(CASE WHEN instr(',' || codes || ',', ',{code},') > 0 THEN 1 ELSE 0 END) AS has_{code.lower()}"
        for code in GROUP_CODES
    )
    return f"""
SELECT cluster, msg_id, count(*) AS group_count, max(is_open) AS groups_open, max(lacks) AS groups_lack,
    count(*) FILTER (lacks = 1) AS lack_count, min(group_name) FILTER (lacks = 1) AS lack_first,
    max(CASE WHEN instr(reasons, 'TRACE_PENDING') > 0 THEN 1 ELSE 0 END) AS groups_pending, {flags}
FROM group_verdicts GROUP BY cluster, msg_id"""


def _send_losses(settings: Settings) -> str:
    """The loss that may explain a missing send record: a loss of the same connection, otherwise of the same address."""
    hit = packed(
        "CASE WHEN l.host = m.born_host THEN '2' WHEN l.client_id = '' THEN '1' ELSE '0' END",
        padded("l.from_ms"), padded("l.to_ms"), padded("l.lost_count"), "l.reason",
    )  # fmt: skip
    return f"""
SELECT m.cluster AS cluster, m.msg_id AS msg_id, max({hit}) AS loss
FROM messages m JOIN widest_losses l ON m.cluster = l.cluster AND l.host <> '{OF_MESSAGES}'
  AND l.to_ms >= coalesce(m.send_start_ms, m.born_ms, m.stored_ms)
  AND l.from_ms <= coalesce(m.stored_ms, m.send_end_ms) + {settings.trace_delay_ms}
  AND (l.client_id = '' OR l.host = m.born_host OR split_part(l.client_id, '@', 1) = {ip("m.born_host")})
WHERE m.has_send = 0 OR m.tries_missing = 1 OR m.send_closed = 0 OR {SENDS_MISSING}
GROUP BY m.cluster, m.msg_id"""


def _lost_copies(settings: Settings) -> str:
    """The range of its topic that was not read and may have the copy of a message. NULL ends of it are unbounded.

    The clock of the client may be ahead, but a broker stored its records after what they tell.
    """
    hit = packed(padded("l.from_ms"), padded("l.to_ms"), padded("l.lost_count"), "l.reason")
    return f"""
SELECT m.cluster AS cluster, m.msg_id AS msg_id, max({hit}) AS loss
FROM messages m JOIN losses l ON m.cluster = l.cluster AND l.reason = '{RANGE_NOT_READ}' || m.topic
  AND l.to_ms >= least(coalesce(m.send_start_ms, m.handed_ms), m.seen_ms) - {settings.trace_delay_ms}
  AND l.from_ms <= coalesce(m.send_end_ms, m.handed_ms) + {settings.trace_delay_ms}
WHERE m.stored_ms IS NULL GROUP BY m.cluster, m.msg_id"""


def _message_events() -> str:
    fields = ", ".join(f"{field.name} := {field.name}" for field in EVENT_FIELDS)
    place = """CASE WHEN queue_offset IS NOT NULL THEN broker_name || '/' || CASE WHEN stored_topic <> '' THEN
        stored_topic
      ELSE topic END || '/' || cast(queue_id AS string) || '@' || cast(queue_offset AS string)
      WHEN kind IN ('HANDLED', 'RESULT') AND client_id <> '' THEN client_id
      WHEN kind IN ('HANDLED', 'RESULT') THEN client_host ELSE store_host END"""
    outcome = """CASE WHEN kind = 'STORED' THEN stored_kind WHEN outcome <> '' THEN outcome WHEN succeeded = 1 THEN 'OK'
      WHEN failed = 1 THEN 'FAILED' WHEN kind = 'HANDLED' THEN 'OPEN' ELSE '' END"""
    return f"""
SELECT cluster, msg_id, list_sort(list(struct_pack({fields}))) AS events FROM (
  SELECT cluster, msg_id, coalesce(start_ms, end_ms - cost_ms, end_ms, 0) AS at_ms, kind, group_name, {outcome} AS
      outcome,
    {place} AS place, CASE WHEN cause <> '' THEN cause ELSE detail END AS detail, evidence,
    CASE WHEN kind IN ('STORED', 'SENT_BACK', 'DEAD_LETTERED') THEN NULL::bigint
      ELSE coalesce(end_ms - start_ms, cost_ms) END AS duration_ms, retry_times
  FROM resolved) AS timeline
GROUP BY cluster, msg_id"""


_UNCERTAIN = has_code("send_codes", "SEND_UNCERTAIN")
_NOT_FOUND = f"{UNPROVEN} AND stored_ms IS NULL AND scanned = 1"
_NO_COPY = f"stored_ms IS NULL AND scanned = 1 AND (acked_ms IS NOT NULL OR handed_ms IS NOT NULL) AND NOT {UNDECIDED}"


def _needs_copy(as_of_ms: int) -> str:
    """SQL: whether only a copy of an unread topic shows if the message was stored twice, or delivered late."""
    return (
        f"visible_ms IS NULL AND scanned = 0 AND NOT {HIDDEN}"
        f" AND (uncertain_tries > 0 OR coalesce(due_ms <= {as_of_ms}, false))"
    )


def _lacks(as_of_ms: int, horizon: int, pending: str, unread: str) -> tuple[tuple[str, str], ...]:
    """Conditions under which something lacks a record, each with its reason. pending: whether a copy may still come.
    unread: whether that of a send without an acknowledgement may."""
    return (
        ("has_send = 0 AND loss IS NULL", "send_lack"),
        ("has_send = 0 AND loss IS NOT NULL AND send_lack <> 'NO_SEND_RECORD'", "send_lack"),
        ("has_send = 0 AND loss IS NOT NULL AND send_lack = 'NO_SEND_RECORD'", "'NO_SEND_RECORD'"),
        ("has_send = 1 AND send_closed = 0 AND unfinished_ms <= " + str(horizon), "'SEND_END_NOT_TRACED'"),
        ("has_send = 1 AND send_closed = 0 AND unfinished_ms > " + str(horizon), "'TRACE_PENDING'"),
        (f"tries_missing = 1 OR {SENDS_MISSING}", "'SEND_TRIES_NOT_TRACED'"),
        ("ungrouped = 1", "'GROUP_NOT_NAMED'"),
        (f"{_NO_COPY} AND {pending}", "'COPY_PENDING'"),
        (f"{_NO_COPY} AND NOT {pending}", "'COPY_NOT_FOUND'"),
        (f"{UNPROVEN} AND stored_ms IS NULL AND scanned = 0 OR {_needs_copy(as_of_ms)}", "'TOPIC_NOT_SCANNED'"),
        (f"{_NOT_FOUND} AND {unread}", "'COPY_PENDING'"),
        (f"{_NOT_FOUND} AND NOT {unread} AND copy_loss IS NOT NULL", "'COPY_NOT_FOUND'"),
        (UNDECIDED, named("'TRANSACTION_NOT_KNOWN'", lacks=TX_LACKS)),
        ("recall_state = 'ASKED'", "'RECALL_NOT_CONFIRMED'"),
        (
            "gap_from_ms IS NOT NULL",
            named("'GROUPS_NOT_KNOWN'", from_ms="gap_from_ms", to_ms="gap_to_ms"),
        ),
        (f"gap_from_ms IS NULL AND {AWAITS_SAMPLE}", named("'GROUPS_NOT_KNOWN'", sampled_ms="whole_ms")),
        ("light_queues = 1", "'GROUPS_NOT_KNOWN(queues=LMQ)'"),
        (
            "broadcast_group IS NOT NULL",
            named(
                f"'{BROADCAST_REASON}'", group="broadcast_group", clients="broadcast_clients", found="broadcast_found"
            ),
        ),
        ("groups_lack = 1", named("'GROUPS_INCOMPLETE'", count="lack_count", first="lack_first")),
    )


_COPY_LOSS = named(
    LOSS_NAME.replace("loss_name", "copy_loss_name"), from_ms="copy_loss_from_ms", to_ms="copy_loss_to_ms",
    count="nullif(copy_loss_count, 0)",
)  # fmt: skip
_NOTES = (
    ("copy_loss IS NOT NULL", _COPY_LOSS),
    ("loss IS NOT NULL", named(LOSS_NAME, from_ms="loss_from_ms", to_ms=LOSS_TO_MS,
                                count="nullif(loss_count, 0)")),
    ("stored_in <> ''", "substr(stored_in, 2)"),
    (f"{_UNCERTAIN} AND stored_ms IS NOT NULL", named("'FOUND'", stored_ms="stored_ms")),
    ("earlier_id <> ''", named(f"'{SENT_BEFORE_REASON}'", msg_id="earlier_id", stored_ms="earlier_ms")),
)  # fmt: skip


def _trajectories(as_of_ms: int, settings: Settings) -> str:
    horizon = as_of_ms - settings.trace_delay_ms
    group_codes = " || ".join(f"CASE WHEN has_{code.lower()} = 1 THEN ',{code}' ELSE '' END" for code in GROUP_CODES)
    pending = f"coalesce(acked_ms, handed_ms) > {horizon}"
    unread = copy_unread(settings)
    lacks = _lacks(as_of_ms, horizon, pending, unread)
    no_copy = (f"{_NOT_FOUND} AND NOT {unread} AND copy_loss IS NULL", named("'NO_COPY'", scanned_ms="scanned_ms"))
    reasons = "".join(
        f" || CASE WHEN {condition} THEN ';' || {text} ELSE '' END" for condition, text in (*lacks, *_NOTES, no_copy)
    )
    complete = " AND ".join(f"NOT coalesce({condition}, false)" for condition, _ in lacks)
    computed = {
        "as_of_ms": str(as_of_ms),
        "producer_host": "CASE WHEN born_host <> '' THEN born_host ELSE traced_host END",
        "offset_msg_id": "CASE WHEN place_id <> '' THEN place_id ELSE offset_msg_id END",
        "body_size": "coalesce(stored_size, sent_size)",
        "send_count": "pub_units + lost_units",
        "group_count": "coalesce(group_count, 0)",
        "group_codes": f"coalesce(substr({group_codes}, 2), '')",
        "knowledge": f"CASE WHEN {complete} THEN 'COMPLETE' ELSE 'INCOMPLETE' END",
        "reasons": f"substr(''{reasons}, 2)",
        "is_open": f"CASE WHEN groups_open = 1 OR {has_code('message_codes', 'SCHEDULED')}"
        f" OR send_lack = 'TRACE_PENDING' OR {_NO_COPY} AND {pending}"
        f" OR has_send = 1 AND send_closed = 0 AND unfinished_ms > {horizon}"
        f" OR {AWAITS_SAMPLE} OR {TX_OPEN} OR {unread} THEN 1 ELSE 0 END",
    }
    return f"""
SELECT {TRAJECTORIES.typed(computed)} FROM (
  SELECT m.*, u.gap_from_ms AS gap_from_ms, u.gap_to_ms AS gap_to_ms,
    b.broadcast_group AS broadcast_group, b.broadcast_clients AS broadcast_clients, b.broadcast_found AS
        broadcast_found,
    g.group_count AS group_count, g.groups_open AS groups_open, g.groups_lack AS groups_lack,
    g.lack_count AS lack_count, g.lack_first AS lack_first,
    {", ".join(f"g.has_{code.lower()} AS has_{code.lower()}" for code in GROUP_CODES)},
    l.loss AS loss, {number_at("l.loss", 2)} AS loss_from_ms, {number_at("l.loss", 3)} AS loss_to_ms,
    {number_at("l.loss", 4)} AS loss_count, coalesce({part("l.loss", 5)}, '') AS loss_name,
    y.loss AS copy_loss, {number_at("y.loss", 1)} AS copy_loss_from_ms, {number_at("y.loss", 2)} AS copy_loss_to_ms,
    {number_at("y.loss", 3)} AS copy_loss_count, coalesce({part("y.loss", 4)}, '') AS copy_loss_name, e.events AS events
  FROM messages m
  LEFT JOIN unsampled u ON m.cluster = u.cluster AND m.msg_id = u.msg_id
  LEFT JOIN broadcasts b ON m.cluster = b.cluster AND m.msg_id = b.msg_id
  LEFT JOIN group_sums g ON m.cluster = g.cluster AND m.msg_id = g.msg_id
  LEFT JOIN send_losses l ON m.cluster = l.cluster AND m.msg_id = l.msg_id
  LEFT JOIN lost_copies y ON m.cluster = y.cluster AND m.msg_id = y.msg_id
  LEFT JOIN message_events e ON m.cluster = e.cluster AND m.msg_id = e.msg_id) AS whole"""
