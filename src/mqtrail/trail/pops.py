"""Copies that POP gives out again: in which group's retry topic they are.

The retry topic of POP is %RETRY%group_topic, with newer brokers %RETRY%group+topic. Both parts may contain '_', so
the group is known only with the topic of the message. Brokers write no RETRY_TOPIC into these copies (`kinds`).
Source: PopReviveService.reviveRetry and KeyBuilder, apache/rocketmq broker/ and common/.
"""

from __future__ import annotations

from mqtrail.wire import RETRY_PREFIX

from .kinds import starts_with

_JOINTS = ("_", "+")
"""Between group and topic in the names of POP's retry topics."""


def _ends_with_topic(name: str, topic: str) -> str:
    """SQL: whether the name of a retry topic, without its prefix, ends as that of POP for this topic."""
    tests = " OR ".join(f"right({name}, length({topic}) + 1) = '{joint}' || {topic}" for joint in _JOINTS)
    return f"({topic} <> '' AND length({name}) > length({topic}) + 1 AND ({tests}))"


_IS_POP = _ends_with_topic("r.group_name", "m.topic")

# The group of each copy, send-back and dead letter. `pop` is what is between group and topic in the name of the copy's
# retry topic. A broker's record of a copy (Stored) does not show whether POP made it. So if neither the copy itself was
# read nor a send-back, and the name can be that of a group or of POP, the copy counts for no group.
COPIES_OF_GROUPS = f"""
SELECT r.* EXCLUDE (group_name, is_sent_back),
    CASE WHEN r.stored_kind = 'RETRY_POP' AND {_IS_POP} THEN left(r.group_name, -1 - length(m.topic))
      WHEN r.stored_kind = 'RETRY_POP' AND m.topic = '' THEN ''
      WHEN r.stored_kind = 'RETRY' AND r.body_crc IS NULL AND NOT is_sent_back AND {_IS_POP} THEN ''
      ELSE r.group_name END AS group_name,
    CASE WHEN r.stored_kind = 'RETRY_POP' AND {_IS_POP} THEN left(right(r.group_name, length(m.topic) + 1), 1) ELSE ''
      END AS pop
FROM (SELECT *, bool_or(kind = 'SENT_BACK') OVER (PARTITION BY cluster, msg_id, group_name) AS is_sent_back
  FROM resolved WHERE kind IN ('STORED', 'SENT_BACK', 'DEAD_LETTERED') AND group_name <> '') r
JOIN message_facts m ON r.cluster = m.cluster AND r.msg_id = m.msg_id"""


def retry_topic(group: str, pop: str, topic: str) -> str:
    """SQL: the retry topic of a group; pop: what joins group and topic in its name, '' if POP did not make it."""
    return f"'{RETRY_PREFIX}' || {group} || CASE WHEN coalesce({pop}, '') = '' THEN '' ELSE {pop} || {topic} END"


def retry_topics(group: str, topic: str) -> str:
    """SQL, for IN: all retry topics that a group can have for a topic."""
    names = [f"'{RETRY_PREFIX}' || {group}", *(f"'{RETRY_PREFIX}' || {group} || '{one}' || {topic}" for one in _JOINTS)]
    return ", ".join(names)


def of_retry_topic() -> str:
    """SQL condition: `topic` is a retry topic of `group_name`, or of a group whose name begins like it."""
    return f"({starts_with('topic', RETRY_PREFIX)} AND starts_with(substr(topic, {len(RETRY_PREFIX) + 1}), group_name))"
