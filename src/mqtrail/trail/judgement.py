"""From facts to verdicts: the state of each group, its additional codes, and the records that it lacks.

    group_facts × messages → read_places × context → place_states (the place at which a group reads a message)
    group_facts × messages × place_states → group_evidence → group_states → loss_hits → group_verdicts

All joins of a query hold memory until its end, about 8 MB each, however few rows there are. So place_states is a table.

The order of the branches in `_states` is the definition: the first condition that holds gives the state.
"""

from __future__ import annotations

from .context import NOT_IN_ORDER, ip
from .ends import UNDECIDED
from .evidence import CLIENT_NOT_TRACED, CLIENT_VANISHED, OF_MESSAGES
from .kinds import quoted
from .overtaking import REASON as OVERTAKEN_REASON
from .packing import number_at, packed, padded, part
from .pops import POP_COLUMNS, POPPED_UNKNOWN, pop_is_open, pop_states, pops_known_stage, retry_topic
from .repeats import split_stages
from .settings import Settings
from .stages import Stage
from .unread import IS_REMOVED, NO_END, UNREAD_COLUMNS, unread_hits_stage, unread_states


def judgement_stages(as_of_ms: int, settings: Settings) -> list[Stage]:
    """unread_hits, overtakings, pops_known, dead_letters, read_places, place_states, group_evidence, group_states,
    loss_hits, send_splits, group_verdicts."""
    return [
        unread_hits_stage(),
        Stage("overtakings", "SELECT * FROM overtaken", ("overtaken",)),
        pops_known_stage(),
        Stage("dead_letters", _DEAD_LETTERS, ("group_copies",)),
        Stage("read_places", _READ_PLACES, ("group_facts", "messages", "group_places")),
        Stage("place_states", _PLACE_STATES, ("read_places", "filters", *_OF_GROUPS), is_table=True),
        Stage("group_evidence", _EVIDENCE, ("group_facts", "messages", "place_states", *_OF_MESSAGES)),
        Stage("group_states", _states(as_of_ms, settings), ("group_evidence",)),
        Stage("loss_hits", _loss_hits(as_of_ms, settings), ("group_states", "group_losses")),
        *split_stages(),
        Stage("group_verdicts", _verdicts(as_of_ms, settings), ("group_states", "loss_hits", "send_splits")),
    ]


def group_losses_stage() -> Stage:
    """Losses that can concern a group: losses of its known clients, unread ranges of the trace topic, and, if the group
    is traced, clients that vanished, and times in which it had clients without any record. host: the address of one
    that vanished."""
    return Stage(
        "group_losses",
        _GROUP_LOSSES,
        (
            "widest_losses",
            "live_clients",
            "handed_clients",
            "topic_groups",
            "traced_groups",
            "vanished_clients",
            "group_members",
        ),
    )


_OF_MESSAGES = ("unread_hits", "overtakings", "pops_known", "dead_letters")
_OF_GROUPS = (
    "topic_groups", "group_orders", "offsets_at", "group_clients", "offset_samples", "live_clients", "hung_limits",
    "group_limits", "traced_groups",
)  # fmt: skip


REDELIVERY_MS_MIN = 20
"""How long a message waits at least for its second delivery, after its first one to a client that was killed: the
others must notice that, share the queues and pull."""
LITE_AFTER_MS = 60_000
"""If the offset has not passed a message this long after its success, the success may be only that of a lite pull."""

_UNPLACED = "queue_offset IS NULL AND retry_offset IS NULL"
"""SQL: whether no copy was read that the group's offset could have passed: no open state is claimed then."""

COPY_IS_LAST = "(copy_times > coalesce(times_max, -1) AND retry_place_times = copy_times)"
"""SQL of group_evidence: whether a copy in the retry topic is newer than the last hand-over."""

_IN_PLACE = "(times_max <= 0 OR copy_times IS NULL)"
"""SQL of group_evidence: whether all hand-overs are of the message in its own queue. An ordered group retries there."""


def _asked(is_last: str = "true") -> str:
    """SQL of group_evidence: hand-overs that begin a round again because an attempt failed, or, in a group that has
    failures, may have failed. An ordered group retries in place, and another client that gets the queue counts the
    attempts from 0 again. Each failure asks for one hand-over, but not the last one, after which none came yet, or the
    message was dead; without copies those with attempts before them answer the others.

    is_last: whether the last hand-over by the clocks of clients counts as the last one.
    """
    return f"""CASE WHEN consume_order = '{NOT_IN_ORDER}' OR retry_copy_times IS NOT NULL THEN 0
    ELSE greatest(0, CASE WHEN handed_times_max > 0
      THEN open_count - CASE WHEN last_outcome = 'OPEN' AND {is_last} THEN 1 ELSE 0 END
        ELSE 0 END - later_hands + CASE WHEN first_failed_ms < last_ms THEN failure_count
        - CASE WHEN last_outcome = 'FAILED' AND {is_last} OR dead_ms < last_ms THEN 1 ELSE 0 END ELSE 0 END) END"""


def _order_known(settings: Settings) -> str:
    """SQL of group_evidence: whether it is known which hand-over was the last one: one client had all of them, or, by
    the broker's clock, records of another one came so much later than those of the success.
    """
    later = f"last_seen_ms > success_seen_ms + {settings.trace_delay_ms}"
    return f"(client_least = client_most OR coalesce({later}, false))"


_FIRST_REPORTED = "CASE WHEN reported_counts = 1 THEN first_reported END"
_FIRST_SUCCESS = f"least(coalesce(first_sure, {_FIRST_REPORTED}), coalesce({_FIRST_REPORTED}, first_sure))"

_OTHER = "e.is_other = 1"
_TOPIC, _VISIBLE_MS, _BROKER, _QUEUE, _OFFSET = (
    f"CASE WHEN {_OTHER} THEN e.{name} ELSE m.{name} END"
    for name in ("topic", "visible_ms", "broker_name", "queue_id", "queue_offset")
)
"""SQL: the place of the message for a group: in another topic if it reads only that (`repeats`)."""
_SENT, _OFFERED = (f"coalesce(e.{name}, m.{name})" for name in ("sent_count", "offered_count"))
_READY_MS = f"coalesce(CASE WHEN g.retry_place_times = g.times_max THEN g.retry_place_ms END, {_VISIBLE_MS}, 0)"
_OPEN_MS = f"""CASE WHEN g.open_start_ms IS NOT NULL
        THEN least(greatest(g.open_start_ms, {_READY_MS}), coalesce(g.open_seen_ms, g.open_start_ms)) END"""
