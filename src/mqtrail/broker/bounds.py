"""How many things one request may name, and how long their names may be.

A body of 16 MiB has room for hundreds of thousands of groups, queues or topics, and the loop serves nobody else while
it goes through them. What exceeds a bound is refused as a whole, before anything of it counts. Java has no such bounds.
"""

from collections.abc import Sized
from typing import Final

from mqtrail.wire import HeartbeatData, InvalidParameter

HEARTBEAT_SIZE_MAX: Final = 4 * 1024 * 1024  # bytes of a heartbeat's body
CLIENT_GROUPS_MAX: Final = 1_000  # groups of one connection, of producers and of consumers each
GROUP_SUBSCRIPTIONS_MAX: Final = 1_000  # topics that one group subscribes to
GROUP_NAME_LENGTH_MAX: Final = 255  # Java's client refuses more; the broker's own rule for new consumer groups is 120
CLIENT_ID_LENGTH_MAX: Final = 1_024
EXPRESSION_LENGTH_MAX: Final = 64 * 1024  # of one subscription
SUBSCRIPTIONS_SIZE_MAX: Final = 64 * 1024 * 1024  # characters of what all live consumer groups subscribe to
LOCK_QUEUES_MAX: Final = 10_000  # of one lock or unlock request (41, 42)
BATCH_ACKS_MAX: Final = 1_000  # groups of acks in one batch (200151), each of up to 32 messages
QUEUES_MAX: Final = 65_536  # of one topic, and of a group's retry topic; Java lets a typing error fill the disk
HELD_SIZE_MAX: Final = 256 * 1024 * 1024  # characters of the headers of held pulls; of held pops, of held notices
HELD_PEER_SHARE: Final = 10  # one connection may hold a tenth of what all may, in number and size,
HELD_PEER_MIN: Final = 1_000  # but so many in any case
CONFIG_LIST_MAX: Final = 10_000  # topics (18) or groups (225) that one request makes
REQUEST_MODES_MAX: Final = 100_000  # topics and groups with a mode of their own (401)


def check_count(what: str, found: Sized, count_max: int) -> None:
    """Raise InvalidParameter unless a request names at most so many."""
    if len(found) > count_max:
        raise InvalidParameter(
            f"found {len(found)} {what} in one request, expected at most {count_max}: send several requests"
        )


def check_length(what: str, text: str, length_max: int) -> None:
    """Raise InvalidParameter unless a name or text is at most so long."""
    if len(text) > length_max:
        raise InvalidParameter(
            f"found {what} of {len(text)} characters ({text[:40]}…), expected at most {length_max}: use a shorter one"
        )


def check_heartbeat(data: HeartbeatData) -> None:
    """Raise InvalidParameter unless what a heartbeat names is within the bounds."""
    check_length("a clientID", data.client_id, CLIENT_ID_LENGTH_MAX)
    check_count("producer groups", data.producer_data_set, CLIENT_GROUPS_MAX)
    check_count("consumer groups", data.consumer_data_set, CLIENT_GROUPS_MAX)
    for producer in data.producer_data_set:
        check_length("a producer group", producer.group_name, GROUP_NAME_LENGTH_MAX)
    for consumer in data.consumer_data_set:
        check_length("a consumer group", consumer.group_name, GROUP_NAME_LENGTH_MAX)
        subscriptions = consumer.subscription_data_set
        check_count(f"subscriptions of group {consumer.group_name}", subscriptions, GROUP_SUBSCRIPTIONS_MAX)
        for subscription in subscriptions:
            topic = subscription.topic
            check_length("a topic", topic, GROUP_NAME_LENGTH_MAX)
            check_length(f"an expression for topic {topic}", subscription.sub_string, EXPRESSION_LENGTH_MAX)
