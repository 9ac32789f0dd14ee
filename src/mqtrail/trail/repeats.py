"""Messages that were stored more than once: by producers (DUPLICATE_SEND) or put back by an operator (RESENT).

    message_facts, group_copies → repeated_ids ┐
                                      resolved ┴→ repeated_rows → topic_sends → repeated_sends → messages
                                                  topic_sends, messages, topic_groups → group_places → group_facts
                                                  repeated_rows, group_states → send_splits → group_verdicts

Few messages are, so the stages after `repeated_ids` are small.

Who stored a copy: a client's retry after a timeout, or a second send of the same object, is a second place in the topic
or a second Pub with another offset id. The broker itself repeats waiting and half messages: its copies have the born
time and born host of the send that they come from. A resent copy has ORIGIN_MESSAGE_ID, which only a copy that was sent
back has, and no Pub; in a retry topic it has 0 attempts, which a copy that was sent back has not.

An id that was forwarded to another topic is one message in each. The groups of each topic get it, and each group has
the place of the topic that it reads: that of the message if it reads that one.
"""

from __future__ import annotations

from .kinds import HALF_KINDS, VISIBLE_KINDS, business_topic, quoted
from .packing import number_at
from .stages import Stage

VISIBLE_COPY = f"kind = 'STORED' AND stored_kind IN ({quoted(VISIBLE_KINDS)}) AND offset_msg_id <> ''"
"""SQL: copies that were read. The broker's record, all that is known of others, does not show ORIGIN_MESSAGE_ID."""
_IS_HALF = f"stored_kind IN ({quoted((*HALF_KINDS, 'COMMIT'))})"
_IS_DELAYED = "stored_kind IN ('DELAY_WAIT', 'DELAYED')"
"""SQL: whether a copy shows that the message was delayed. Brokers take the level away when they deliver it."""
_WAITS = quoted(("DELAY_WAIT", *HALF_KINDS))
_ACKNOWLEDGED = "kind = 'SEND' AND stored_kind <> 'HALF' AND offset_msg_id <> ''"


def repeat_stages() -> list[Stage]:
    """repeated_ids, repeated_rows, topic_sends, repeated_sends: from a message's own rows only."""
    return [
        Stage("repeated_ids", _REPEATED_IDS, ("message_facts", "group_copies")),
        Stage("repeated_rows", _REPEATED_ROWS, ("resolved", "repeated_ids")),
        Stage("topic_sends", _TOPIC_SENDS, ("repeated_rows",)),
        Stage("repeated_sends", _REPEATED_SENDS, ("topic_sends",)),
    ]


def group_places_stage() -> Stage:
    """Of messages that are in several topics: the place of each group that reads one of them.

    is_other 1: the place is in another topic than the message's. expects 2: the group was known when the copy was
    offered, or its first sampled offset is not past it; 1: it is not known whether it was there; 0: it came later.
    sent_count, offered_count: of all topics that it read then.
    """
    return Stage("group_places", _GROUP_PLACES, ("topic_sends", "messages", "topic_groups", "offsets_at"))


def split_stages() -> list[Stage]:
    """send_splits."""
    return [
        Stage("repeated_hands", _REPEATED_HANDS, ("resolved", "repeated_ids")),
        Stage("send_splits", _SEND_SPLITS, ("repeated_rows", "repeated_hands", "group_states")),
    ]


_REPEATED_IDS = """
SELECT cluster, msg_id FROM message_facts WHERE copy_count > 1 OR resent_count > 0 OR pub_units > 1
UNION SELECT cluster, msg_id FROM group_copies WHERE put_back_count > 0"""

SUSPENDED_RETRY = "stored_kind = 'RETRY' AND retry_times = 0 AND origin_msg_id = ''"
"""SQL: whether a copy in a retry topic is one that a POP consumer suspended: its attempts are not counted."""
PUT_BACK_RETRY = "stored_kind = 'RETRY' AND retry_times = 0 AND origin_msg_id <> ''"
"""SQL: whether a copy in a retry topic was put there by an operator."""

_NAMESPACED = "max(CASE WHEN instr(r.topic, '%') > 1 THEN r.topic END) OVER (PARTITION BY r.cluster, r.msg_id)"
"""SQL: the topic with a namespace (4.x) of an id. Records of its clients leave the namespace out."""

