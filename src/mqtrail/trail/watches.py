"""open_ids: the changes that each open judgement waits for.

A judgement can change when its message gets new records, and when another input of its verdict changes: the time, the
offset of a group, its clients, samples. A row of `open_ids` contains these: the position that an offset must pass, the
time of a sample that can decide, the time at which a limit is reached. `due` compares them with the new state.

Changes that concern many settled messages (a group is seen for the first time, a loss of trace records is found) have
no rows here; `due` finds their messages in the results.
"""

from __future__ import annotations

from .context import ip
from .ends import TX_OPEN, TX_STATE
from .judgement import COPY_IS_LAST, LITE_AFTER_MS
from .messages import AWAITS_SAMPLE, copy_unread, has_code
from .pops import REVIVED_AFTER
from .results import OPEN_IDS
from .settings import Settings
from .stages import Stage

SETTLED = "GONE"
"""State in the only row of an id that no longer waits for anything."""

_OPEN = (
    "IN_FLIGHT", "HUNG", "WAITING", "NO_CONSUMER", "WAITING:HANDLER_GONE", "NO_CONSUMER:HANDLER_GONE",
    "WAITING:GROUP_NOT_TRACED", "NO_CONSUMER:GROUP_NOT_TRACED",
    "UNKNOWN:CLIENTS_NOT_SAMPLED", "UNKNOWN:STATE_STALE", "UNKNOWN:TRACE_PENDING", "UNKNOWN:OFFSETS_NOT_SAMPLED",
    "UNKNOWN:FILTER_SAMPLED_AT", "UNKNOWN:REMOVED_UNREAD", "UNKNOWN:HANDLER_GONE", "UNKNOWN:TRUNCATED",
    "UNKNOWN:POP_NOT_ACKED", "UNKNOWN:ACK_NOT_KNOWN",
)  # fmt: skip
"""States that depend on offsets and clients. Others change by new records or by changes that `due` finds in results."""


def watch_stages(as_of_ms: int, settings: Settings, *, only_until: bool) -> list[Stage]:
    """open_ids, without rows of settled ids. only_until: ids with attempts after as_of_ms are due next time.

    The stage `later_ids` finds these attempts in `attempts`.
    """
    later = [
        Stage("later_ids", _later_ids(as_of_ms), ("attempts",), partition_by=("cluster", "msg_id")),
    ]
    reads = ("group_states", "messages", *(("later_ids",) if only_until else ()))
    return [*(later if only_until else ()), Stage("open_ids", _open_ids(as_of_ms, settings, only_until), reads)]


def _later_ids(as_of_ms: int) -> str:
    return f"""
SELECT DISTINCT cluster, publish_hour, msg_id FROM attempts WHERE coalesce(start_ms, end_ms, 0) > {as_of_ms}"""


def _next(as_of_ms: int, *instants: str) -> str:
    """SQL: the earliest of some times that is after as_of_ms; NULL if there is none."""
    return f"least({', '.join(f'CASE WHEN {at} > {as_of_ms} THEN {at} END' for at in instants)})"


_BY_OFFSET = """(reported_count > 0 AND passed_now = 0 AND (consume_type = 'CONSUME_ACTIVELY'
  OR consume_type = '' AND sure_count = 0 AND reported_cost = 0))"""
"""The offset decides whether a success that only SubAfter reports counts: it must have passed the message."""


_POPPED = "pop_open = 1"
"""Time, clients, and how far its records are read decide: the next judgement looks again."""

_COPY_UNREAD = f"(stated LIKE 'CONSUMED%' AND {COPY_IS_LAST} AND retry_passed_now = 0)"
"""A copy in the retry topic that is not handed over yet: then its hand-over needs a record."""

_FAILED = "(stated = 'RETRYING' AND last_outcome = 'FAILED')"
"""Without a copy, a sample after the failure decides: whether the offset has passed the message."""


