"""The producer side: sends and stored copies of a message, and the codes about them.

resolved → send_units (one row per send) → message_facts → messages (one row per message)
"""

from __future__ import annotations

from .ends import END_COLUMNS, HIDDEN, RECALL_STATE, TX_CODES, TX_SINCE_MS, ends_stage, tx_state
from .kinds import HALF_KINDS, NOTE_KINDS, VISIBLE_KINDS, business_topic, quoted
from .packing import number_at, packed, padded, part
from .repeats import VISIBLE_COPY
from .settings import Settings
from .stages import Stage


def _offered(settings: Settings) -> dict[str, str]:
    """SQL by column: the first and the last time at which groups could read the message for the first time.

    Without a copy only the producer's clock says it, and that can be wrong. The broker's clock bounds it: the record of
    the send was stored after it, within the time after which a record counts as missing.
    """
    copied = "visible_ms IS NOT NULL OR stored_ms IS NOT NULL"
    stored_ms = "coalesce(visible_ms, stored_ms)"
    first_ms = f"least(acked_ms, ack_seen_ms - {settings.trace_delay_ms})"
    return {
        "first_offer_ms": f"CASE WHEN {copied} THEN {stored_ms} ELSE {first_ms} END",
        "last_offer_ms": f"CASE WHEN {copied} THEN {stored_ms} ELSE coalesce(ack_seen_ms, acked_ms) END",
    }


AWAITS_SAMPLE = "copies_to_ms IS NOT NULL AND (whole_ms IS NULL OR copies_to_ms > whole_ms)"
"""SQL over messages: whether no sample of all groups was taken since its last copy was offered to them."""


def has_code(codes: str, code: str) -> str:
    """SQL condition: a column of codes, joined by commas, has this one."""
    return f"instr(',' || {codes} || ',', ',{code},') > 0"


UNPROVEN = f"({has_code('send_codes', 'SEND_UNCERTAIN')} OR {has_code('send_codes', 'SEND_FAILED')})"
"""SQL over messages: whether only a stored copy shows what became of a send."""


OF_ANOTHER_SEND = """(acked = 0 AND degraded = 0
    AND coalesce(sent_ms NOT BETWEEN send_start_ms - 1 AND send_end_ms + 1, false))"""
"""SQL over messages: whether the copy is of another send than those without an acknowledgement that were traced. The
client's clock tells when both began."""
SENDS_MISSING = f"""(has_send = 1
    AND (sent_count > greatest(pub_units, answered_tries) + other_tries OR {OF_ANOTHER_SEND}))"""
"""SQL over messages: whether fewer tries are traced than copies were stored."""


def copy_unread(settings: Settings) -> str:
    """SQL over messages: whether a copy of such a send can be stored behind what was read of its topic.

    The clock of the client may be behind, but the broker stored the record of the send after it.
    """
    return (
        f"({UNPROVEN} AND stored_ms IS NULL AND scanned = 1"
        f" AND scanned_ms < greatest(send_end_ms, seen_ms) + {settings.trace_delay_ms})"
    )


def message_fact_stages() -> list[Stage]:
    """send_units, message_facts, ends: from a message's own rows only."""
    return [
        Stage("send_units", _SEND_UNITS, ("resolved",)),
        Stage("message_facts", _message_facts(), ("send_units", "resolved")),
        ends_stage(),
    ]


def message_stages(as_of_ms: int, settings: Settings) -> list[Stage]:
    """earlier_sends, messages, unsampled."""
    reads = (
        "message_facts", "ends", "end_scans", "losses", "repeated_sends", "earlier_sends", "scanned_topics",
        "traced_hosts", "whole_samples",
    )  # fmt: skip
    return [
        Stage("earlier_sends", "SELECT * FROM sent_before", ("sent_before",)),
        Stage("messages", _messages(as_of_ms, settings), reads),
        Stage("unsampled", _UNSAMPLED, ("messages", "repeated_rows", "sample_gaps")),
    ]