"""SQL: when the last hand-over without an end began. The clock of its client can be wrong, so brokers' clocks bound it:
it is after its copy was stored, and before its record was."""

_READ_PLACES = f"""
SELECT g.cluster AS cluster, g.msg_id AS msg_id, g.group_name AS group_name, {_TOPIC} AS message_topic,
  {_VISIBLE_MS} AS visible_ms, {_BROKER} AS broker_name, {_QUEUE} AS queue_id, {_OFFSET} AS queue_offset,
  {_SENT} AS sent_count, greatest({_OFFERED}, {_SENT}) + g.put_back_retries AS offered_count,
  retry_place_times, retry_place_ms, retry_broker, retry_queue, retry_offset, retry_pop,
  last_outcome, open_client, open_host, {_OPEN_MS} AS open_ms
FROM (SELECT *, {number_at("retry_place", 1)} AS retry_place_times, {number_at("retry_place", 2)} AS retry_place_ms,
    coalesce({part("retry_place", 3)}, '') AS retry_broker, {number_at("retry_place", 4)} AS retry_queue,
    {number_at("retry_place", 5)} AS retry_offset, {part("retry_place", 6)} AS retry_pop,
    coalesce({part("last_hand_over", 2)}, '') AS last_outcome,
    coalesce({number_at("last_open", 2)}, last_ms) AS open_start_ms,
    nullif({number_at("last_open", 1)}, 0) AS open_seen_ms,
    coalesce({part("last_open", 3)}, {part("last_hand_over", 4)}, '') AS open_client,
    coalesce({part("last_open", 4)}, {part("last_hand_over", 5)}, '') AS open_host
  FROM group_facts) g
JOIN messages m ON g.cluster = m.cluster AND g.msg_id = m.msg_id
LEFT JOIN group_places e ON g.cluster = e.cluster AND g.msg_id = e.msg_id AND g.group_name = e.group_name"""

_PLACE_STATES = f"""
SELECT w.*, coalesce(t.message_model, '') AS sampled_model, coalesce(t.consume_type, '') AS consume_type,
  CASE WHEN coalesce(t.message_model, '') <> '' THEN 1 ELSE 0 END AS is_reader,
  coalesce(q.consume_order, '') AS consume_order,
  o.now_ms AS now_ms, o.now_offset AS now_offset, o.then_ms AS then_ms,
  CASE WHEN o.now_offset > w.queue_offset THEN 1 ELSE 0 END AS passed_now,
  CASE WHEN o.then_offset > w.queue_offset AND o.now_offset > w.queue_offset THEN 1 ELSE 0 END AS passed_then,
  r.now_ms AS retry_now_ms, r.then_ms AS retry_then_ms,
  CASE WHEN r.now_offset > w.retry_offset THEN 1 ELSE 0 END AS retry_passed_now,
  CASE WHEN r.then_offset > w.retry_offset AND r.now_offset > w.retry_offset THEN 1 ELSE 0 END AS retry_passed_then,
  c.live_count AS live_count, c.clients_sampled_ms AS clients_sampled_ms, s.offsets_sampled_ms AS offsets_sampled_ms,
  coalesce(l.live, 0) AS holder_lives, coalesce(f.excluded, 0) AS excluded, coalesce(f.filter_why, '') AS filter_why,
  f.filter_from_ms AS filter_from_ms, f.filter_to_ms AS filter_to_ms, coalesce(f.judged_by, '') AS judged_by,
  h.hung_ms AS group_hung_ms, a.handed_times_max AS handed_times_max,
  CASE WHEN k.group_name IS NULL THEN 0 ELSE 1 END AS is_traced
FROM read_places w
LEFT JOIN topic_groups t ON w.cluster = t.cluster AND w.message_topic = t.topic AND w.group_name = t.group_name
LEFT JOIN offsets_at o ON w.cluster = o.cluster AND w.group_name = o.group_name AND w.message_topic = o.topic
  AND w.broker_name = o.broker_name AND w.queue_id = o.queue_id
LEFT JOIN offsets_at r ON w.cluster = r.cluster AND w.group_name = r.group_name
  AND r.topic = {retry_topic("w.group_name", "w.retry_pop", "w.message_topic")}
  AND w.retry_broker = r.broker_name AND w.retry_queue = r.queue_id
LEFT JOIN group_orders q ON w.cluster = q.cluster AND w.group_name = q.group_name
LEFT JOIN group_clients c ON w.cluster = c.cluster AND w.group_name = c.group_name
LEFT JOIN offset_samples s ON w.cluster = s.cluster AND w.broker_name = s.broker_name
LEFT JOIN live_clients l ON w.cluster = l.cluster AND w.group_name = l.group_name
  AND l.client = CASE WHEN w.open_client <> '' THEN w.open_client ELSE 'ip:' || {ip("w.open_host")} END
LEFT JOIN filters f ON w.cluster = f.cluster AND w.msg_id = f.msg_id AND w.group_name = f.group_name
  AND w.message_topic = f.topic
LEFT JOIN hung_limits h ON w.cluster = h.cluster AND w.group_name = h.group_name
LEFT JOIN group_limits a ON w.cluster = a.cluster AND w.group_name = a.group_name
LEFT JOIN traced_groups k ON w.cluster = k.cluster AND w.group_name = k.group_name"""

# The attempts after which groups gave up a message, with the first and the last of these groups.
_DEAD_LETTERS = """
SELECT cluster, msg_id, dead_times, min(group_name) AS first_group, max(group_name) AS last_group
FROM group_copies WHERE dead_times > 0 GROUP BY cluster, msg_id, dead_times"""
_OF_DEAD_LETTER = """w.is_reader = 0
        AND (d.first_group <> g.group_name OR d.last_group <> g.group_name)
        AND coalesce(g.retry_times_min > g.times_min, true)"""
