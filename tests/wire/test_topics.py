"""Names of topics and groups, and delay levels."""

import pytest

from mqtrail.wire import (
    DELAY_LEVELS_MS,
    InvalidParameter,
    business_topics,
    delay_of_level,
    dlq_topic,
    group_of,
    is_system_group,
    is_system_topic,
    parse_delay_levels,
    reply_topic,
    retry_topic,
    validate_group,
    validate_topic,
)


@pytest.mark.parametrize("topic", ["T", "a-b_C|9", "%RETRY%" + "g" * 248, "%DLQ%g", "x" * 127])
def test_topics_that_are_taken(topic: str) -> None:
    validate_topic(topic)


@pytest.mark.parametrize("topic", ["", " ", "a b", "订单", "a.b", "a/b", "x" * 128, "%RETRY%" + "g" * 249, "T\n"])
def test_topics_that_are_not_taken(topic: str) -> None:
    with pytest.raises(InvalidParameter, match="expected"):
        validate_topic(topic)


def test_groups_have_120_characters_at_most() -> None:
    validate_group("g" * 120)
    with pytest.raises(InvalidParameter, match="121 characters"):
        validate_group("g" * 121)


def test_retry_and_dead_letter_topics_know_their_group() -> None:
    assert group_of(retry_topic("g")) == "g"
    assert group_of(dlq_topic("g")) == "g"
    assert group_of("T") is None


def test_names_of_rocketmqs_own() -> None:
    """By list and by prefix; the trace topic is included, a business topic is not."""
    assert is_system_topic("TBW102")
    assert is_system_topic("RMQ_SYS_TRACE_TOPIC")
    assert is_system_topic("rmq_sys_wheel_timer")
    assert not is_system_topic("orders")
    assert is_system_group("CID_RMQ_SYS_x")
    assert is_system_group("DEFAULT_PRODUCER")
    assert not is_system_group("g")


def test_business_topics_of_a_cluster() -> None:
    """System, retry and dead-letter topics are left out, and those that brokers name after themselves and clusters."""
    clusters, brokers = ["C1", "C2"], ["broker-a"]
    system = [
        "TBW102",
        "RMQ_SYS_TRACE_TOPIC",
        "rmq_sys_wheel_timer",
        "%RETRY%g",
        "%DLQ%g",
        "DefaultHeartBeatSyncerTopic",
    ]
    own = ["C1", "C2", "broker-a", reply_topic("C1"), reply_topic("C2")]
    others = ["payments", "orders", reply_topic("C3")]
    assert business_topics([*others, *system, *own, ""], clusters, brokers) == others


def test_delay_levels() -> None:
    """Levels 1 to 18 by default; 0 and below have no delay, a level above the last means the last."""
    assert DELAY_LEVELS_MS[:5] == (1_000, 5_000, 10_000, 30_000, 60_000)
    assert DELAY_LEVELS_MS[-1] == 7_200_000
    assert [delay_of_level(level) for level in (-1, 0, 1, 18, 99)] == [0, 0, 1_000, 7_200_000, 7_200_000]
    assert parse_delay_levels(" 2s  1d ") == (2_000, 86_400_000)


@pytest.mark.parametrize("text", ["", "1", "1w", "s", "1s,2s", "-1s"])
def test_delay_levels_that_are_none(text: str) -> None:
    with pytest.raises(InvalidParameter, match="found"):
        parse_delay_levels(text)
