"""The topics of a broker: system topics, and topics created by a first send or by an administrator.

Every change increases `version`, which invalidates cached Admissions, and the data version that name servers compare.
`changed_names` are the topics to register with name servers; `changed`: register all.

Source: TopicConfigManager, TopicValidator, apache/rocketmq broker/topic/ and common/topic/.
"""

from collections.abc import Callable, Iterable, Mapping

import msgspec
from msgspec.structs import replace

from mqtrail.store import ConfigFileStore
from mqtrail.wire import (
    BENCHMARK_TOPIC,
    DEFAULT_TOPIC,
    HALF_TOPIC,
    OFFSET_MOVED_EVENT,
    OP_HALF_TOPIC,
    SCHEDULE_TOPIC,
    SELF_TEST_TOPIC,
    SYSTEM_TOPICS,
    TIMER_TOPIC,
    DataVersion,
    InvalidParameter,
    Perm,
    SystemBusy,
    SystemError_,
    TopicConfig,
    TopicConfigTable,
    TopicNotExist,
    dumps_fastjson,
    is_system_topic,
    reply_topic,
    revive_topic,
    validate_topic,
)

from ..config import QUEUES_MAX, BrokerConfig
from ..encoded import EncodedEntries, member
from ..files import TOPICS_FILE, Unsaved, load_table, next_version