# Messages that became visible, in any of their copies, while the groups of its broker were not sampled, with that time.
_UNSAMPLED = f"""
SELECT m.cluster AS cluster, m.msg_id AS msg_id, min(g.from_ms) AS gap_from_ms, max(g.to_ms) AS gap_to_ms
FROM (SELECT cluster, msg_id, broker_name, offered_from_ms AS from_ms, last_offer_ms AS to_ms FROM messages
  UNION ALL SELECT cluster, msg_id, broker_name, start_ms, start_ms FROM repeated_rows WHERE {VISIBLE_COPY}) m
JOIN sample_gaps g ON m.cluster = g.cluster AND m.broker_name = g.broker_name
  AND m.to_ms > g.from_ms AND m.from_ms < g.to_ms
GROUP BY m.cluster, m.msg_id"""


_SEND_UNITS = """
SELECT cluster, msg_id, kind, max(publish_hour) AS publish_hour,
    CASE WHEN kind = 'SEND_TRY' THEN send_id ELSE attempt_key END AS unit,
    max(group_name) AS producer_group, max(topic) AS topic, max(keys) AS keys, max(tags) AS tags,
    max(client_host) AS client_host, max(offset_msg_id) AS offset_msg_id, max(body_size) AS body_size,
    max(item_count) AS item_count, max(stored_kind) AS stored_kind,
    min(start_ms) AS start_ms, max(end_ms) AS end_ms, max(seen_ms) AS seen_ms,
    min(CASE WHEN succeeded = 1 OR kind = 'SEND' THEN end_ms END) AS acked_ms,
    max(succeeded) AS acked,
    max(CASE WHEN kind = 'SEND' AND failed = 1 THEN 1 ELSE 0 END) AS degraded,
    max(CASE WHEN outcome IN ('TIMEOUT', 'ONEWAY') THEN 1 ELSE 0 END) AS uncertain,
    max(CASE WHEN kind = 'SEND_TRY' AND failed = 1 THEN 1 ELSE 0 END) AS failed,
    max(CASE WHEN kind = 'SEND' THEN 1 ELSE coalesce(is_final, 0) END) AS is_final,
    max(CASE WHEN kind = 'SEND' THEN 1 ELSE attempt_no END) AS try_count,
    count(*) AS try_rows, count(*) FILTER (succeeded = 1) AS ok_rows, max(client_id) AS client_id,
    count(*) FILTER (outcome IN ('TIMEOUT', 'ONEWAY')) AS uncertain_tries
FROM resolved WHERE kind IN ('SEND', 'SEND_TRY')
GROUP BY cluster, msg_id, kind, CASE WHEN kind = 'SEND_TRY' THEN send_id ELSE attempt_key END"""

_PLACE = packed(padded("start_ms"), "broker_name", padded("queue_id"), padded("queue_offset"), "offset_msg_id", "topic")
_IS_VISIBLE = f"group_name = '' AND stored_kind IN ({quoted(VISIBLE_KINDS)})"
_IS_OWN = f"stored_kind NOT IN ({quoted(NOTE_KINDS)})"
_IS_COPY = f"group_name = '' AND {_IS_OWN}"
_OF_TRANSACTION = f"stored_kind IN ({quoted((*HALF_KINDS, 'OP', 'CHECK_MAX', 'COMMIT'))})"


def _when(condition: str, value: str) -> str:
    return f"CASE WHEN {condition} THEN {value} END"