"""SQL: whether a group got the message from the dead-letter topic of another one, whose attempts it has."""

_EVIDENCE = f"""
SELECT *, {_FIRST_SUCCESS} AS first_success,
    sure_count + CASE WHEN reported_counts = 1 THEN reported_count ELSE 0 END AS success_count
FROM (
  SELECT *, CASE WHEN reported_count = 0 OR passed_now = 1 THEN 1 WHEN consume_type = 'CONSUME_ACTIVELY' THEN 0
      ELSE 1 END AS reported_counts,
    CASE WHEN consume_type = '' AND reported_count > 0 AND sure_count = 0 AND reported_cost = 0 AND passed_now = 0
      AND now_ms >= last_end_ms + {LITE_AFTER_MS} THEN 1 ELSE 0 END AS maybe_lite
  FROM (
    SELECT g.*, w.* EXCLUDE (cluster, msg_id, group_name, sampled_model), m.publish_hour AS publish_hour,
      m.send_start_ms AS send_start_ms, m.acked_ms AS acked_ms, m.stored_ms AS stored_ms, m.born_ms AS born_ms,
      m.waits AS waits, m.due_ms AS due_ms, m.scanned AS scanned,
      CASE WHEN {UNDECIDED} THEN 1 ELSE 0 END AS undecided, m.item_count AS sent_items,
      m.copy_count AS copy_count, greatest(m.acked, m.degraded) AS acked, m.trace_off AS trace_off,
      m.put_back_count + g.put_back_retries AS put_back_count,
      CASE WHEN m.stored_ms IS NOT NULL THEN w.sent_count END AS sent_max,
      CASE WHEN m.stored_ms IS NOT NULL OR (m.has_send = 1 AND m.item_count = 1) THEN 1 ELSE 0 END AS is_single,
      CASE WHEN w.is_reader = 1 THEN w.sampled_model WHEN g.copy_times > 0 OR g.times_max > 0
        OR p.pop_ms IS NOT NULL THEN 'CLUSTERING' ELSE '' END AS message_model,
      CASE WHEN {_OF_DEAD_LETTER} THEN g.times_min ELSE 0 END AS base_times,
      coalesce(y.later_id, '') AS later_id, y.later_ms AS later_ms, {UNREAD_COLUMNS},
      {", ".join(f"p.{name} AS {name}" for name in POP_COLUMNS)}
    FROM group_facts g
    JOIN messages m ON g.cluster = m.cluster AND g.msg_id = m.msg_id
    JOIN place_states w ON g.cluster = w.cluster AND g.msg_id = w.msg_id AND g.group_name = w.group_name
    LEFT JOIN unread_hits u ON g.cluster = u.cluster AND g.msg_id = u.msg_id AND g.group_name = u.group_name
    LEFT JOIN pops_known p ON g.cluster = p.cluster AND g.msg_id = p.msg_id AND g.group_name = p.group_name
    LEFT JOIN dead_letters d ON g.cluster = d.cluster AND g.msg_id = d.msg_id AND g.times_min = d.dead_times
    LEFT JOIN overtakings y ON g.cluster = y.cluster AND g.msg_id = y.msg_id AND g.group_name = y.group_name
    ) AS joined) AS typed"""


def _open_state(as_of_ms: int, settings: Settings) -> str:
    """The state of a message whose last delivery has no end."""
    ended = (
        "(retry_passed_{0} = 1 AND retry_place_times = times_max AND retry_{0}_ms > open_ms"
        f" OR {_IN_PLACE} AND passed_{{0}} = 1 AND {{0}}_ms > open_ms)"
    )
    return f"""CASE WHEN {ended.format("then")} THEN 'UNKNOWN:END_NOT_TRACED'
        WHEN {ended.format("now")} THEN 'UNKNOWN:TRACE_PENDING'
        WHEN {_UNPLACED} THEN 'UNKNOWN:POSITION_UNKNOWN'
        ELSE {_running_state(as_of_ms, settings)} END"""


def _running_state(as_of_ms: int, settings: Settings) -> str:
    """The same, if its place is known and the group's offset has not passed it."""
    fresh = as_of_ms - settings.state_age_ms_max
    hung = f"greatest({settings.hung_ms}, coalesce(group_hung_ms, 0))"
    return f"""CASE
        WHEN coalesce(clients_sampled_ms, 0) < open_ms AND {as_of_ms} - open_ms < {settings.hung_ms} THEN 'IN_FLIGHT'
        WHEN clients_sampled_ms IS NULL OR live_count IS NULL THEN 'UNKNOWN:CLIENTS_NOT_SAMPLED'
        WHEN clients_sampled_ms < {fresh} THEN 'UNKNOWN:STATE_STALE'
        WHEN holder_lives = 0 AND message_model = 'BROADCASTING' THEN 'UNKNOWN:END_NOT_TRACED'
        WHEN holder_lives = 0 AND message_model = '' THEN 'UNKNOWN:MESSAGE_MODEL_UNKNOWN'
        WHEN holder_lives = 0 AND {IS_REMOVED} THEN 'UNKNOWN:HANDLER_GONE'
        WHEN holder_lives = 0 AND live_count > 0 THEN 'WAITING:HANDLER_GONE'
        WHEN holder_lives = 0 THEN 'NO_CONSUMER:HANDLER_GONE'
        WHEN {as_of_ms} - open_ms >= {hung} THEN 'HUNG' ELSE 'IN_FLIGHT' END"""