class TopicTable:
    """Topic name -> TopicConfig. Every change is saved (`ConfigFileStore.change`)."""

    def __init__(self, config: BrokerConfig, files: ConfigFileStore, now_ms: int) -> None:
        self._config = config
        self._files = files
        self.version = 1
        self.changed = True
        self.changed_names: dict[str, None] = {}
        self._unsaved = Unsaved(files)
        self._leaving: set[str] = set()  # deleted, but the deletion is not durable yet, so their messages still exist
        table = load_table(files, TOPICS_FILE, TopicConfigTable)
        self.data_version = DataVersion(now_ms) if table is None else table.data_version
        self._own = _own_topics(config)
        self._topics: dict[str, TopicConfig] = {} if table is None else dict(table.topic_config_table)
        for topic in self._topics.values():
            _check_queues(topic, f"{TOPICS_FILE}: ")
        for topic in self._own.values():
            self._topics.setdefault(topic.topic, topic)
        # TBW102 is the template of automatically created topics: its INHERIT bit follows the setting.
        default = self._topics.get(DEFAULT_TOPIC)
        if default is not None and not config.auto_create_topic:
            self._topics[DEFAULT_TOPIC] = replace(default, perm=default.perm & ~Perm.INHERIT)
        self._encoded = EncodedEntries({name: member(name, entry.members()) for name, entry in self._topics.items()})

    def get(self, topic: str) -> TopicConfig | None:
        self._unsaved.depend_on(topic)
        return self._topics.get(topic)

    def require(self, topic: str) -> TopicConfig:
        """Return a topic for a reader. TopicNotExist."""
        found = self.get(topic)
        if found is None:
            raise TopicNotExist(f"topic[{topic}] not exist, apply first please!")
        return found

    def __contains__(self, topic: str) -> bool:
        return self.get(topic) is not None

    def is_saved(self, topic: str) -> bool:
        """Return whether the topic, as it is now, would survive a restart."""
        return topic not in self._unsaved

    def __len__(self) -> int:
        return len(self._topics)

    def all(self) -> Mapping[str, TopicConfig]:
        """Return the live table. Do not keep it: later calls change it."""
        return self._topics

    def is_system(self, topic: str) -> bool:
        """Return whether it is a system topic of RocketMQ or of this broker, which administrators must not change."""
        return is_system_topic(topic) or topic in self._own

    def system_topics(self) -> list[str]:
        return sorted(SYSTEM_TOPICS | self._own.keys())

    def create_by_send(self, topic: str, default_topic: str, queue_nums: int, now_ms: int) -> TopicConfig | None:
        """Create the topic of a first send from its template; None: the template does not allow it."""
        template = self._topics.get(default_topic)
        if template is None or not template.perm & Perm.INHERIT:
            return None
        if len(self._topics) >= self._config.topics_max:
            raise SystemError_(
                f"found {len(self._topics)} topics, expected at most {self._config.topics_max} (topics_max): "
                f"create topic {topic} with updateTopic, or raise topics_max"
            )
        queues = max(0, min(queue_nums, template.write_queue_nums))
        made = replace(
            template,
            topic=topic,
            read_queue_nums=queues,
            write_queue_nums=queues,
            perm=template.perm & ~Perm.INHERIT,
            attributes={},
        )
        self._put(made, now_ms)
        return made

    def create_own(self, topic: str, queue_nums: int, perm: int, now_ms: int, topic_sys_flag: int = 0) -> TopicConfig:
        """Return a topic that the broker creates itself (%RETRY%, %DLQ%), creating it if necessary."""
        known = self.get(topic)
        if known is not None:
            return known
        queue_nums = max(0, min(queue_nums, QUEUES_MAX))  # groups.json may contain any number
        made = TopicConfig(topic, queue_nums, queue_nums, perm, topic_sys_flag=topic_sys_flag)
        self._put(made, now_ms)
        return made

    def update(self, topic: TopicConfig, now_ms: int) -> None:
        """Create or replace a topic for an administrator. InvalidParameter: invalid name or numbers."""
        validate_topic(topic.topic)
        if self.is_system(topic.topic):
            raise InvalidParameter(f"The topic[{topic.topic}] is conflict with system topic.")
        _check_queues(topic)
        if self.get(topic.topic) != topic:
            self._put(topic, now_ms)

    def settings_changed(self, now_ms: int) -> None:
        """Apply changed settings: the INHERIT bit of the template, and the registration."""
        default = self._topics.get(DEFAULT_TOPIC)
        if default is not None:
            bit = Perm.INHERIT if self._config.auto_create_topic else 0
            default = replace(default, perm=default.perm & ~Perm.INHERIT | bit)
        elif self._config.auto_create_topic:
            default = _own_topics(self._config)[DEFAULT_TOPIC]
        self.changed = True  # the permission is part of each registered topic
        if default is None:
            self.data_version = next_version(self.data_version, now_ms)
        else:
            self._put(default, now_ms)

    def mark_ordered(self, names: Iterable[str], now_ms: int) -> None:
        """Mark the topics that have a static order at a name server (ORDER_TOPIC_CONFIG)."""
        for name in names:
            topic = self._topics.get(name)
            if topic is not None and not topic.order:
                self._put(replace(topic, order=True), now_ms)

    def adopt(self, table: TopicConfigTable, now_ms: int) -> None:
        """On a slave: take the topics of the master. Messages of a topic that it no longer has stay until they expire.

        InvalidParameter: an impossible topic; nothing was changed.
        """
        if table.data_version == self.data_version and not self._differs(table.topic_config_table):
            return
        for topic in table.topic_config_table.values():
            _check_queues(topic, "topics of the master: ")
        before, version = dict(self._topics), self.data_version
        self._replace(table.topic_config_table, table.data_version, now_ms)
        self._files.change(TOPICS_FILE, self._document, lambda: self._replace(before, version, now_ms))

    def _differs(self, topics: Mapping[str, TopicConfig]) -> bool:
        return len(topics) != len(self._topics) or any(self._topics.get(name) != one for name, one in topics.items())

    def _replace(self, topics: Mapping[str, TopicConfig], version: DataVersion, now_ms: int) -> None:
        for name in [name for name in self._topics if name not in topics]:
            self._set(name, None, now_ms)
        for name, topic in topics.items():
            if self._topics.get(name) != topic:
                self._set(name, topic, now_ms)
        self.data_version = version

    def delete(self, topic: str, now_ms: int, forget: Callable[[], None] = lambda: None) -> bool:
        """Delete a topic; return whether it existed.

        forget: deletes the data of the topic; called after the deletion of the topic is durable. Otherwise the topic
        could come back without its data after a restart or on a full disk. The topic cannot be created again before.
        """
        known = self.get(topic)
        if known is None:
            return False

        def undo() -> None:
            self._leaving.discard(topic)
            self._set(topic, known, now_ms)

        def gone() -> None:
            self._leaving.discard(topic)
            forget()

        self._leaving.add(topic)
        self._set(topic, None, now_ms)
        number = self._files.change(TOPICS_FILE, self._document, undo)
        self._unsaved.note(topic, number)
        self._files.after(number, gone)
        return True

    def _put(self, topic: TopicConfig, now_ms: int) -> None:
        if topic.topic in self._leaving:
            raise SystemBusy(f"found topic {topic.topic} being deleted, expected a finished deletion: try again later")
        self._change(topic.topic, self._topics.get(topic.topic), topic, now_ms)

    def _change(self, name: str, before: TopicConfig | None, after: TopicConfig, now_ms: int) -> None:
        self._set(name, after, now_ms)
        number = self._files.change(TOPICS_FILE, self._document, lambda: self._set(name, before, now_ms))
        self._unsaved.note(name, number)

    def _set(self, name: str, topic: TopicConfig | None, now_ms: int) -> None:
        if topic is None:
            self._topics.pop(name, None)
            self.changed = True
        else:
            self._topics[name] = topic
            self.changed_names[name] = None
        self._encoded.put(name, None if topic is None else member(name, topic.members()))
        self.version += 1
        self.data_version = next_version(self.data_version, now_ms)

    def _document(self) -> Callable[[], bytes]:
        entries, version = self._encoded.snapshot(), self.data_version
        return lambda: b"".join(
            [b'{"dataVersion":', dumps_fastjson(version.members()), b',"topicConfigTable":', *entries, b"}"]
        )

    def encoded(self) -> msgspec.Raw:
        """Return the JSON object of all topics, by name."""
        return msgspec.Raw(b"".join(self._encoded.snapshot()))


