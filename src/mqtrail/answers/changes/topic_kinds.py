"""Changes of topics: created or changed on each broker, deleted everywhere."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Final, Literal

import msgspec

from mqtrail.client import SyncAdmin
from mqtrail.wire import (
    DLQ_PREFIX,
    PERMISSIONS,
    RETRY_PREFIX,
    MQError,
    RequestCode,
    TopicConfig,
    is_system_topic,
    validate_topic,
)

from ..masters import masters_of
from .model import DELETED, ChangeOutcome, ChangeStep, Fate, InvalidChange, NothingToChange, Planned, raise_failure

QUEUES_MAX: Final = 16_384


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTopic:
    """Create a topic, or change its queues and permission; its other settings are kept.

    permission: r, w or rw. broker: only on this one; '': on all masters.
    """

    topic: str
    read_queue_count: int = 8
    write_queue_count: int = 8
    permission: Literal["r", "w", "rw"] = "rw"
    broker: str = ""
    action: Literal["set-topic"] = "set-topic"
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.UPDATE_AND_CREATE_TOPIC,)
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail topic create`, unless the numbers of queues differ."""
        if self.read_queue_count != self.write_queue_count:
            return ()
        where = ("--broker", self.broker) if self.broker else ()
        queues = ("--queues", str(self.read_queue_count))
        return ("mqtrail", "topic", "create", self.topic, *queues, "--perm", self.permission, *where)

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return the configuration on each broker before and after, and the messages that cannot be read any more."""
        check_topic(self.topic)
        for name in ("read_queue_count", "write_queue_count"):
            if not 0 < getattr(self, name) <= QUEUES_MAX:
                raise InvalidChange(f"{name}: found {getattr(self, name)}, expected 1 to {QUEUES_MAX}")
        steps = []
        for name, address in masters_of(admin, self.broker or None).items():
            known = _config(admin, address, self.topic)
            counts: dict[str, int | None] = {}
            if known is not None and known.read_queue_nums > self.read_queue_count:
                counts["unreadable"] = _stored_count(admin, address, self.topic, self.read_queue_count)
            before = None if known is None else config_text(known)
            steps.append(ChangeStep(name, before, config_text(self._wanted(known)), counts))
        return Planned(steps)

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Change it on one broker after the other; the detail is what the broker answers then."""
        for name, address in masters_of(admin, self.broker or None).items():
            try:
                wanted = self._wanted(_config(admin, address, self.topic))
                raise_failure(admin.create_topic(wanted, broker=address))
                found = _config(admin, address, self.topic)
            except (MQError, OSError) as error:
                yield ChangeOutcome.of_error(name, error)
                continue
            detail = "" if found is None else config_text(found)
            yield ChangeOutcome(name, Fate.DONE if detail == config_text(wanted) else Fate.FAILED, detail)

    def _wanted(self, known: TopicConfig | None) -> TopicConfig:
        return msgspec.structs.replace(
            known or TopicConfig(self.topic),
            read_queue_nums=self.read_queue_count,
            write_queue_nums=self.write_queue_count,
            perm=int(PERMISSIONS[self.permission]),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteTopic:
    """Delete a topic with its messages on all masters and name servers."""

    topic: str
    action: Literal["delete-topic"] = "delete-topic"
    requests: ClassVar[tuple[RequestCode, ...]] = (
        RequestCode.DELETE_TOPIC_IN_BROKER,
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
    )
    is_moving: ClassVar[bool] = False

    @property
    def command(self) -> tuple[str, ...]:
        """`mqtrail topic delete`."""
        return "mqtrail", "topic", "delete", self.topic

    def plan(self, admin: SyncAdmin) -> Planned:
        """Return its configuration and messages on each broker; a warning for each group that consumes it."""
        check_topic(self.topic)
        steps = []
        for name, address in admin.targets().items():
            known = _config(admin, address, self.topic)
            if known is not None:
                counts = {"deleted": _stored_count(admin, address, self.topic, 0)}
                steps.append(ChangeStep(name, config_text(known), DELETED, counts))
        if not steps:
            raise NothingToChange(f"no master has the topic {self.topic!r}")
        gathered = admin.groups_of_topic(self.topic)
        groups = sorted({group for found in gathered.values() for group in found.group_list})
        omissions = [f"groups of the topic on {name}: {error}" for name, error in gathered.failures.items()]
        return Planned(steps, omissions, [f"group {group} consumes it" for group in groups])

    def perform(self, admin: SyncAdmin) -> Iterator[ChangeOutcome]:
        """Delete it; an outcome for each broker and name server."""
        done = admin.delete_topic(self.topic)
        for gathered in (done.brokers, done.name_servers):
            for name in gathered.found:
                yield ChangeOutcome(name, Fate.DONE)
            for name, error in gathered.failures.items():
                yield ChangeOutcome.of_error(name, error)


def config_text(config: TopicConfig) -> str:
    """Return queues and permission of a topic as `read 8, write 8, rw`."""
    known = {int(bits): letters for letters, bits in PERMISSIONS.items()}
    perm = known.get(config.perm, f"perm {config.perm}")
    return f"read {config.read_queue_nums}, write {config.write_queue_nums}, {perm}"


def check_topic(topic: str) -> None:
    """Raise InvalidChange, or InvalidParameter, unless this is the name of an application's topic."""
    validate_topic(topic)
    if is_system_topic(topic) or topic.startswith((RETRY_PREFIX, DLQ_PREFIX)):
        raise InvalidChange(f"found the topic {topic!r}, expected an application's: this one is RocketMQ's own")


def _config(admin: SyncAdmin, address: str, topic: str) -> TopicConfig | None:
    return admin.topic_configs(address).topic_config_table.get(topic)


def _stored_count(admin: SyncAdmin, address: str, topic: str, first_queue: int) -> int:
    """Return how many messages the queues from first_queue on keep."""
    stats = admin.broker_topic_stats(address, topic)
    reaches = [one for queue, one in stats.offset_table.items() if queue.queue_id >= first_queue]
    return sum(max(0, one.max_offset - one.min_offset) for one in reaches)
