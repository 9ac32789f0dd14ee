"""Names of topics and groups: which are allowed, which are RocketMQ's own, and delay levels.

Source: TopicValidator, Validators, MixAll, MessageStoreConfig, apache/rocketmq common/, client/, store/.
"""

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from .errors import InvalidParameter
from .moments import UNITS_MS

__all__ = [
    "BENCHMARK_TOPIC",
    "BROKER_GROUPS",
    "BROKER_TOPIC_PREFIXES",
    "CLOUD_TRACE_TOPIC_PREFIX",
    "DEFAULT_TOPIC",
    "DELAY_LEVELS_DEFAULT",
    "DELAY_LEVELS_MS",
    "DELAY_PROGRESS_PREFIX",
    "DLQ_PREFIX",
    "HALF_TOPIC",
    "INNER_GROUP_PREFIXES",
    "INNER_PRODUCER_GROUP",
    "INNER_TOPICS",
    "INNER_TOPIC_PREFIXES",
    "OFFSET_MOVED_EVENT",
    "OP_HALF_TOPIC",
    "ORDER_TOPIC_CONFIG",
    "POP_POSITION_GROUP",
    "RECALL_TAG",
    "RETRY_PREFIX",
    "REVIVE_GROUP",
    "REVIVE_TOPIC_PREFIX",
    "SCHEDULE_TOPIC",
    "SELF_TEST_TOPIC",
    "SYSTEM_GROUPS",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_TOPICS",
    "TIMER_TOPIC",
    "TOOLS_CONSUMER_GROUP",
    "TOPIC_LENGTH_MAX",
    "TRACE_TOPIC",
    "TRANSACTION_GROUP",
    "TRANS_CHECK_MAX_TIME_TOPIC",
    "UNSENDABLE_TOPICS",
    "business_topics",
    "check_length",
    "delay_of_level",
    "dlq_topic",
    "group_of",
    "is_business_group",
    "is_business_topic",
    "is_system_group",
    "is_system_topic",
    "parse_delay_levels",
    "reply_topic",
    "retry_topic",
    "revive_topic",
    "validate_group",
    "validate_topic",
]

TOPIC_LENGTH_MAX: Final = 127
RETRY_TOPIC_LENGTH_MAX: Final = 255  # %RETRY% and %DLQ%, from 5.x
GROUP_LENGTH_MAX: Final = 120

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"

DEFAULT_TOPIC: Final = "TBW102"  # the template of topics created automatically
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
CLOUD_TRACE_TOPIC_PREFIX: Final = "rmq_sys_TRACE_DATA_"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
TRANS_CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_EVENT: Final = "OFFSET_MOVED_EVENT"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
HEARTBEAT_SYNC_TOPIC: Final = "DefaultHeartBeatSyncerTopic"  # of 5.x proxies
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"  # and the cluster's name
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"  # after the cluster's name

SYSTEM_TOPICS: Final = frozenset(
    {
        DEFAULT_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        TRANS_CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_EVENT,
        CHECKPOINT_TOPIC,
    }
)
# Topics that no application uses, to tell applications' messages apart; a broker protects only some of them.
INNER_TOPICS: Final = SYSTEM_TOPICS | {HEARTBEAT_SYNC_TOPIC, TIMER_TOPIC}
BROKER_TOPIC_PREFIXES: Final = ("RMQ_SYS_", SYSTEM_TOPIC_PREFIX, "%SYS%")
INNER_TOPIC_PREFIXES: Final = (*BROKER_TOPIC_PREFIXES, RETRY_PREFIX, DLQ_PREFIX)
# A client may not send to these (code 16). The trace topic is not among them.
UNSENDABLE_TOPICS: Final = frozenset(
    {SCHEDULE_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TRANS_CHECK_MAX_TIME_TOPIC, SELF_TEST_TOPIC, OFFSET_MOVED_EVENT}
)

