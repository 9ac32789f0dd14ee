"""Topics: list, show and create."""

from __future__ import annotations

import asyncio

from mqtrail.wire import (
    DLQ_PREFIX,
    RETRY_PREFIX,
    CreateTopicHeader,
    Host,
    MQError,
    Perm,
    RemotingCommand,
    RequestCode,
    TopicConfig,
    TopicConfigTable,
    TopicList,
    TopicNotExist,
    is_system_topic,
)

from .caller import Caller, problem_of_error, succeed
from .shapes import Topic


class Topics:
    """Asks the broker for its topics."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def list(self, host: Host) -> list[Topic]:
        """Return the topics of applications, by name. Problem."""
        try:
            table = await self._table(host)
            command = RemotingCommand(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
            reply = await succeed(self._caller, command, host)
            systems = set(TopicList.decode(reply.body).topic_list)
        except (MQError, TimeoutError) as error:
            raise problem_of_error(error) from error
        names = sorted(name for name in table.keys() - systems if _is_of_application(name))
        return [_topic_of(table[name]) for name in names]

    async def one(self, name: str, host: Host) -> Topic:
        """Problem: there is no such topic."""
        command = RemotingCommand(RequestCode.GET_TOPIC_CONFIG, {"topic": name})
        try:
            reply = await succeed(self._caller, command, host)
        except TopicNotExist as error:
            raise problem_of_error(TopicNotExist(f"found no topic {name}")) from error
        except (MQError, TimeoutError) as error:
            raise problem_of_error(error) from error
        return _topic_of(TopicConfig.decode(reply.body))

    async def create(self, name: str, queues: int, host: Host) -> Topic:
        """Create a topic, or change its number of queues. Problem."""
        header = CreateTopicHeader(name, queues, queues, Perm.READ | Perm.WRITE)
        try:
            command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, header.to_ext())
            await succeed(self._caller, command, host)
        except (MQError, TimeoutError) as error:
            raise problem_of_error(error) from error
        return await self.one(name, host)

    async def _table(self, host: Host) -> dict[str, TopicConfig]:
        reply = await succeed(self._caller, RemotingCommand(RequestCode.GET_ALL_TOPIC_CONFIG), host)
        return (await asyncio.to_thread(TopicConfigTable.decode, reply.body)).topic_config_table  # of any size


def _topic_of(config: TopicConfig) -> Topic:
    return Topic(
        config.topic,
        config.write_queue_nums,
        bool(config.perm & Perm.READ),
        bool(config.perm & Perm.WRITE),
    )


def _is_of_application(name: str) -> bool:
    return not is_system_topic(name) and not name.startswith((RETRY_PREFIX, DLQ_PREFIX))