def _states(as_of_ms: int, settings: Settings) -> str:
    """The state, followed by ':' and the name of its reason if it has one."""
    horizon = as_of_ms - settings.trace_delay_ms
    fresh = as_of_ms - settings.state_age_ms_max
    idle = f"""CASE WHEN clients_sampled_ms IS NULL OR live_count IS NULL THEN 'UNKNOWN:CLIENTS_NOT_SAMPLED'
        WHEN clients_sampled_ms < {fresh} THEN 'UNKNOWN:STATE_STALE'
        WHEN live_count > 0 THEN 'WAITING{{0}}' ELSE 'NO_CONSUMER{{0}}' END"""
    open_state = _open_state(as_of_ms, settings)
    state = f"""CASE
    WHEN dead_ms IS NOT NULL AND NOT (success_count > 0 AND {number_at("first_success", 1)} > dead_ms) THEN
        'DEAD_LETTERED'
    WHEN maybe_lite = 1 THEN 'UNKNOWN:LITE_PULL_POSSIBLE'
    WHEN success_count > 0 THEN 'CONSUMED'
    WHEN message_model = 'BROADCASTING' AND last_outcome <> 'OPEN' AND failure_count > 0 THEN
        'UNKNOWN:BROADCAST_FAILURE'
{pop_states(as_of_ms, settings, _running_state(as_of_ms, settings))}
{unread_states(horizon, retry=True)}
    WHEN {COPY_IS_LAST} AND retry_passed_then = 1
      THEN 'UNKNOWN:RETRY_PASSED_UNTRACED'
    WHEN {COPY_IS_LAST} AND retry_passed_now = 1
      THEN 'UNKNOWN:TRACE_PENDING'
    WHEN copy_times > coalesce(times_max, -1) AND doubted_count > 0 THEN 'UNKNOWN:ACK_NOT_KNOWN'
    WHEN copy_times > coalesce(times_max, -1) THEN 'RETRYING'
    WHEN last_outcome = 'FAILED' AND last_end_ms < {as_of_ms - settings.next_attempt_ms_max}
      THEN 'UNKNOWN:NEXT_ATTEMPT_NOT_SEEN'
    WHEN last_outcome = 'FAILED' AND passed_then = 1 AND then_ms > last_end_ms THEN 'UNKNOWN:NEXT_ATTEMPT_NOT_SEEN'
    WHEN last_outcome = 'FAILED' AND passed_now = 1 AND passed_then = 0 AND last_end_ms <= {horizon}
      THEN 'UNKNOWN:TRACE_PENDING'
    WHEN last_outcome = 'FAILED' AND message_model = '' THEN 'UNKNOWN:MESSAGE_MODEL_UNKNOWN'
    WHEN last_outcome = 'FAILED' AND {_UNPLACED} THEN 'UNKNOWN:POSITION_UNKNOWN'
    WHEN last_outcome = 'FAILED' THEN 'RETRYING'
    WHEN last_outcome IN ('OPEN', 'REPORTED') THEN {open_state}
    WHEN batch_handed IS NOT NULL AND batch_succeeded >= batch_items AND batch_handed = batch_succeeded THEN 'CONSUMED'
    WHEN batch_handed IS NOT NULL THEN 'UNKNOWN:BATCH_ITEM_UNKNOWN'
    WHEN undecided = 1 THEN 'UNKNOWN:TRANSACTION_NOT_KNOWN'
    WHEN maybe = 1 THEN 'UNKNOWN:GROUP_SEEN_LATER'
    WHEN excluded = 1 THEN 'FILTERED'
    WHEN filter_why = 'FILTER_SAMPLED_AT' AND passed_now = 1 AND is_traced = 1 AND visible_ms <= {horizon}
      AND unread_kind IS NULL THEN 'FILTERED:FILTER_SAMPLED_AT'
    WHEN {POPPED_UNKNOWN} AND unread_kind IS NOT NULL THEN 'UNKNOWN:POP_NOT_ACKED'
{unread_states(horizon, retry=False)}
    WHEN visible_ms IS NULL AND waits = 1 AND (scanned = 1 OR coalesce(due_ms > {as_of_ms}, true)) THEN
      {idle.format("")}
    WHEN visible_ms IS NULL AND sent_items > 1 THEN 'UNKNOWN:BATCH_NOT_JOINED'
    WHEN visible_ms IS NULL AND coalesce(acked_ms, stored_ms) > {horizon} THEN 'UNKNOWN:TRACE_PENDING'
    WHEN visible_ms IS NULL THEN 'UNKNOWN:POSITION_UNKNOWN'
    WHEN visible_ms > {horizon} THEN 'UNKNOWN:TRACE_PENDING'
    WHEN passed_then = 1 AND filter_why <> '' THEN 'UNKNOWN:' || filter_why
    WHEN passed_then = 1 AND trace_off = 1 THEN 'UNKNOWN:TRACE_OFF_AT_BROKER'
    WHEN passed_then = 1 AND is_traced = 0 THEN 'UNKNOWN:GROUP_NOT_TRACED'
    WHEN passed_then = 1 THEN 'UNKNOWN:PASSED_UNTRACED'
    WHEN passed_now = 1 THEN 'UNKNOWN:TRACE_PENDING'
    WHEN filter_why = 'FILTER_SAMPLED_AT' AND live_count > 0 THEN 'UNKNOWN:FILTER_SAMPLED_AT'
    WHEN offsets_sampled_ms IS NULL THEN 'UNKNOWN:OFFSETS_NOT_SAMPLED'
    WHEN offsets_sampled_ms < {fresh} THEN 'UNKNOWN:STATE_STALE'
    WHEN {POPPED_UNKNOWN} THEN 'UNKNOWN:POP_NOT_ACKED'
    WHEN is_traced = 0 THEN {idle.format(":GROUP_NOT_TRACED")}
    ELSE {idle.format("")} END"""
    return _with_missing(as_of_ms, state)


def _with_missing(as_of_ms: int, state: str) -> str:
    """SQL: group_states, and how many records of each kind the evidence lacks."""
    rounds = "greatest(coalesce(times_max, -1) + 1, coalesce(copy_times, 0)) - base_times"
    stated = f"""
SELECT * REPLACE (CASE WHEN stated LIKE 'CONSUMED%' AND {COPY_IS_LAST} AND retry_passed_now = 1
      AND retry_unread_kind IS NULL THEN copy_times + 1 - base_times ELSE rounds END AS rounds),
    split_part(stated, ':', 1) AS state, split_part(stated, ':', 2) AS why
FROM (SELECT *, {rounds} AS rounds, {state} AS stated FROM group_evidence) AS states"""
    return f"""
SELECT *,
    CASE WHEN {pop_is_open(as_of_ms)} THEN 1 ELSE 0 END AS pop_open,
    CASE WHEN message_model <> 'BROADCASTING' AND delivery_count > 0 AND round_count < rounds
      OR message_model <> 'BROADCASTING' AND delivery_count = 0 AND batch_handed IS NULL AND copy_times > 0
      THEN rounds - round_count ELSE 0 END AS rounds_missing,
    CASE WHEN open_count > 0 AND last_outcome = 'OPEN' AND state IN ('IN_FLIGHT', 'HUNG')
      THEN open_count - 1 ELSE open_count END AS ends_missing,
    CASE WHEN message_model <> 'BROADCASTING' AND first_hands < offered_count THEN offered_count - first_hands
      ELSE 0 END AS copies_missing
FROM ({stated}) AS stated_groups"""