DEFAULT_PRODUCER_GROUP: Final = "DEFAULT_PRODUCER"
DEFAULT_CONSUMER_GROUP: Final = "DEFAULT_CONSUMER"
INNER_PRODUCER_GROUP: Final = "CLIENT_INNER_PRODUCER"
TOOLS_CONSUMER_GROUP: Final = "TOOLS_CONSUMER"
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"  # its offsets are the progress of the check of half messages
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"  # its offsets are the progress in the revive topics
POP_POSITION_GROUP: Final = "CID_RMQ_SYS_POP"  # "offsets": ends of the logs of pops at the last save
BROKER_GROUPS: Final = (
    TOOLS_CONSUMER_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
"""System groups that every broker has from its start on."""
SYSTEM_GROUPS: Final = frozenset(
    {
        *BROKER_GROUPS,
        DEFAULT_PRODUCER_GROUP,
        DEFAULT_CONSUMER_GROUP,
        "SCHEDULE_CONSUMER",
        "__MONITOR_CONSUMER",
        INNER_PRODUCER_GROUP,
        "SELF_TEST_P_GROUP",
    }
)

# Groups of tools, traces and the system, to recognize the groups of applications.
INNER_GROUP_PREFIXES: Final = (
    RETRY_PREFIX,
    DLQ_PREFIX,
    "TOOLS_",
    SYSTEM_GROUP_PREFIX,
    "CID_ONSAPI_",
    "_INNER_TRACE",
    "SELF_TEST_",
    "FILTERSRV_",
    "MONITOR_CONSUMER",
)
ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"  # namespace of name servers: topic -> the order of its queues
RECALL_TAG: Final = "_RECALL_TAG_"  # tag of the timer's notes that delete a message

# Key of the runtime table, before the level; its value: "<delivered>,<end>".
DELAY_PROGRESS_PREFIX: Final = "scheduleMessageOffset_"
DELAY_LEVELS_DEFAULT: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"

_NAME = re.compile(r"[%|a-zA-Z0-9_-]+")
_DELAY = re.compile(r"([0-9]+)([smhd])")


def validate_topic(topic: str) -> None:
    """Raise InvalidParameter unless topic is a name that brokers accept.

    1 to 127 letters, digits, %, |, _ or -; retry and dead-letter topics up to 255.
    """
    length_max = RETRY_TOPIC_LENGTH_MAX if topic.startswith((RETRY_PREFIX, DLQ_PREFIX)) else TOPIC_LENGTH_MAX
    _validate("topic", topic, length_max)


def validate_group(group: str) -> None:
    """Raise InvalidParameter unless group is a name that brokers accept: characters as in topics, 1 to 120 of them."""
    _validate("group", group, GROUP_LENGTH_MAX)


def check_length(what: str, text: str, length_max: int) -> None:
    """Raise InvalidParameter if a name or text is longer than length_max."""
    if len(text) > length_max:
        raise InvalidParameter(
            f"found {what} of {len(text)} characters ({text[:40]}…), expected at most {length_max}: use a shorter one"
        )


def _validate(what: str, name: str, length_max: int) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidParameter(f"found {what} {name!r}, expected one or more of A-Z a-z 0-9 % | _ -")
    if len(name) > length_max:
        raise InvalidParameter(f"found {what} of {len(name)} characters ({name[:40]}…), expected at most {length_max}")


def is_system_topic(topic: str) -> bool:
    """Tell whether RocketMQ itself uses the topic. A broker adds its own and its cluster's name to these."""
    return topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX)


def is_system_group(group: str) -> bool:
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_business_topic(topic: str) -> bool:
    """Return whether the topic may be an application's: it is not '', a system, retry or dead-letter topic."""
    return bool(topic) and topic not in INNER_TOPICS and not topic.startswith(INNER_TOPIC_PREFIXES)


def is_business_group(group: str) -> bool:
    """Return whether a consumer group is an application's: not '', and not of the system, of tools or of traces."""
    return bool(group) and group not in SYSTEM_GROUPS and not group.startswith(INNER_GROUP_PREFIXES)


def business_topics(topics: Iterable[str], clusters: Collection[str], brokers: Iterable[str]) -> list[str]:
    """Return the topics of applications among the topics of clusters, in the same order.

    Brokers register a topic with their own name, one with their cluster's name and the cluster's reply topic.
    """
    own = {*clusters, *brokers, *map(reply_topic, clusters)}
    return [topic for topic in topics if is_business_topic(topic) and topic not in own]


def retry_topic(group: str) -> str:
    """Return the topic of the messages that group is to receive again."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """Return the topic of the group's dead letters."""
    return DLQ_PREFIX + group


def reply_topic(cluster: str) -> str:
    """Return the topic through which the consumers of a cluster reply to requests."""
    return cluster + REPLY_TOPIC_SUFFIX


def revive_topic(cluster: str) -> str:
    """Return the topic of a cluster's revive log: check points and acks of popped messages."""
    return REVIVE_TOPIC_PREFIX + cluster


def group_of(topic: str) -> str | None:
    """Return the group whose retry or dead-letter topic this is, or None for any other topic."""
    for prefix in (RETRY_PREFIX, DLQ_PREFIX):
        if topic.startswith(prefix):
            return topic[len(prefix) :]
    return None


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """Return the delays in ms of levels 1, 2, … from a text such as "1s 5s 10s 1m 2h 1d".

    InvalidParameter: an item is not a number with s, m, h or d. RocketMQ: messageDelayLevel.
    """
    delays = []
    for item in text.split():
        match = _DELAY.fullmatch(item)
        if match is None:
            raise InvalidParameter(f"found delay level {item!r} in {text!r}, expected a number with s, m, h or d")
        delays.append(int(match[1]) * UNITS_MS[match[2]])
    if not delays:
        raise InvalidParameter("found no delay level, expected at least one, such as 1s")
    return tuple(delays)


DELAY_LEVELS_MS: Final = parse_delay_levels(DELAY_LEVELS_DEFAULT)
DELAY_LEVEL_MAX: Final = len(DELAY_LEVELS_MS)
assert DELAY_LEVEL_MAX == 18


def delay_of_level(level: int, delays_ms: Sequence[int] = DELAY_LEVELS_MS) -> int:
    """Return the delay in ms of a level; 0 for level 0 and below, the last level's delay for higher ones."""
    return 0 if level <= 0 else delays_ms[min(level, len(delays_ms)) - 1]