def _open_ids(as_of_ms: int, settings: Settings, only_until: bool) -> str:
    is_open = f"stated IN ({', '.join(repr(state) for state in _OPEN)})"
    of_groups = _of_groups(is_open, as_of_ms, settings)
    of_message = _of_message(as_of_ms, settings)
    of_transaction = {
        **of_message,
        "state": f"'{TX_STATE}'",
        "sample_ms": "tx_since_ms",
        "look_ms": _next(
            as_of_ms,
            f"tx_since_ms + {settings.trace_delay_ms}",
            f"end_asked_ms + {settings.trace_delay_ms}",
            f"CASE WHEN tx_state = 'TX_PENDING' THEN read_to_ms + {settings.state_age_ms_max + 1} END",
        ),
    }
    later = {
        **dict.fromkeys(("group_name", "topic", "state", "broker_name", "retry_broker", "holder"), "''"),
        **dict.fromkeys(("queue_id", "queue_offset", "retry_queue", "retry_offset", "sample_ms"), "NULL"),
        "as_of_ms": str(as_of_ms),
        "look_ms": str(as_of_ms + 1),
    }
    return f"""
SELECT * FROM (SELECT {OPEN_IDS.typed(of_groups)} FROM group_states
  WHERE {is_open} OR {_BY_OFFSET} OR stated = 'RETRYING' OR {_POPPED} OR {_COPY_UNREAD}) AS of_groups
WHERE state <> 'RETRYING' OR retry_offset IS NOT NULL OR look_ms IS NOT NULL
UNION ALL SELECT * FROM (SELECT {OPEN_IDS.typed(of_message)} FROM messages) AS of_message
WHERE look_ms IS NOT NULL OR sample_ms IS NOT NULL
UNION ALL SELECT {OPEN_IDS.typed(of_transaction)} FROM messages WHERE {TX_OPEN}{
        f'''
UNION ALL SELECT {OPEN_IDS.typed(later)} FROM later_ids'''
        if only_until
        else ""
    }"""


def _of_groups(is_open: str, as_of_ms: int, settings: Settings) -> dict[str, str]:
    """Return SQL by column: what the judgement of a group waits for."""
    look = _next(
        as_of_ms,
        f"visible_ms + {settings.trace_delay_ms}",
        f"coalesce(acked_ms, stored_ms) + {settings.trace_delay_ms}",
        f"unread_ms + {settings.trace_delay_ms}",
        f"retry_unread_ms + {settings.trace_delay_ms}",
        f"open_ms + {settings.hung_ms}",
        f"open_ms + greatest({settings.hung_ms}, coalesce(group_hung_ms, 0))",
        f"CASE WHEN {_POPPED} THEN {as_of_ms + 1} END",
        f"pop_acked_ms + {REVIVED_AFTER * settings.trace_delay_ms}",
        f"CASE WHEN last_outcome = 'FAILED' THEN last_end_ms + {settings.trace_delay_ms} END",
        f"CASE WHEN last_outcome = 'FAILED' THEN last_end_ms + {settings.next_attempt_ms_max + 1} END",
    )
    return {
        "topic": "message_topic",
        "as_of_ms": str(as_of_ms),
        "queue_offset": f"CASE WHEN {is_open} OR {_BY_OFFSET} OR {_FAILED} THEN queue_offset END",
        "retry_offset": f"CASE WHEN {is_open} OR retry_place_times = copy_times THEN retry_offset END",
        "holder": f"CASE WHEN NOT {is_open} OR open_ms IS NULL THEN '' WHEN open_client <> '' THEN open_client"
        f" WHEN open_host <> '' THEN 'ip:' || {ip('open_host')} ELSE '' END",
        "sample_ms": f"CASE WHEN {_BY_OFFSET} AND consume_type = '' THEN last_end_ms + {LITE_AFTER_MS}"
        f" WHEN {is_open} THEN open_ms WHEN {_FAILED} THEN last_end_ms END",
        "look_ms": look,
        "state": "split_part(stated, ':', 1)",
    }


def _of_message(as_of_ms: int, settings: Settings) -> dict[str, str]:
    """Return SQL by column: what the judgement of the message itself waits for."""
    delay_ms = settings.trace_delay_ms
    return {
        "group_name": "''",
        "as_of_ms": str(as_of_ms),
        "state": "''",
        "queue_offset": "NULL",
        "retry_broker": "''",
        "retry_queue": "NULL",
        "retry_offset": "NULL",
        "holder": "''",
        "broker_name": "sampled_broker",
        "sample_ms": f"CASE WHEN {AWAITS_SAMPLE} THEN copies_to_ms END",
        "look_ms": _next(
            as_of_ms,
            f"CASE WHEN {has_code('message_codes', 'SCHEDULED')} THEN due_ms END",
            f"CASE WHEN {copy_unread(settings)} THEN {as_of_ms + 1} END",
            f"CASE WHEN has_send = 0 THEN coalesce(stored_ms, handed_ms) + {delay_ms} END",
            f"CASE WHEN has_send = 1 AND send_closed = 0 THEN unfinished_ms + {delay_ms} END",
            f"CASE WHEN stored_ms IS NULL AND half = 0 THEN coalesce(acked_ms, handed_ms) + {delay_ms} END",
        ),
    }