def _check_queues(topic: TopicConfig, where: str = "") -> None:
    """Check a topic's numbers of queues: requests walk over all of them. InvalidParameter."""
    for name in ("read_queue_nums", "write_queue_nums"):
        if not 0 <= getattr(topic, name) <= QUEUES_MAX:
            raise InvalidParameter(
                f"{where}found {name} {getattr(topic, name)} of topic {topic.topic}, expected 0 to {QUEUES_MAX}"
            )


def _own_topics(config: BrokerConfig) -> dict[str, TopicConfig]:
    """Return the topics that a 5.3.3 broker creates at start."""
    read_write = Perm.READ | Perm.WRITE
    inherited = read_write | Perm.INHERIT
    topics = [
        TopicConfig(SELF_TEST_TOPIC, 1, 1, read_write),
        TopicConfig(BENCHMARK_TOPIC, 1024, 1024, read_write),
        TopicConfig(config.cluster_name, 16, 16, Perm.INHERIT | (read_write if config.cluster_topic else 0)),
        TopicConfig(config.broker_name, 1, 1, Perm.INHERIT | (read_write if config.broker_topic else 0)),
        TopicConfig(OFFSET_MOVED_EVENT, 1, 1, read_write),
        TopicConfig(SCHEDULE_TOPIC, 18, 18, read_write),
        TopicConfig(reply_topic(config.cluster_name), 1, 1, read_write),
        TopicConfig(revive_topic(config.cluster_name), config.revive_queue_nums, config.revive_queue_nums, read_write),
        TopicConfig(HALF_TOPIC, 1, 1, read_write),
        TopicConfig(OP_HALF_TOPIC, 1, 1, read_write),
        TopicConfig(TIMER_TOPIC, 1, 1, read_write),
    ]
    if config.auto_create_topic:
        nums = config.default_topic_queue_nums
        topics.append(TopicConfig(DEFAULT_TOPIC, nums, nums, inherited))
    if config.trace_topic_enable:
        topics.append(TopicConfig(config.trace_topic, 1, 1, read_write))
    return {topic.topic: topic for topic in topics}
