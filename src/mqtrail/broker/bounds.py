"""Bounds on the number of items in one request, and on the length of their names.

A body of 16 MiB could name hundreds of thousands of groups, queues or topics, and block all other requests. A request
that exceeds a bound is rejected before it changes anything. Java has no such bounds.
"""

from collections.abc import Sized
from typing import Final

from mqtrail.wire import HeartbeatData, InvalidParameter, check_length

BODY_SIZE_MAX: Final = 256 * 1024  # bytes of a request's body, unless its row (requests.py) sets another bound
LIST_SIZE_MAX: Final = 2 * 1024 * 1024  # of a body that lists topics, groups, queues or acks
LINES_SIZE_MAX: Final = 32 * 1024  # of a body with lines of settings (25, 2001)
HEARTBEAT_SIZE_MAX: Final = 4 * 1024 * 1024  # bytes of a heartbeat's body
CLIENT_GROUPS_MAX: Final = 1_000  # groups of one connection, of producers and of consumers each
MEMBERSHIPS_MAX: Final = 200_000  # of all connections in all groups: the scan for silent ones looks at each
GROUP_SUBSCRIPTIONS_MAX: Final = 1_000  # topics that one group subscribes to
GROUP_NAME_LENGTH_MAX: Final = 255  # limit of Java's client; new consumer groups may have 120 at most
CLIENT_ID_LENGTH_MAX: Final = 1_024
ATTEMPT_ID_LENGTH_MAX: Final = 255  # of a pop in order, kept for its queue and saved; Java's client sends a UUID
EXPRESSION_LENGTH_MAX: Final = 64 * 1024  # of one subscription
SUBSCRIPTIONS_SIZE_MAX: Final = 64 * 1024 * 1024  # characters of the subscriptions of all live consumer groups
LOCK_QUEUES_MAX: Final = 5_000  # of one lock or unlock request (41, 42)
BATCH_ACKS_MAX: Final = 1_000  # groups of acks in one batch (200151), each of up to 32 messages
HELD_SIZE_MAX: Final = 256 * 1024 * 1024  # characters of the headers of held pulls; of held pops, of held notices
HELD_PEER_SHARE: Final = 10  # a connection may hold a tenth of the total, in number and size,
HELD_PEER_MIN: Final = 1_000  # but at least this number
CONFIG_LIST_MAX: Final = 1_000  # topics (18) or groups (225) created by one request
REQUEST_MODES_MAX: Final = 100_000  # topics and groups with a mode of their own (401)


def check_count(what: str, found: Sized, count_max: int) -> None:
    """Raise InvalidParameter if a request names more than count_max."""
    if len(found) > count_max:
        raise InvalidParameter(
            f"found {len(found)} {what} in one request, expected at most {count_max}: send several requests"
        )


def check_heartbeat(data: HeartbeatData) -> None:
    """Raise InvalidParameter if a heartbeat exceeds a bound."""
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
