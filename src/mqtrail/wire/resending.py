"""Copies of stored messages that are sent again, for example of dead letters."""

from collections.abc import Mapping
from typing import Final

from .pop_info import pop_retry_topic, pop_topic_of
from .properties import (
    PROPERTY_CONSUME_START_TIME,
    PROPERTY_CRC32,
    PROPERTY_DELAY,
    PROPERTY_MAX_OFFSET,
    PROPERTY_MIN_OFFSET,
    PROPERTY_ORIGIN_MESSAGE_ID,
    PROPERTY_REAL_QID,
    PROPERTY_REAL_TOPIC,
    PROPERTY_RETRY_TOPIC,
    PROPERTY_TIMER_DELAY_MS,
    PROPERTY_TIMER_DELAY_SEC,
    PROPERTY_TIMER_DELIVER_MS,
    PROPERTY_TRAN_MSG,
)
from .topics import RETRY_PREFIX, retry_topic
from .values import Message, MessageExt

__all__ = ["copy_for_topic", "origin_topic", "popped_topic", "resend_target", "resent_copy"]

_OF_THE_COPY: Final = frozenset(
    {
        PROPERTY_CONSUME_START_TIME,
        PROPERTY_DELAY,
        PROPERTY_MAX_OFFSET,
        PROPERTY_MIN_OFFSET,
        PROPERTY_REAL_QID,
        PROPERTY_REAL_TOPIC,
        PROPERTY_RETRY_TOPIC,
        PROPERTY_TIMER_DELAY_MS,
        PROPERTY_TIMER_DELAY_SEC,
        PROPERTY_TIMER_DELIVER_MS,
    }
)
"""Properties that describe one stored copy, not the message."""


_OF_A_COMMITTED: Final = frozenset({PROPERTY_CRC32, PROPERTY_TRAN_MSG})
"""Further properties of a stored message that a sent one must not have: of its old bytes, and of its transaction."""
_NOT_COPIED: Final = _OF_THE_COPY | _OF_A_COMMITTED


def copy_for_topic(message: MessageExt, topic: str, properties: Mapping[str, str]) -> Message:
    """Return a copy of a stored message for another topic, due at once, with its id. properties: further ones."""
    kept = {name: value for name, value in message.properties.items() if name not in _NOT_COPIED}
    return Message(topic, message.body, flag=message.flag, properties=kept | dict(properties))


def popped_topic(letter: MessageExt, group: str) -> str | None:
    """Return the topic whose messages the group pops, if the letter died in its pop retry topic; None: it did not.

    The answer depends on a property that any sender can set: the topic may not exist.
    """
    retry = letter.properties.get(PROPERTY_RETRY_TOPIC, "")
    if not retry.startswith((f"{RETRY_PREFIX}{group}_", f"{RETRY_PREFIX}{group}+")):
        return None
    return pop_topic_of(retry, group)


def origin_topic(letter: MessageExt, group: str) -> str:
    """Return the topic that a dead letter of a group was first sent to. Any sender can set it, as above."""
    return popped_topic(letter, group) or letter.properties.get(PROPERTY_RETRY_TOPIC) or letter.topic


def resend_target(letter: MessageExt, group: str, *, to_topic: bool) -> str:
    """Return where a message is sent again: to_topic: to all groups; else to where this group alone reads it."""
    if to_topic:
        return origin_topic(letter, group)
    popped = popped_topic(letter, group)  # of the two names of its retry topic, only this one can be sent to
    return retry_topic(group) if popped is None else pop_retry_topic(popped, group)


def resent_copy(letter: MessageExt, group: str, topic: str) -> Message:
    """Return the message to send again to a topic; it keeps the id. To the group's retry topic, it names its origin."""
    properties = {name: value for name, value in letter.properties.items() if name not in _OF_THE_COPY}
    properties[PROPERTY_ORIGIN_MESSAGE_ID] = letter.properties.get(PROPERTY_ORIGIN_MESSAGE_ID) or letter.msg_id
    if topic == retry_topic(group):
        properties[PROPERTY_RETRY_TOPIC] = origin_topic(letter, group)
    return Message(topic, letter.body, flag=letter.flag, properties=properties)