# put_back: an operator's copy. is_half, is_delayed: the message is one of a transaction, or was delayed.
_REPEATED_ROWS = f"""
SELECT *, CASE WHEN {PUT_BACK_RETRY} THEN 1 WHEN {VISIBLE_COPY} AND stored_kind = 'RESENT'
    AND count(*) FILTER ({_ACKNOWLEDGED}) OVER (PARTITION BY cluster, msg_id, offset_msg_id) = 0
    THEN 1 ELSE 0 END AS put_back,
  max(CASE WHEN {_IS_HALF} THEN 1 ELSE 0 END) OVER (PARTITION BY cluster, msg_id) AS is_half,
  max(CASE WHEN {_IS_DELAYED} THEN 1 ELSE 0 END) OVER (PARTITION BY cluster, msg_id) AS is_delayed
FROM (SELECT r.cluster AS cluster, r.msg_id AS msg_id, r.kind AS kind, r.stored_kind AS stored_kind,
    CASE WHEN ends_with({_NAMESPACED}, '%' || r.topic) THEN {_NAMESPACED} ELSE r.topic END AS topic,
    r.offset_msg_id AS offset_msg_id, r.start_ms AS start_ms, r.end_ms AS end_ms, r.born_ms AS born_ms,
    r.client_host AS client_host, r.retry_times AS retry_times, r.origin_msg_id AS origin_msg_id,
    r.broker_name AS broker_name, r.queue_id AS queue_id, r.queue_offset AS queue_offset, r.tags AS tags,
    CASE WHEN r.kind = 'STORED' THEN r.group_name ELSE '' END AS group_name
  FROM resolved r JOIN repeated_ids i ON r.cluster = i.cluster AND r.msg_id = i.msg_id
  WHERE r.kind IN ('SEND', 'SEND_TRY') OR r.kind = 'STORED' AND (r.group_name = '' OR {PUT_BACK_RETRY})) AS own"""

# first: the first visible copy in the topic. in_topic: whether the message was sent to the topic or is stored in it.
_TOPIC_SENDS = f"""
SELECT cluster, msg_id, topic, greatest(
    count(*) FILTER ({VISIBLE_COPY} AND put_back = 0 AND is_half = 0 AND is_delayed = 0),
    count(DISTINCT born_ms || '@' || client_host) FILTER ({VISIBLE_COPY} AND put_back = 0),
    count(DISTINCT offset_msg_id) FILTER ({_ACKNOWLEDGED} AND is_half = 0)) AS sent_count,
  count(*) FILTER (put_back = 1 AND group_name = '') AS put_back_count,
  count(*) FILTER ({VISIBLE_COPY}) AS offered_count,
  min(struct_pack(visible_ms := start_ms, broker_name := broker_name, queue_id := queue_id,
    queue_offset := queue_offset)) FILTER ({VISIBLE_COPY}) AS first,
  max(start_ms) FILTER ({VISIBLE_COPY}) AS last_ms, max(end_ms) FILTER ({_ACKNOWLEDGED}) AS acked_ms,
  min(broker_name) FILTER ({VISIBLE_COPY}) AS broker_least, max(broker_name) FILTER ({VISIBLE_COPY}) AS broker_most,
  min(tags) FILTER ({VISIBLE_COPY}) AS tags_least, max(tags) FILTER ({VISIBLE_COPY}) AS tags_most,
  {business_topic()} AND (count(*) FILTER ({VISIBLE_COPY}) > 0 OR count(*) FILTER ({_ACKNOWLEDGED}) > 0) AS in_topic
FROM repeated_rows GROUP BY cluster, msg_id, topic"""

# An id that was forwarded to another topic is one message in each.
_REPEATED_SENDS = """
SELECT cluster, msg_id, max(sent_count) AS sent_count, max(put_back_count) AS put_back_count,
    max(offered_count) AS offered_count, max(last_ms) AS copies_to_ms, min_by(last_ms, first) AS topic_to_ms,
    CASE WHEN min(broker_least) <> max(broker_most) THEN 1 ELSE 0 END AS has_brokers,
    CASE WHEN count(*) FILTER (in_topic) > 1 THEN
      string_agg(';STORED_IN(topic=' || topic || ')', '' ORDER BY topic) FILTER (in_topic) ELSE '' END AS stored_in
FROM topic_sends GROUP BY cluster, msg_id"""

_OFFERED_MS = "coalesce(s.last_ms, s.acked_ms)"
_WAS_THERE = "coalesce(s.first.visible_ms, s.acked_ms) >= g.known_ms OR o.first_offset <= s.first.queue_offset"
_MAY_BE_THERE = f"""{_OFFERED_MS} > g.since_ms
        OR g.reads_back = 1 AND coalesce(o.first_offset > s.first.queue_offset,
          s.first IS NULL AND s.acked_ms < g.known_ms)"""

