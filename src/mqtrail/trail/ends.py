"""Outcomes of messages that consumers do not see: transactions, and recalls of timer messages.

    resolved → ends (one row per message with such a record) → messages

The broker's copies decide, not what a producer asked for. A broker appends a half message again at each check. It
writes an op record only after it accepted a commit or a rollback, and it stores the committed copy before that. So an
op record of any copy means a rollback if every message of the topic was read and there is no visible copy.
Source: EndTransactionProcessor, TransactionalMessageServiceImpl, RecallMessageProcessor, apache/rocketmq broker/.
"""

from __future__ import annotations

from mqtrail.wire import HALF_TOPIC, OP_HALF_TOPIC, TIMER_TOPIC

from .evidence import RANGE_NOT_READ
from .kinds import HALF_KINDS, quoted
from .packing import number_at, packed, padded
from .settings import Settings
from .stages import Stage

_IS_HALF = f"stored_kind IN ({quoted(HALF_KINDS)})"
_PLACE = packed(padded("start_ms"), padded("physical_offset"))
_COLUMNS = {
    "half_ms": f"min(start_ms) FILTER ({_IS_HALF})",
    "half_place": f"max({_PLACE}) FILTER ({_IS_HALF})",
    "half_brokers": f"list(DISTINCT broker_name) FILTER ({_IS_HALF})",
    "topic_read": "max(CASE WHEN stored_kind = 'HALF_READ' THEN 1 ELSE 0 END)",
    "op_ms": "max(start_ms) FILTER (stored_kind = 'OP')",
    "op_brokers": "list(DISTINCT broker_name) FILTER (stored_kind = 'OP')",
    "given_up_place": f"max({_PLACE}) FILTER (stored_kind = 'CHECK_MAX')",
    "end_asked_ms": "max(end_ms) FILTER (kind = 'END_TRANSACTION')",
    "recall_ms": "min(start_ms) FILTER (stored_kind = 'RECALL')",
    "recall_due_ms": "max(due_ms) FILTER (stored_kind = 'RECALL')",
    "timer_due_ms": f"max(due_ms) FILTER (stored_kind = 'DELAY_WAIT' AND stored_topic = '{TIMER_TOPIC}')",
    "recall_traced": "max(CASE WHEN kind = 'RECALL' AND succeeded = 1 THEN 1 ELSE 0 END)",
}
END_COLUMNS = (*_COLUMNS, "given_up_ms")
"""Columns of `ends` besides the key."""


def ends_stage() -> Stage:
    """The records of transactions and recalls of a message: from its own rows only."""
    facts = ", ".join(f"{sql} AS {name}" for name, sql in _COLUMNS.items())
    return Stage(
        "ends",
        f"""
SELECT *, {number_at("given_up_place", 1)} AS given_up_ms FROM (
  SELECT cluster, msg_id, {facts} FROM resolved
  WHERE kind IN ('END_TRANSACTION', 'RECALL') OR kind = 'STORED' AND (
      stored_kind IN ({quoted((*HALF_KINDS, "OP", "CHECK_MAX", "RECALL"))}) OR stored_topic = '{TIMER_TOPIC}')
  GROUP BY cluster, msg_id) AS facts""",
        ("resolved",),
    )


def end_scans_stage() -> Stage:
    """Of each topic that is read, the last sample up to which its messages were read; read_to_ms: op records, too."""
    return Stage(
        "end_scans",
        f"""
SELECT s.cluster AS cluster, s.topic AS topic, s.scanned_ms AS topic_to_ms,
    CASE WHEN o.topic IS NOT NULL THEN least(s.scanned_ms, o.scanned_ms) END AS read_to_ms
FROM scanned_topics s LEFT JOIN scanned_topics o ON s.cluster = o.cluster AND o.topic = '{OP_HALF_TOPIC}'""",
        ("scanned_topics",),
    )