_FACTS: tuple[tuple[str, str, str, str, str], ...] = (
    # name, fold, from send_units, from STORED rows of resolved, from other rows of resolved
    ("topic", "max", "topic", "topic", "topic"),
    ("keys", "max", "keys", "keys", "keys"),
    ("traceparent", "max", "''", "traceparent", "''"),
    ("tags", "max", "tags", f"CASE WHEN {_IS_OWN} THEN tags ELSE '' END", "''"),
    (
        "tags_known",
        "max",
        _when("kind = 'SEND' AND item_count = 1", "1"),
        _when(f"stored_kind <> '' AND {_IS_OWN}", "1"),
        "NULL",
    ),
    ("batch_id", "max", "''", "batch_id", "''"),
    ("producer_group", "max", "producer_group", "''", "''"),
    ("send_client", "max", "client_id", "''", "''"),
    ("traced_host", "max", "client_host", "''", "''"),
    ("born_host", "max", "''", _when(_IS_COPY, "client_host"), "''"),
    ("offset_msg_id", "max", "offset_msg_id", "''", "''"),
    ("sent_size", "max", "body_size", "NULL", "NULL"),
    ("stored_size", "max", "NULL", _when(_IS_COPY, "body_size"), "NULL"),
    ("item_count", "max", "item_count", "NULL", "NULL"),
    ("born_ms", "min", "NULL", "born_ms", "NULL"),
    ("sent_ms", "min", "NULL", _when(_IS_COPY, "born_ms"), "NULL"),
    ("send_start_ms", "min", "start_ms", "NULL", "NULL"),
    ("send_end_ms", "max", "end_ms", "NULL", "NULL"),
    ("acked_ms", "min", "acked_ms", "NULL", "NULL"),
    ("ack_seen_ms", "min", _when("acked_ms IS NOT NULL", "seen_ms"), "NULL", "NULL"),
    ("send_ms", "max", "acked_ms - start_ms", "NULL", "NULL"),
    ("has_pub", "max", _when("kind = 'SEND'", "1"), "NULL", "NULL"),
    # A try tells only that it was answered. The Pub of the same try tells whether the answer was SEND_OK.
    ("pub_acked", "max", _when("kind = 'SEND'", "acked"), "NULL", "NULL"),
    ("try_acked", "max", _when("kind = 'SEND_TRY'", "acked"), "NULL", "NULL"),
    ("degraded", "max", "degraded", "NULL", "NULL"),
    ("uncertain", "max", _when("acked = 0 AND is_final = 1", "uncertain"), "NULL", "NULL"),
    ("uncertain_tries", "max", "uncertain_tries", "NULL", "NULL"),
    ("send_failed", "max", _when("acked = 0 AND is_final = 1 AND failed = 1", "1"), "NULL", "NULL"),
    ("unfinished_ms", "max", _when("acked = 0 AND is_final = 0", "end_ms"), "NULL", "NULL"),
    ("tries_missing", "max", _when("kind = 'SEND_TRY' AND is_final = 1 AND try_rows < try_count", "1"), "NULL", "NULL"),
    ("send_closed", "max", _when("is_final = 1 OR acked = 1", "1"), "NULL", "NULL"),
    ("pub_units", "count", _when("kind = 'SEND'", "1"), "NULL", "NULL"),
    ("answered_tries", "sum", _when("kind = 'SEND_TRY'", "ok_rows"), "NULL", "NULL"),
    ("other_tries", "sum", _when("kind = 'SEND_TRY'", "try_rows - ok_rows"), "NULL", "NULL"),
    ("lost_units", "count", _when("kind = 'SEND_TRY' AND acked = 0", "1"), "NULL", "NULL"),
    ("try_count", "max", "try_count", "NULL", "NULL"),
    ("stored_ms", "min", "NULL", _when(_IS_COPY, "start_ms"), "NULL"),
    ("waits", "max", "NULL", _when("stored_kind = 'DELAY_WAIT'", "1"), "NULL"),
    ("wait_due_ms", "min", "NULL", _when("stored_kind = 'DELAY_WAIT'", "due_ms"), "NULL"),
    ("copy_due_ms", "min", "NULL", _when(_IS_VISIBLE, "due_ms"), "NULL"),
    ("delay_ms", "max", "NULL", _when(_IS_COPY, "delay_ms"), "NULL"),
    ("half", "max", _when("stored_kind = 'HALF'", "1"), _when(_OF_TRANSACTION, "1"), "NULL"),
    ("place", "min", "NULL", _when(_IS_VISIBLE, _PLACE), "NULL"),
    ("copy_count", "count", "NULL", _when(f"{_IS_VISIBLE} AND stored_kind <> 'RESENT'", "1"), "NULL"),
    ("resent_count", "count", "NULL", _when("group_name = '' AND stored_kind = 'RESENT'", "1"), "NULL"),
    ("light_queues", "max", "NULL", _when("stored_kind = 'NORMAL_LMQ'", "1"), "NULL"),
    ("trace_off", "max", "NULL", _when("trace_on = 'false'", "1"), "NULL"),
    ("properties", "max", "NULL", _when(_IS_VISIBLE, "properties"), "NULL"),
    ("properties_least", "min", "NULL", _when(_IS_VISIBLE, "properties"), "NULL"),
    ("handed_ms", "min", "NULL", "NULL", _when("kind IN ('HANDLED', 'RESULT')", "start_ms")),
    ("ungrouped", "max", "NULL", "NULL", _when("kind = 'HANDLED' AND group_name = ''", "1")),
    ("last_event_ms", "max", "end_ms", "end_ms", "coalesce(end_ms, start_ms)"),
    ("seen_ms", "max", "seen_ms", "seen_ms", "seen_ms"),
)
_TEXTS = ("topic", "send_client", "keys", "tags", "traceparent", "batch_id", "producer_group", "traced_host",
          "born_host", "offset_msg_id", "place", "properties", "properties_least")  # fmt: skip