_GROUP_PLACES = f"""
SELECT cluster, msg_id, group_name, place.is_other AS is_other, place.topic AS topic, place.known_ms AS known_ms,
  place.first.visible_ms AS visible_ms, place.first.broker_name AS broker_name, place.first.queue_id AS queue_id,
  place.first.queue_offset AS queue_offset, place.last_ms AS last_ms, 2 - place.rank AS expects,
  sent_count, offered_count
FROM (SELECT cluster, msg_id, group_name,
    min(struct_pack(came_later := rank = 2, is_other := is_other, rank := rank, first := first, last_ms := offered_ms,
      topic := topic, known_ms := known_ms)) AS place,
    sum(sent_count) FILTER (rank < 2 OR is_other = 0) AS sent_count,
    sum(offered_count) FILTER (rank < 2 OR is_other = 0) AS offered_count
  FROM (SELECT s.*, g.group_name AS group_name, g.known_ms AS known_ms, {_OFFERED_MS} AS offered_ms,
      CASE WHEN s.topic = m.topic THEN 0 ELSE 1 END AS is_other,
      CASE WHEN {_WAS_THERE} THEN 0 WHEN {_MAY_BE_THERE} THEN 1 ELSE 2 END AS rank
    FROM (SELECT *, count(*) OVER (PARTITION BY cluster, msg_id) AS topic_count
      FROM topic_sends WHERE in_topic) s
    JOIN messages m ON s.cluster = m.cluster AND s.msg_id = m.msg_id
    JOIN topic_groups g ON s.cluster = g.cluster AND s.topic = g.topic
    LEFT JOIN offsets_at o ON s.cluster = o.cluster AND g.group_name = o.group_name AND s.topic = o.topic
      AND s.first.broker_name = o.broker_name AND s.first.queue_id = o.queue_id
    WHERE s.topic_count > 1) AS readers
  GROUP BY cluster, msg_id, group_name) AS placed"""

_REPEATED_HANDS = """
SELECT r.cluster AS cluster, r.msg_id AS msg_id, r.group_name AS group_name, r.start_ms AS start_ms
FROM resolved r JOIN repeated_ids i ON r.cluster = i.cluster AND r.msg_id = i.msg_id
WHERE r.kind = 'HANDLED' AND r.start_ms IS NOT NULL"""

# The sends of a message: copies that became visible, without such copies its acknowledged sends. begun_ms: when the
# client began it, by the clock that also made the born time; NULL: without a record.
_SENDS = f"""
SELECT v.cluster AS cluster, v.msg_id AS msg_id, v.topic AS topic, v.group_name AS group_name,
    v.start_ms AS visible_ms,
    least(min(w.start_ms) FILTER (w.stored_kind IN ({_WAITS}) AND w.born_ms = v.born_ms), v.start_ms) AS stored_ms,
    min(w.start_ms) FILTER (v.put_back = 0 AND w.kind <> 'STORED'
      AND v.born_ms BETWEEN w.start_ms - 1 AND w.end_ms + 1) AS begun_ms
  FROM (SELECT * FROM repeated_rows WHERE {VISIBLE_COPY} OR {PUT_BACK_RETRY}) v
  JOIN repeated_rows w ON v.cluster = w.cluster AND v.msg_id = w.msg_id
  GROUP BY v.cluster, v.msg_id, v.topic, v.group_name, v.offset_msg_id, v.start_ms, v.born_ms
  UNION ALL
  SELECT cluster, msg_id, topic, '', end_ms, end_ms, start_ms FROM repeated_rows
  WHERE {_ACKNOWLEDGED}
    AND (cluster, msg_id) NOT IN (SELECT (cluster, msg_id) FROM repeated_rows WHERE {VISIBLE_COPY})"""

_HANDED_MS = f"coalesce({number_at('g.first_success', 1)}, g.first_ms)"

# The latency split of a group is that of one send: of the last one that its first success can come from.
_SEND_SPLITS = f"""
SELECT s.cluster AS cluster, s.msg_id AS msg_id, s.group_name AS group_name, s.chosen.visible_ms AS split_visible_ms,
    s.chosen.stored_ms AS split_stored_ms, s.chosen.begun_ms AS split_begun_ms,
    coalesce(min(h.start_ms) FILTER (h.start_ms >= s.chosen.visible_ms), min(h.start_ms)) AS split_first_ms
FROM (SELECT g.cluster AS cluster, g.msg_id AS msg_id, g.group_name AS group_name,
    max(struct_pack(place := CASE WHEN s.visible_ms <= {_HANDED_MS} THEN s.visible_ms ELSE -s.visible_ms END,
      visible_ms := s.visible_ms, stored_ms := s.stored_ms, begun_ms := s.begun_ms)) AS chosen
  FROM group_states g JOIN ({_SENDS}) s ON g.cluster = s.cluster AND g.msg_id = s.msg_id AND g.message_topic = s.topic
    AND s.group_name IN ('', g.group_name)
  WHERE g.delivery_count > 0 AND s.visible_ms IS NOT NULL
  GROUP BY g.cluster, g.msg_id, g.group_name) s
LEFT JOIN repeated_hands h ON s.cluster = h.cluster AND s.msg_id = h.msg_id AND s.group_name = h.group_name
GROUP BY s.cluster, s.msg_id, s.group_name, s.chosen"""