_GROUP_LOSSES = f"""
SELECT DISTINCT l.cluster AS cluster, k.group_name AS group_name, l.client_id AS client_id, l.from_ms AS from_ms,
    l.to_ms AS to_ms, l.lost_count AS lost_count, l.reason AS reason, '' AS host
FROM widest_losses l JOIN (SELECT cluster, group_name, client FROM live_clients
  UNION SELECT cluster, group_name, client_id FROM handed_clients) k
  ON l.cluster = k.cluster AND l.client_id = k.client
UNION ALL
SELECT l.cluster, g.group_name, l.client_id, l.from_ms, l.to_ms, l.lost_count, l.reason, ''
FROM widest_losses l JOIN (SELECT DISTINCT cluster, group_name FROM topic_groups
  UNION SELECT cluster, group_name FROM traced_groups) g ON l.cluster = g.cluster
WHERE l.client_id = '' AND l.host <> '{OF_MESSAGES}'
UNION ALL
SELECT v.cluster, v.group_name, v.client_id, v.from_ms, v.to_ms, NULL, '{CLIENT_VANISHED}', v.host
FROM vanished_clients v JOIN traced_groups g ON v.cluster = g.cluster AND v.group_name = g.group_name
UNION ALL
SELECT cluster, group_name, '', min(from_ms), max(to_ms), NULL, '{CLIENT_NOT_TRACED}', ''
FROM (SELECT *, count(*) FILTER (is_first) OVER (PARTITION BY cluster, group_name ORDER BY from_ms, client_id) AS island
  FROM (SELECT m.*, coalesce(from_ms > max(to_ms) OVER (PARTITION BY m.cluster, m.group_name ORDER BY from_ms, client_id
      ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), true) AS is_first
    FROM group_members m SEMI JOIN traced_groups g ON m.cluster = g.cluster AND m.group_name = g.group_name
    ANTI JOIN handed_clients h ON m.cluster = h.cluster AND m.group_name = h.group_name
      AND h.client_id IN (m.client_id, 'ip:' || m.host)) AS silent) AS islands
GROUP BY cluster, group_name, island"""


def _loss_hits(as_of_ms: int, settings: Settings) -> str:
    """The latest loss that may explain the missing records of a group; otherwise the first client that vanished.

    Every open state claims that a record does not exist. It may be lost, or among records that will be read later. A
    message that was removed or passed may have been handed over at any time before. A client without any record may
    not trace at all. `loss` begins with 1 if it is known that something is lost. Of clients that vanished it is the
    first one, because those that vanish later change no verdict then.

    A hand-over whose record arrived can be the second one of its copy, if the copy waited for it and a client vanished
    meanwhile. Then `loss` begins with 2: it says nothing against the state.
    """

    def hit(is_known: str, loss: str, reason: str = "") -> str:
        name = f"'{reason}'" if reason else f"{loss}.reason"
        return packed(
            f"'{is_known}'", padded(f"{loss}.from_ms"), padded(f"{loss}.to_ms"), padded(f"{loss}.lost_count"), name
        )

    same = "c.cluster = l.cluster AND c.group_name = l.group_name"
    found = "SELECT c.cluster AS cluster, c.msg_id AS msg_id, c.group_name AS group_name"
    return f"""
WITH {_claims(as_of_ms, settings)}
vanished AS (SELECT * FROM group_losses WHERE reason = '{CLIENT_VANISHED}'),
silent AS (SELECT * FROM group_losses WHERE reason = '{CLIENT_NOT_TRACED}'),
firsts AS (
  SELECT *, min(vanish) OVER (PARTITION BY cluster, group_name ORDER BY handed_from_ms DESC) AS first FROM (
    SELECT c.cluster, c.msg_id, c.group_name, c.handed_from_ms, c.handed_to_ms, NULL AS vanish FROM claims c
    JOIN (SELECT DISTINCT cluster, group_name FROM vanished) l ON {same}
    WHERE c.runs = 0 AND c.handed_from_ms IS NOT NULL
    UNION ALL
    SELECT cluster, '', group_name, to_ms, NULL, struct_pack(from_ms := from_ms, to_ms := to_ms, lost_count := 0)
    FROM vanished) AS instants),
{_second_hand_overs(settings)}
SELECT cluster, msg_id, group_name, coalesce(max(hit) FILTER (hit LIKE '1%'), min(hit)) AS loss FROM (
  {found}, {hit("1", "l")} AS hit FROM claims c JOIN group_losses l ON {same}
    AND l.to_ms >= c.begin_ms AND l.from_ms <= c.end_ms AND l.reason NOT IN ('{CLIENT_VANISHED}', '{CLIENT_NOT_TRACED}')
    AND (l.client_id = '' OR c.runs = 0 OR c.open_client = '' OR l.client_id = c.open_client)
  UNION ALL
  {found}, {hit("0", "l")} FROM claims c JOIN vanished l ON {same} AND l.to_ms >= c.begin_ms
    AND CASE WHEN c.open_client <> '' THEN c.open_client = l.client_id ELSE c.open_ip = l.host END
  WHERE c.runs = 1
  UNION ALL
  {found}, {hit("0", "l")} FROM claims c JOIN silent l ON {same} AND l.to_ms >= c.handed_from_ms
    AND l.from_ms <= c.handed_to_ms
  WHERE c.runs = 0 AND c.handed_from_ms <= c.handed_to_ms
  UNION ALL
  {found}, {hit("0", "c.first", CLIENT_VANISHED)} FROM firsts c WHERE c.first.from_ms <= c.handed_to_ms
  UNION ALL
  {found}, {hit("2", "c.last", CLIENT_VANISHED)} FROM seconds c WHERE c.last.to_ms > c.ready_ms) AS hits
GROUP BY cluster, msg_id, group_name"""