_REACHED = "(visible_ms IS NOT NULL OR handed_ms IS NOT NULL)"
_IS_ENDED = "coalesce(list_has_all(op_brokers, half_brokers), false)"
_IS_GIVEN_UP = "coalesce(given_up_place > half_place, false)"
_NO_OPS = "read_to_ms IS NULL AND op_ms IS NULL"
"""SQL: whether op records cannot be read. Brokers of 4.9 have no route to them; they write one at once for each end."""
TX_SINCE_MS = f"CASE WHEN {_IS_ENDED} THEN op_ms WHEN {_IS_GIVEN_UP} THEN given_up_ms ELSE half_ms END"
"""SQL: the time up to which messages and op records must be read before a transaction is judged."""


_TX_END_MS = f"CASE WHEN {_IS_ENDED} THEN op_ms WHEN {_IS_GIVEN_UP} THEN given_up_ms ELSE {1 << 62} END"
TX_TOPICS = (HALF_TOPIC, OP_HALF_TOPIC)
"""Topics of every transaction."""
TX_RANGE_LOST = f"""half = 1 AND EXISTS (SELECT 1 FROM losses l WHERE l.cluster = dated.cluster
      AND l.reason IN ('{RANGE_NOT_READ}' || dated.topic, {quoted(RANGE_NOT_READ + topic for topic in TX_TOPICS)})
      AND l.from_ms <= {_TX_END_MS} AND l.to_ms >= half_ms)"""
"""SQL: whether a range of the topic, of half messages or of op records of a transaction's time was not read."""


def tx_state(as_of_ms: int, settings: Settings) -> str:
    """SQL: the code of a transaction; '' if it is not one or not known."""
    horizon = as_of_ms - settings.trace_delay_ms
    return f"""CASE WHEN half = 0 THEN '' WHEN {_REACHED} THEN 'TX_COMMITTED'
      WHEN {TX_RANGE_LOST} THEN ''
      WHEN topic_read = 1 AND tx_since_ms <= read_to_ms AND tx_since_ms <= {horizon} THEN CASE
        WHEN {_IS_ENDED} THEN 'TX_ROLLED_BACK' WHEN {_IS_GIVEN_UP} THEN 'TX_CHECKS_EXHAUSTED'
        WHEN end_asked_ms > {horizon} OR read_to_ms < {as_of_ms - settings.state_age_ms_max} THEN ''
        ELSE 'TX_PENDING' END
      WHEN topic_read = 1 AND {_IS_GIVEN_UP} AND {_NO_OPS} AND given_up_ms <= scanned_ms AND given_up_ms <= {horizon}
        THEN 'TX_CHECKS_EXHAUSTED'
      ELSE '' END"""


_RECALLS = """(recall_ms < recall_due_ms AND (timer_due_ms IS NULL OR timer_due_ms = recall_due_ms))"""

RECALL_STATE = f"""CASE WHEN {_REACHED} OR recall_ms IS NULL AND coalesce(recall_traced, 0) = 0 THEN ''
      WHEN scanned = 1 AND {_RECALLS} THEN 'RECALLED' ELSE 'ASKED' END"""
"""SQL: RECALLED, ASKED (a recall that is not known to have removed the message), or ''."""

TX_STATE = "TX"
"""State in open_ids of a transaction that is not settled."""
TX_CODES = ("TX_COMMITTED", "TX_ROLLED_BACK", "TX_PENDING", "TX_CHECKS_EXHAUSTED")
HIDDEN = "(tx_state NOT IN ('', 'TX_COMMITTED') OR recall_state = 'RECALLED')"
"""SQL over messages: whether the message is known to be invisible, so that it is offered to no group."""
UNDECIDED = "(half = 1 AND tx_state = '')"
"""SQL over messages: whether the end of a transaction is not known."""
TX_LACKS = "CASE WHEN half_ms IS NULL THEN 'half' ELSE 'read' END"
"""SQL over messages: what is missing. half: a copy in the half topic. read: its messages or op records since then."""
TX_OPEN = f"(tx_state = 'TX_PENDING' OR {UNDECIDED} AND half_ms IS NOT NULL)"
"""SQL over messages: whether time or further reading can change what is known of a transaction."""