def _message_facts() -> str:
    def columns(source: int) -> str:
        typed = []
        for fact in _FACTS:
            kind = "string" if fact[0] in _TEXTS else "bigint"
            typed.append(f"cast({fact[source]} AS {kind}) AS {fact[0]}")
        return "cluster, msg_id, publish_hour, " + ", ".join(typed)

    folded = ", ".join(f"{fold}({name}) AS {name}" for name, fold, *_ in _FACTS)
    return f"""
SELECT cluster, msg_id, max(publish_hour) AS publish_hour, {folded} FROM (
  SELECT {columns(2)} FROM send_units
  UNION ALL SELECT {columns(3)} FROM resolved WHERE kind = 'STORED'
  UNION ALL SELECT {columns(4)} FROM resolved WHERE kind NOT IN ('SEND', 'SEND_TRY', 'STORED')) AS facts
GROUP BY cluster, msg_id"""


# The facts of messages of applications, with the place of the first visible copy and what other relations know of them.
_PLACED = f"""SELECT m.*, {number_at("place", 1)} AS visible_ms, coalesce({part("place", 2)}, '') AS broker_name,
    {number_at("place", 3)} AS queue_id, {number_at("place", 4)} AS queue_offset,
    coalesce({part("place", 5)}, '') AS place_id,
    CASE WHEN s.topic IS NULL THEN 0 ELSE 1 END AS scanned, s.scanned_ms AS scanned_ms,
    o.read_to_ms AS read_to_ms, {", ".join(f"e.{name} AS {name}" for name in END_COLUMNS)},
    CASE WHEN h.born_host IS NULL THEN 0 ELSE 1 END AS host_traced,
    coalesce(n.sent_count, 1) AS sent_count, coalesce(n.put_back_count, 0) AS put_back_count,
    coalesce(n.offered_count, 1) AS offered_count, n.topic_to_ms AS topic_last_ms, n.copies_to_ms AS copies_last_ms,
    CASE WHEN n.has_brokers = 1 THEN '' ELSE coalesce({part("place", 2)}, '') END AS sampled_broker,
    coalesce(n.stored_in, '') AS stored_in, coalesce(b.earlier_id, '') AS earlier_id, b.earlier_ms AS earlier_ms
  FROM (SELECT * REPLACE (coalesce(nullif({part("place", 6)}, ''), topic) AS topic) FROM message_facts) m
  LEFT JOIN repeated_sends n ON m.cluster = n.cluster AND m.msg_id = n.msg_id
  LEFT JOIN earlier_sends b ON m.cluster = b.cluster AND m.msg_id = b.msg_id
  LEFT JOIN scanned_topics s ON m.cluster = s.cluster AND m.topic = s.topic
  LEFT JOIN end_scans o ON m.cluster = o.cluster AND m.topic = o.topic
  LEFT JOIN ends e ON m.cluster = e.cluster AND m.msg_id = e.msg_id
  LEFT JOIN traced_hosts h ON m.cluster = h.cluster AND m.born_host = h.born_host
  WHERE m.topic = '' OR {business_topic("m.topic")}"""


