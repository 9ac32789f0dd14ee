"""What operators and pmq's interface ask the broker: an answer that fails is not taken for a thing that is absent."""

from typing import Any

import pytest

from mqtrail.gateway.operator.broker import OperatorBroker
from mqtrail.gateway.operator.plans import ChangeContext, OperatedFate
from mqtrail.gateway.operator.topic_changes import TopicDeletion
from mqtrail.wire import (
    Host,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    SubscriptionGroupNotExist,
    SystemBusy,
    TopicNotExist,
)

ABSENT = {
    RequestCode.GET_TOPIC_CONFIG: ResponseCode.TOPIC_NOT_EXIST,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
}


class Answering:
    """A `Caller` that has no topic and no group, or is too busy to say so. It deletes what it is asked to."""

    away = None

    def __init__(self, *, is_busy: bool) -> None:
        self._is_busy = is_busy

    async def ask(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        if command.code not in ABSENT:
            return RemotingCommand.reply_to(command, ResponseCode.SUCCESS)
        code = ResponseCode.SYSTEM_BUSY if self._is_busy else ABSENT[RequestCode(command.code)]
        return RemotingCommand.reply_to(command, code, "too many requests")

    async def ask_held(self, command: RemotingCommand, host: Host, timeout_ms: int) -> RemotingCommand:
        raise AssertionError


def broker_of(*, is_busy: bool) -> OperatorBroker:
    return OperatorBroker(Answering(is_busy=is_busy), Host("127.0.0.1", 1))


async def test_what_is_absent() -> None:
    """The broker answers that there is no such topic or group."""
    broker = broker_of(is_busy=False)
    assert (await broker.topic("t"), await broker.group("g")) == (None, None)
    with pytest.raises(TopicNotExist):
        await broker.known_topic("t")
    with pytest.raises(SubscriptionGroupNotExist):
        await broker.known_group("g")


async def test_a_failed_answer_is_not_absence() -> None:
    """It is raised, so a page does not say that a topic or group does not exist."""
    broker = broker_of(is_busy=True)
    for work in (broker.topic("t"), broker.known_topic("t"), broker.group("g"), broker.known_group("g")):
        with pytest.raises(SystemBusy):
            await work


@pytest.mark.parametrize(("is_busy", "fate"), [(False, OperatedFate.DONE), (True, OperatedFate.FAILED)])
async def test_a_deletion_that_is_not_confirmed(is_busy: bool, fate: OperatedFate) -> None:
    """A topic counts as deleted only if the broker answers that it is gone."""
    unused: Any = None
    context = ChangeContext(broker_of(is_busy=is_busy), unused, unused)
    assert [one.fate async for one in TopicDeletion("t").perform(context)] == [fate]
