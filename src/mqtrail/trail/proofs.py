"""Claims that a proof examines: what shows each one, and what keeps it from being excluded.

A claim is about subjects: messages, or pairs of a message and a group. Each subject shows it (FOUND), excludes it
(covered), or does neither, for a reason. Messages and pairs with equal properties are counted together, as profiles,
so that a claim is evaluated over few rows.

Jepsen's checker of queues has the same categories: attempted, acknowledged, ok, recovered, lost, duplicated. It reads
every message of a test; here each count comes with what is not covered.
Source: total-queue, jepsen-io/jepsen jepsen.checker.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from .context import IN_ORDER, NOT_IN_ORDER, group_orders_sql, ip
from .judgement import OPEN_STATES


class ProofResult(StrEnum):
    """What a proof says, of messages in a lake or of two copies of the same data."""

    FOUND = "FOUND"
    NONE = "NONE"  # everything was covered
    CANNOT_TELL = "CANNOT_TELL"  # nothing was found, and not everything was covered

    @property
    def words(self) -> str:
        """Return it for a sentence."""
        return self.lower().replace("_", " ")


MESSAGES, PAIRS = "proof_messages", "proof_pairs"
"""Relations of subjects: `message_subjects` and `pair_subjects`."""
MESSAGE_PROFILE = ("send_codes", "codes", "reasons", "is_acked", "has_copy", "is_attempted", "timing")
PAIR_PROFILE = ("state", "codes", "reasons", "message_model", "was_there", "is_single", "order_lack")
COUNT: Final = "subject_count"
"""Column of profiles: how many subjects have these properties."""


def _names(reasons: str) -> str:
    """SQL: the names of reasons, without their parameters, joined by ';'."""
    return f"CASE WHEN {reasons} = '' THEN '' ELSE regexp_replace({reasons}, '[(][^)]*[)]', '', 'g') END"


_ACKED = "regexp_matches(t.send_codes, 'SEND_OK|SEND_DEGRADED')"
_HAS_COPY = "t.stored_ms IS NOT NULL"


def message_subjects(messages: str, early_ms: int) -> str:
    """SQL: the messages, with the columns of MESSAGE_PROFILE. messages: rows of TRAJECTORIES, as t.

    early_ms: a message that is visible so long before it is due is early.
    """
    timing = f"""CASE WHEN t.due_ms IS NULL THEN '' WHEN t.visible_ms <= t.due_ms - {early_ms} THEN 'EARLY'
      WHEN contains(t.message_codes, 'DELIVERED_LATE') THEN 'LATE' WHEN t.visible_ms IS NOT NULL THEN 'IN_TIME'
      WHEN contains(t.message_codes, 'SCHEDULED') THEN 'SCHEDULED' ELSE 'NOT_VISIBLE' END"""
    return f"""
SELECT t.cluster AS cluster, t.msg_id AS msg_id, '' AS group_name, t.send_codes AS send_codes, t.message_codes AS codes,
  {_names("t.reasons")} AS reasons, {_ACKED} AS is_acked, {_HAS_COPY} AS has_copy,
  t.send_start_ms IS NOT NULL AS is_attempted, {timing} AS timing
FROM {messages}"""


_QUEUE = ("topic", "broker_name", "queue_id")
_ORDER_LACK = f"""CASE WHEN o.consume_order IS NULL THEN 'ORDER_NOT_KNOWN'
    WHEN o.consume_order = '{NOT_IN_ORDER}' THEN '{NOT_IN_ORDER}' WHEN t.batch_id <> '' THEN 'BATCH_NOT_COMPARED'
    WHEN t.queue_offset IS NULL THEN 'COPY_NOT_READ'
    WHEN t.copy_count > 1 OR contains(v.codes, 'RESENT') THEN 'STORED_AGAIN'
    WHEN h.cluster IS NOT NULL THEN 'CLOCKS_NOT_COMPARED' ELSE '' END"""


def pair_subjects(verdicts: str, messages: str, clients: str) -> str:
    """SQL: the pairs, with the columns of PAIR_PROFILE.

    verdicts: rows of VERDICTS, by name. messages: those of TRAJECTORIES that are asked about. clients: rows of CLIENTS.
    order_lack: why the pair was not compared with later messages, or NOT_IN_ORDER; '': it was.
    """
    place = ", ".join(f"t.{name}" for name in _QUEUE)
    same = " AND ".join(f"t.{name} = h.{name}" for name in _QUEUE)
    host = f"CASE WHEN contains(v.client, '@') THEN split_part(v.client, '@', 1) ELSE {ip('v.client')} END"
    pairs = f"{verdicts} AS v JOIN {messages} AS t ON v.cluster = t.cluster AND v.msg_id = t.msg_id"
    of_group = "JOIN group_orders AS o ON v.cluster = o.cluster AND v.group_name = o.group_name"
    return f"""