def _messages(as_of_ms: int, settings: Settings) -> str:
    """Add the position of the visible copy, the due time and the codes; keep only topics of applications or unknown.

    whole_ms: the last sample of all groups that its broker knows, or of all brokers if no visible copy was read, or
    copies on several brokers. offered_to_ms: of its copies in its own topic; copies_to_ms: of all.
    """
    horizon = as_of_ms - settings.trace_delay_ms
    due = "coalesce(wait_due_ms, copy_due_ms, coalesce(stored_ms, acked_ms, born_ms) + delay_ms)"
    late = f"coalesce(visible_ms - due_ms >= {settings.delivered_late_ms}, false)"
    never_acked = "acked = 0 AND degraded = 0"
    send_codes = _codes(
        ("SEND_OK", "acked = 1"),
        ("SEND_DEGRADED", "degraded = 1"),
        ("SEND_SLOW", f"send_ms >= {settings.send_slow_ms}"),
        ("SEND_RETRIED", "try_count > 1"),
        ("SEND_FAILED", f"{never_acked} AND uncertain = 0 AND send_failed = 1 AND stored_ms IS NULL"
         " AND handed_ms IS NULL"),
        ("SEND_UNCERTAIN", f"{never_acked} AND NOT {OF_ANOTHER_SEND} AND (uncertain = 1 OR"
         " (send_failed = 1 AND (stored_ms IS NOT NULL OR handed_ms IS NOT NULL)))"),
    )  # fmt: skip
    message_codes = _codes(
        *((code, f"tx_state = '{code}'") for code in TX_CODES),
        (
            "SCHEDULED",
            f"visible_ms IS NULL AND handed_ms IS NULL AND due_ms > {as_of_ms} AND recall_state <> 'RECALLED'",
        ),
        ("DELIVERED_LATE", f"half = 0 AND {late}"),
        ("RECALLED", "recall_state = 'RECALLED'"),
        ("DUPLICATE_SEND", "sent_count > 1 OR earlier_id <> ''"),
    )
    return f"""
SELECT *, CASE WHEN has_send = 1 THEN '' WHEN coalesce(stored_ms, handed_ms) > {horizon} THEN 'TRACE_PENDING'
    WHEN trace_off = 1 THEN 'TRACE_OFF_AT_BROKER' WHEN born_host = '' OR host_traced = 1 THEN 'NO_SEND_RECORD'
    ELSE 'PRODUCER_NOT_TRACED' END AS send_lack,
  {send_codes} AS send_codes, {message_codes} AS message_codes
FROM (SELECT *, CASE WHEN NOT {HIDDEN} THEN first_offer_ms END AS offered_from_ms,
    CASE WHEN NOT {HIDDEN} THEN greatest(last_offer_ms, topic_last_ms) END AS offered_to_ms,
    CASE WHEN NOT {HIDDEN} THEN greatest(last_offer_ms, copies_last_ms) END AS copies_to_ms FROM (
  SELECT *, {", ".join(f"{sql} AS {name}" for name, sql in _offered(settings).items())},
    {tx_state(as_of_ms, settings)} AS tx_state, {RECALL_STATE} AS recall_state FROM (
  SELECT {_MESSAGE_COLUMNS}, {due} AS due_ms, w.whole_ms AS whole_ms, read_to_ms,
    {TX_SINCE_MS} AS tx_since_ms, {", ".join(END_COLUMNS)} FROM (
  {_PLACED}) AS placed
  LEFT JOIN (SELECT cluster AS in_cluster, broker_name AS of_broker, whole_ms FROM whole_samples) w
    ON cluster = w.in_cluster AND sampled_broker = w.of_broker) AS dated) AS ended) AS offered"""


_PARTS = ("place", "pub_acked", "try_acked")
"""Facts of which other columns are made."""
_FLAGS = ("degraded", "uncertain", "send_failed", "tries_missing", "has_pub", "send_closed", "waits", "half",
          "trace_off", "light_queues", "ungrouped", "tags_known", "try_count", "uncertain_tries", "answered_tries",
          "other_tries")  # fmt: skip
_MESSAGE_COLUMNS = ", ".join(
    [
        "cluster",
        "msg_id",
        "publish_hour",
        "visible_ms",
        "broker_name",
        "queue_id",
        "queue_offset",
        "place_id",
        "scanned",
    ]
    + ["scanned_ms", "host_traced", "sent_count", "put_back_count", "offered_count", "topic_last_ms"]
    + ["copies_last_ms", "sampled_broker", "stored_in", "earlier_id", "earlier_ms"]
    + [f"coalesce({n}, 0) AS {n}" if n in _FLAGS else n for n, *_ in _FACTS if n not in _PARTS]
    + ["coalesce(pub_acked, try_acked, 0) AS acked"]
    + ["CASE WHEN has_pub = 1 OR send_closed = 1 OR unfinished_ms IS NOT NULL THEN 1 ELSE 0 END AS has_send"]
)


def _codes(*conditions: tuple[str, str]) -> str:
    """SQL: the codes whose conditions are true, in this order, joined by commas."""
    texts = " || ".join(f"CASE WHEN {condition} THEN ',{code}' ELSE '' END" for code, condition in conditions)
    return f"substr({texts}, 2)"