def _claims(as_of_ms: int, settings: Settings) -> str:
    """SQL of a CTE: states that are proven by the absence of a record, and missing records, each with their times."""
    begin = f"""coalesce(CASE WHEN e.state IN {_RUNNING} THEN e.open_ms WHEN e.state = 'RETRYING'
      THEN e.last_end_ms END, e.visible_ms, e.first_ms, e.stored_ms, e.acked_ms)"""
    end = f"""CASE WHEN e.state IN {NOT_ENDED} THEN {as_of_ms}
      ELSE least({as_of_ms}, greatest(coalesce(e.last_end_ms, e.last_ms, {begin}) + {settings.loss_window_ms},
        CASE WHEN e.state IN {NEVER_HANDED} THEN coalesce(e.retry_unread_ms, e.unread_ms, 0) ELSE 0 END)) END"""
    return f"""claims AS (
  SELECT e.cluster, e.msg_id, e.group_name, e.open_client, {ip("e.open_host")} AS open_ip,
    CASE WHEN e.state IN {_RUNNING} THEN 1 ELSE 0 END AS runs, {begin} AS begin_ms, {end} AS end_ms,
    CASE WHEN e.state IN ('WAITING', 'NO_CONSUMER') THEN coalesce(e.visible_ms, e.first_ms)
      WHEN e.state = 'RETRYING' THEN coalesce({_NEXT_ATTEMPT_MS}, {begin}) ELSE {begin} END AS handed_from_ms,
    CASE WHEN e.state IN {NEVER_HANDED} AND {_HAD_NO_CLIENT} THEN coalesce(e.retry_unread_ms, e.unread_ms)
      ELSE {end} END AS handed_to_ms
  FROM group_states e
  WHERE e.state IN ('EXPIRED', 'SKIPPED') OR e.state = 'LOST' AND NOT {_HAD_NO_CLIENT}
    OR e.state IN {NOT_ENDED}
    OR e.rounds_missing > 0 OR e.ends_missing > 0 OR e.beginless_count > 0
    OR e.state = 'UNKNOWN'
      AND e.why IN ('PASSED_UNTRACED', 'GROUP_NOT_TRACED', 'END_NOT_TRACED', 'RETRY_PASSED_UNTRACED')),"""


def _second_hand_overs(settings: Settings) -> str:
    """SQL of a CTE: hand-overs of copies that waited for them, each with the last client that vanished before."""
    return f"""seconds AS (
  SELECT *, max(vanish) OVER (PARTITION BY cluster, group_name ORDER BY handed_ms) AS last FROM (
    SELECT w.* FROM (
      SELECT cluster, msg_id, group_name, coalesce(visible_ms, stored_ms, acked_ms) AS ready_ms,
        first_ms AS handed_ms, NULL AS vanish FROM group_states WHERE message_model <> 'BROADCASTING'
      UNION ALL
      SELECT cluster, msg_id, group_name, retry_place_ms, last_ms, NULL FROM group_states
      WHERE retry_place_times = times_max AND message_model <> 'BROADCASTING') w
    SEMI JOIN vanished v ON w.cluster = v.cluster AND w.group_name = v.group_name
    WHERE handed_ms >= ready_ms + {REDELIVERY_MS_MIN}
    UNION ALL
    SELECT cluster, '', group_name, NULL, from_ms + {settings.trace_delay_ms},
      struct_pack(from_ms := from_ms, to_ms := to_ms, lost_count := 0) FROM vanished) AS instants)"""


_NEXT_ATTEMPT_MS = f"""CASE WHEN coalesce(e.copy_times, -1) <= coalesce(e.times_max, -1) THEN NULL
  WHEN e.retry_place_times = e.copy_times THEN {number_at("e.retry_place", 2)} ELSE e.retry_due_ms END"""
"""SQL of group_states e: since when the next attempt can be handed over, if its copy was read."""
_HAD_NO_CLIENT = "coalesce(coalesce(e.retry_unread_live, e.unread_live) = 0, false)"
"""SQL: whether no client of the group could get the message. Then lost trace records have nothing to say about it."""
_RUNNING = "('IN_FLIGHT', 'HUNG')"
NEVER_HANDED = ("EXPIRED", "SKIPPED", "LOST")
NOT_ENDED = ("WAITING", "NO_CONSUMER", "IN_FLIGHT", "HUNG", "RETRYING")
LOSS_NAME = "replace(loss_name, ':', '_')"
"""SQL: the name of a loss as a reason, without ':', which names of reasons must not contain."""
LOSS_TO_MS = f"nullif(loss_to_ms, {NO_END})"
"""SQL: the end of a loss; NULL: the loss has not ended yet."""
OPEN_STATES = (*NOT_ENDED, "UNKNOWN")
"""States that a later judgement can change without new records."""


