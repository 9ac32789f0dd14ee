"""Where a dead letter is sent again, and what its copy keeps."""

from __future__ import annotations

import pytest

from mqtrail.wire import Host, MessageExt, copy_for_topic, origin_topic, popped_topic, resend_target, resent_copy

HOST = Host("10.0.0.1", 10911)


def letter(**properties: str) -> MessageExt:
    """Return a dead letter of the group g."""
    return MessageExt("%DLQ%g", b"x", 0, properties, 0, 0, 0, 0, 0, HOST, 0, HOST, 3, 0, 0, 100)


@pytest.mark.parametrize(
    ("retry", "popped", "origin", "target"),
    [
        ("orders", None, "orders", "%RETRY%g"),
        ("%RETRY%g_orders", "orders", "orders", "%RETRY%g_orders"),
        ("%RETRY%g+orders", "orders", "orders", "%RETRY%g_orders"),
        ("%RETRY%other_orders", None, "%RETRY%other_orders", "%RETRY%g"),
        ("", None, "%DLQ%g", "%RETRY%g"),
    ],
)
def test_targets(retry: str, popped: str | None, origin: str, target: str) -> None:
    """A group that pops reads a retry topic for each topic; another group's retry topic is not for this one."""
    one = letter(RETRY_TOPIC=retry) if retry else letter()
    assert (popped_topic(one, "g"), origin_topic(one, "g")) == (popped, origin)
    assert resend_target(one, "g", to_topic=False) == target
    assert resend_target(one, "g", to_topic=True) == origin


def test_a_copy_keeps_the_message_and_names_its_origin() -> None:
    """Not what belongs to the stored copy; in the retry topic of a group that pops, the broker knows the origin."""
    one = letter(RETRY_TOPIC="orders", UNIQ_KEY="ID1", KEYS="k", DELAY="3", REAL_TOPIC="%DLQ%g")
    copy = resent_copy(one, "g", "%RETRY%g")
    assert copy.properties == {"UNIQ_KEY": "ID1", "KEYS": "k", "ORIGIN_MESSAGE_ID": "ID1", "RETRY_TOPIC": "orders"}
    assert (copy.topic, copy.body) == ("%RETRY%g", b"x")
    assert "RETRY_TOPIC" not in resent_copy(one, "g", "orders").properties
    assert "RETRY_TOPIC" not in resent_copy(letter(RETRY_TOPIC="%RETRY%g_orders"), "g", "%RETRY%g_orders").properties


def test_a_copy_for_another_topic_is_due_at_once() -> None:
    """It keeps the id; it is neither delayed again, nor half a transaction, nor checked against its old checksum."""
    one = letter(UNIQ_KEY="ID1", KEYS="k", DELAY="3", TIMER_DELIVER_MS="9", TRAN_MSG="true")
    one.properties["__CRC32#"] = "1"
    copy = copy_for_topic(one, "orders-16", {"COPIED_FROM": "b/orders/0@1"})
    assert copy.properties == {"UNIQ_KEY": "ID1", "KEYS": "k", "COPIED_FROM": "b/orders/0@1"}
    assert (copy.topic, copy.body) == ("orders-16", b"x")