WITH group_orders AS ({group_orders_sql(clients)}),
several_hosts AS (SELECT v.cluster, v.group_name, {place} FROM {pairs} {of_group} AND o.consume_order = '{IN_ORDER}'
  WHERE v.client <> '' GROUP BY v.cluster, v.group_name, {place} HAVING min({host}) <> max({host}))
SELECT v.cluster AS cluster, v.msg_id AS msg_id, v.group_name AS group_name, v.state AS state, v.codes AS codes,
  {_names("v.reasons")} AS reasons, v.message_model AS message_model, {_ACKED} OR {_HAS_COPY} AS was_there,
  {_HAS_COPY} OR t.send_codes <> '' AS is_single, {_ORDER_LACK} AS order_lack
FROM {pairs} LEFT {of_group}
LEFT JOIN several_hosts AS h ON v.cluster = h.cluster AND v.group_name = h.group_name AND {same}
WHERE v.group_name <> ''"""


def profiles(subjects: str) -> str:
    """SQL: the profiles of MESSAGES or PAIRS, with COUNT."""
    names = ", ".join(MESSAGE_PROFILE if subjects == MESSAGES else PAIR_PROFILE)
    return f"SELECT {names}, count(*) AS {COUNT} FROM {subjects} GROUP BY ALL"


@dataclass(frozen=True, slots=True)
class Part:
    """Subjects of a claim. about, found: SQL conditions. open: SQL, why one is not covered; '': it is."""

    subjects: str  # MESSAGES or PAIRS
    about: str
    found: str
    open: str


@dataclass(frozen=True, slots=True)
class Claim:
    """name: as printed, in the plural. codes: those that show it; '' means that no code does. parts: its subjects."""

    name: str
    meaning: str
    codes: tuple[str, ...]
    parts: tuple[Part, ...]


def _has(*codes: str) -> str:
    return f"list_has_any(string_split(codes, ','), {list(codes)})"


_FIRST_REASON = "coalesce(nullif(split_part(reasons, ';', 1), ''), 'NO_REASON_GIVEN')"
_UNTRACED = (
    "nullif(regexp_extract(reasons, '(GROUP_NOT_TRACED|ATTEMPTS_NOT_TRACED|BEGIN_NOT_TRACED|END_NOT_TRACED)'), '')"
)
_STILL_OPEN = tuple(state for state in OPEN_STATES if state != "UNKNOWN")

_ANY_GROUP = Part(
    MESSAGES,
    "regexp_matches(reasons, 'GROUPS_NOT_KNOWN|GROUP_NOT_NAMED')",
    "false",
    "regexp_extract(reasons, 'GROUPS_NOT_KNOWN|GROUP_NOT_NAMED')",
)
"""Messages of which other groups may exist: nothing is known about those."""

_HANDED = f"""CASE WHEN state = 'UNKNOWN' THEN {_FIRST_REASON} WHEN message_model = '' THEN 'MESSAGE_MODEL_UNKNOWN'
  WHEN NOT is_single THEN 'COPY_NOT_READ' ELSE coalesce({_UNTRACED}, '') END"""
_CLUSTERING = "message_model <> 'BROADCASTING' AND state <> 'FILTERED'"


def _of_deliveries(name: str, meaning: str, code: str) -> Claim:
    part = Part(PAIRS, _CLUSTERING, _has(code), _HANDED)
    return Claim(name, meaning, (code,), (part, _ANY_GROUP))


CLAIMS: Final = (
    Claim(
        "lost",
        "acknowledged or stored, and gone before a group got it",
        ("LOST",),
        (
            Part(
                PAIRS,
                "was_there",
                _has("LOST"),
                f"CASE WHEN state = 'UNKNOWN' THEN {_FIRST_REASON} WHEN state IN {_STILL_OPEN} THEN state ELSE '' END",
            ),
            _ANY_GROUP,
        ),
    ),
    Claim(
        "expired unread",
        "removed by the broker's retention before a group read it",
        ("EXPIRED",),
        (
            Part(
                PAIRS,
                "was_there",
                _has("EXPIRED"),
                f"CASE WHEN state = 'UNKNOWN' THEN {_FIRST_REASON} ELSE '' END",
            ),
            _ANY_GROUP,
        ),
    ),
    Claim(
        "offsets ahead of processing",
        "the group's offset was moved past it, and no handler got it",
        ("SKIPPED",),
        (
            Part(
                PAIRS,
                "message_model <> 'BROADCASTING'",
                _has("SKIPPED"),
                f"CASE WHEN state = 'UNKNOWN' THEN {_FIRST_REASON} ELSE '' END",
            ),
            _ANY_GROUP,
        ),
    ),
    Claim(
        "duplicate sends",
        "stored more than once by producers",
        ("DUPLICATE_SEND",),
        (
            Part(
                MESSAGES,
                "true",
                _has("DUPLICATE_SEND"),
                "CASE WHEN has_copy OR contains(send_codes, 'SEND_FAILED') THEN '' "
                "ELSE coalesce(nullif(regexp_extract(reasons, 'TOPIC_NOT_SCANNED|COPY_NOT_FOUND|COPY_PENDING'), ''), "
                "'COPY_NOT_READ') END",
            ),
        ),
    ),
    _of_deliveries(
        "duplicate deliveries", "handed to a group again although no failed attempt asked for it", "DUPLICATE_DELIVERY"
    ),
    _of_deliveries("duplicate processing", "more than one handler of a group succeeded", "DUPLICATE_PROCESSING"),
    Claim(
        "out of order",
        "an ordered group finished a later message of the same sharding key or queue first",
        ("OUT_OF_ORDER",),
        (
            Part(
                PAIRS,
                f"{_CLUSTERING} AND order_lack <> '{NOT_IN_ORDER}'",
                _has("OUT_OF_ORDER"),
                f"CASE WHEN order_lack <> '' THEN order_lack WHEN state IN {_STILL_OPEN} THEN state ELSE {_HANDED} END",
            ),
            _ANY_GROUP,
        ),
    ),
    Claim(
        "delays early or late",
        "visible before it was due, or too late after it",
        (),
        (
            Part(
                MESSAGES,
                "timing <> ''",
                "timing IN ('EARLY', 'LATE')",
                "CASE WHEN timing IN ('SCHEDULED', 'NOT_VISIBLE') THEN timing ELSE '' END",
            ),
        ),
    ),
)
"""Every claim, the worst first."""


def evaluation(claim: Claim, counted: Mapping[str, str]) -> str:
    """SQL: is_found, why, COUNT of a claim. counted: MESSAGES and PAIRS -> the relation of its profiles."""
    parts = " UNION ALL ".join(
        f"SELECT {part.found} AS is_found, CASE WHEN {part.found} THEN '' ELSE {part.open} END AS why, {COUNT} "
        f"FROM {counted[part.subjects]} WHERE {part.about}"
        for part in claim.parts
    )
    return f"SELECT is_found, why, sum({COUNT})::bigint AS {COUNT} FROM ({parts}) AS parts GROUP BY is_found, why"


def examples(claim: Claim, count_max: int) -> str:
    """SQL: cluster, msg_id, group_name of subjects that show a claim."""
    parts = " UNION ALL ".join(
        f"SELECT cluster, msg_id, group_name FROM {part.subjects} WHERE {part.about} AND {part.found}"
        for part in claim.parts
    )
    return f"SELECT * FROM ({parts}) AS parts ORDER BY cluster, msg_id, group_name LIMIT {count_max}"


WORDS: Final = {
    "attempted": "is_attempted",
    "acknowledged": "is_acked",
    "recovered": "contains(send_codes, 'SEND_UNCERTAIN') AND has_copy",
}
"""Jepsen's words for sends -> conditions on profiles of MESSAGES."""