def _verdicts(as_of_ms: int, settings: Settings) -> str:
    """The final state, codes, reasons and times; columns of VERDICTS and `lacks` (1: INCOMPLETE)."""
    success = {"start": number_at("first_success", 1), "end": number_at("first_success", 2)}
    t0 = "CASE WHEN is_split = 1 THEN split_begun_ms ELSE send_start_ms END"
    t1 = "CASE WHEN is_split = 1 THEN split_stored_ms ELSE coalesce(stored_ms, acked_ms) END"
    t2 = f"CASE WHEN is_split = 1 THEN split_visible_ms ELSE coalesce(visible_ms, {t1}) END"
    t3 = f"CASE WHEN is_split = 1 THEN coalesce(split_first_ms, {success['start']}, first_ms) ELSE first_ms END"
    return f"""
SELECT cluster, publish_hour, msg_id, group_name, message_topic AS topic, {as_of_ms} AS as_of_ms,
  final_state AS state, final_state{_added_codes(settings)} AS codes, substr(''{_reasons(settings)}, 2) AS reasons,
  CASE WHEN final_state IN {OPEN_STATES} THEN 1 ELSE 0 END AS is_open,
  message_model, delivery_count, success_count, failure_count, CASE WHEN times_max >= 0 THEN times_max END AS
      retry_times,
  coalesce(first_ms, batch_start_ms) AS first_delivered_ms, coalesce(last_ms, batch_start_ms) AS last_delivered_ms,
  CASE WHEN {_DONE} THEN {success["start"]} END AS success_start_ms,
  CASE WHEN {_DONE} THEN coalesce({success["end"]}, batch_end_ms, {_ACKED_MS}) END AS done_ms,
  coalesce(retry_due_ms, CASE WHEN final_state = 'RETRYING' AND pop_open = 1 THEN pop_until_ms END) AS retry_due_ms,
  dead_ms, {_DEAD_CAUSE} AS dead_cause, coalesce({part("last_failure", 2)}, '') AS detail,
  coalesce({part("last_hand_over", 3)}, '') AS client, visible_ms,
  {t1} - {t0} AS to_stored_ms, {t2} - {t1} AS delay_ms, {t3} - {t2} AS to_delivered_ms,
  CASE WHEN {_DONE} THEN {success["start"]} - {t3} END AS retry_ms,
  CASE WHEN {_DONE} THEN {success["end"]} - {success["start"]} END AS handler_ms,
  CASE WHEN {_DONE} THEN {success["end"]} - {t0} END AS total_ms,
  CASE WHEN {_DONE} THEN cost_ms END AS handler_cost_ms,
  CASE WHEN final_state = 'UNKNOWN' OR final_why IN ({quoted(_UNPROVEN)}) OR {_UNTRACED}
      OR {_FILTER_IN_DOUBT} OR rounds_missing > 0 OR loss IS NOT NULL OR beginless_count > 0 OR ends_missing > 0
      OR copies_missing > 0 OR {_DUPLICATE_IN_DOUBT} OR {_order_in_doubt(settings)}
      OR {_failure_in_doubt(settings)}
    THEN 1 ELSE 0 END AS lacks
FROM (
  SELECT e.*, h.loss AS loss, {number_at("h.loss", 2)} AS loss_from_ms, {number_at("h.loss", 3)} AS loss_to_ms,
    {number_at("h.loss", 4)} AS loss_count, coalesce({part("h.loss", 5)}, '') AS loss_name,
    CASE WHEN e.state IN ('IN_FLIGHT', 'HUNG', 'LOST') AND {part("h.loss", 1)} IN ('0', '1')
      OR e.state IN ('EXPIRED', 'SKIPPED') AND {part("h.loss", 1)} = '1' THEN 'UNKNOWN' ELSE e.state END AS final_state,
    CASE WHEN e.state IN {_RUNNING} AND {part("h.loss", 1)} IN ('0', '1') THEN 'END_MAY_BE_LOST' ELSE e.why END
      AS final_why,
    CASE WHEN s.msg_id IS NULL THEN 0 ELSE 1 END AS is_split, s.split_begun_ms AS split_begun_ms,
    s.split_stored_ms AS split_stored_ms, s.split_visible_ms AS split_visible_ms, s.split_first_ms AS split_first_ms
  FROM group_states e LEFT JOIN loss_hits h
    ON e.cluster = h.cluster AND e.msg_id = h.msg_id AND e.group_name = h.group_name
  LEFT JOIN send_splits s ON e.cluster = s.cluster AND e.msg_id = s.msg_id AND e.group_name = s.group_name)
  AS explained"""


_DONE = "final_state = 'CONSUMED'"
_UNPROVEN = ("GROUP_NOT_TRACED", "FILTER_SAMPLED_AT", "POP_ACKED", "POP_NOT_ACKED")
"""Reasons of states that also say what is not known."""
_ACKED_MS = "CASE WHEN final_why = 'POP_ACKED' THEN pop_acked_ms END"
_UNTRACED = "final_state IN ('EXPIRED', 'LOST') AND is_traced = 0"
_FILTER_IN_DOUBT = "final_state IN ('WAITING', 'NO_CONSUMER') AND filter_why <> ''"
_CAN_DUPLICATE = "message_model = 'CLUSTERING' AND is_single = 1"
_PUT_AGAIN = "put_back_count + suspended_count"
_AGAIN = f"{_PUT_AGAIN} + {_asked()}"
_DUPLICATE_IN_DOUBT = f"{_CAN_DUPLICATE} AND sent_max IS NULL AND round_hands_max > sent_count + {_AGAIN}"


def _handed_again(settings: Settings) -> str:
    """SQL of group_states: whether the message was handed out again although no failed attempt asked for it."""
    return f"{_CAN_DUPLICATE} AND round_hands_max > sent_max + {_PUT_AGAIN} + {_asked(_order_known(settings))}"


def _order_in_doubt(settings: Settings) -> str:
    """SQL of group_states: whether it was, by the clocks of several clients alone."""
    return f"{_CAN_DUPLICATE} AND round_hands_max > sent_max + {_AGAIN} AND NOT ({_handed_again(settings)})"


_RETRIED = """(coalesce(success_times, pop_times) > base_times AND (is_reader = 1 OR copy_times IS NOT NULL
    OR pop_times > 0 OR success_times > times_min))"""
"""SQL of group_states: whether an earlier attempt of the group failed. A group of which it is not known what it reads
can have the number of attempts from the dead-letter topic of another one."""


def _failed_before(settings: Settings) -> str:
    """SQL of group_states: whether a hand-over of the same round failed before the first success. An ordered group
    retries in place, and another client that gets the queue counts from 0 again. The clocks of several clients may
    differ; but if nothing else asked for the last hand-over, the failure did.
    """
    is_before = f"coalesce(first_failed_ms <= {number_at('first_success', 1)}, false)"
    return f"({_CAN_FAIL_BEFORE} AND {is_before} AND NOT ({_failure_in_doubt(settings)}))"


def _failure_in_doubt(settings: Settings) -> str:
    """SQL of group_states: whether only the clocks of several clients show if a failure was before the success."""
    asked = f"({_handed_again(settings)} OR {_order_in_doubt(settings)})"
    return f"{_CAN_FAIL_BEFORE} AND NOT {_RETRIED} AND client_least <> client_most AND {asked}"


# Only a copy shows that an operator put the message back: then nothing failed before, of this send.
_CAN_FAIL_BEFORE = (
    f"message_model = 'CLUSTERING' AND {_DONE} AND first_failed_ms IS NOT NULL AND {_PUT_AGAIN} = 0 "
    "AND sent_max IS NOT NULL"
)
_OVERTAKEN = f"{_DONE} AND later_id <> ''"
_DEAD_CAUSE = """CASE WHEN dead_ms IS NULL THEN '' WHEN recorded_cause <> '' THEN recorded_cause
        WHEN ordered_mark = 1 THEN 'ORDERED_GIVE_UP' WHEN dead_times <= handed_times_max THEN 'BY_HANDLER'
        WHEN dead_times > 1 THEN 'ATTEMPTS_EXHAUSTED' ELSE '' END"""
_UNREAD = {"sampled_ms": "coalesce(retry_unread_ms, unread_ms)"}
_PARAMETERS: dict[str, dict[str, str]] = {
    "PASSED_UNTRACED": {"offset": "now_offset", "sampled_ms": "now_ms"},
    "GROUP_NOT_TRACED": {"offset": "now_offset", "sampled_ms": "now_ms"},
    "GROUP_SEEN_LATER": {"known_ms": "known_ms"},
    "FILTER_SAMPLED_AT": {"sampled_ms": "coalesce(filter_to_ms, filter_from_ms)"},
    "FILTER_CHANGED": {"from_ms": "filter_from_ms", "to_ms": "filter_to_ms"},
    "HANDLER_GONE": {"handed_ms": "open_ms", "sampled_ms": "clients_sampled_ms"},
    "STATE_STALE": {"sampled_ms": "least(clients_sampled_ms, offsets_sampled_ms)"},
    "REMOVED_UNREAD": _UNREAD,
    "TOPIC_DELETED": _UNREAD,
    "OFFSET_MOVED": _UNREAD,
    "TRUNCATED": _UNREAD,
    "RECREATED": _UNREAD,
    "SHORTENED": _UNREAD,
    "POP_ACKED": {"acked_ms": "pop_acked_ms"},
    "POP_GIVEN_UP": {"acked_ms": "pop_acked_ms"},
    "POP_NOT_ACKED": {"popped_ms": "pop_ms", "until_ms": "pop_until_ms"},
    "BATCH_ITEM_UNKNOWN": {"handed": "batch_handed", "succeeded": "batch_succeeded", "items": "batch_items"},
}
"""Reason of a state → its parameters. Other reasons of states have no parameters."""


_BY_FILTER = "final_why <> '' AND final_why = filter_why"


def _added_codes(settings: Settings) -> str:
    """SQL: the codes added to the state, each preceded by a comma."""
    return "".join(
        f" || CASE WHEN {condition} THEN ',{code}' ELSE '' END"
        for code, condition in (
            ("CONSUMED_SLOW", f"{_DONE} AND cost_ms >= {settings.consume_slow_ms}"),
            ("CONSUMED_AFTER_RETRY", f"{_DONE} AND ({_RETRIED} OR {_failed_before(settings)})"),
            ("RESENT", "put_back_count > 0"),
            ("DUPLICATE_DELIVERY", _handed_again(settings)),
            ("DUPLICATE_PROCESSING", f"{_CAN_DUPLICATE} AND success_count > 1 + put_back_count"),
            ("OUT_OF_ORDER", _OVERTAKEN),
        )
    )


def _reasons(settings: Settings) -> str:
    """SQL: the reasons with their parameters, each preceded by a semicolon."""
    whys = " ".join(
        f"WHEN '{why}' THEN {named(quoted_text(why), **parameters)}" for why, parameters in _PARAMETERS.items()
    )
    stored_again = f"{_CAN_DUPLICATE} AND round_hands_max > 1 AND copy_count > 1"
    return "".join(
        f" || CASE WHEN {condition} THEN ';' || {text} ELSE '' END"
        for condition, text in (
            ("final_why <> ''", f"CASE final_why {whys} ELSE final_why END"),
            (f"final_state = 'FILTERED' OR {_BY_FILTER}", "judged_by"),
            (f"{_FILTER_IN_DOUBT} AND final_why <> filter_why", "filter_why || ';' || judged_by"),
            (_UNTRACED, named("'GROUP_NOT_TRACED'", **_PARAMETERS["GROUP_NOT_TRACED"])),
            ("rounds_missing > 0", named("'ATTEMPTS_NOT_TRACED'", expected="rounds", found="round_count")),
            ("copies_missing > 0", named("'COPIES_NOT_TRACED'", stored="offered_count", found="first_hands")),
            (_DUPLICATE_IN_DOUBT, "'TOPIC_NOT_SCANNED'"),
            (f"{_order_in_doubt(settings)} OR {_failure_in_doubt(settings)}", "'CLOCKS_NOT_COMPARED'"),
            ("beginless_count > 0", named("'BEGIN_NOT_TRACED'", count="beginless_count")),
            ("ends_missing > 0 AND final_why <> 'END_NOT_TRACED'", named("'END_NOT_TRACED'", count="ends_missing")),
            (
                "loss IS NOT NULL",
                named(LOSS_NAME, from_ms="loss_from_ms", to_ms=LOSS_TO_MS, count="nullif(loss_count, 0)"),
            ),
            (f"{_DONE} AND delivery_count = 0 AND final_why = ''", named("'BATCH_COUNTED'", items="batch_items")),
            (f"{_DONE} AND cost_is_average = 1", "'COST_IS_AVERAGE'"),
            (stored_again, named("'STORED_AGAIN'", copies="copy_count")),
            (_OVERTAKEN, named(f"'{OVERTAKEN_REASON}'", msg_id="later_id", finished_ms="later_ms")),
            ("final_state = 'DEAD_LETTERED' AND recorded_cause = '' AND ordered_mark = 0", "'CAUSE_INFERRED'"),
        )
    )


def quoted_text(text: str) -> str:
    """SQL: a constant text; it must not contain quotes."""
    return f"'{text}'"


def named(name: str, **parameters: str) -> str:
    """SQL: NAME(parameter=value,…), with '?' for NULL."""
    values = " || ',' || ".join(
        f"'{key}=' || coalesce(cast({value} AS string), '?')" for key, value in parameters.items()
    )
    return f"{name} || '(' || {values} || ')'"
