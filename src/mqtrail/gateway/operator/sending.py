"""A change that sends one message to a topic: the send tool of pmq's portal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, ClassVar

import msgspec

from mqtrail.wire import RequestCode, is_business_topic, validate_topic

from ..config import KEY_LENGTH_MAX
from ..problems import Problem
from ..shapes import Publish, message_of
from .plans import ChangeContext, OperatedFate, OperatedOutcome, OperatedPlan, OperatedStep, wrong

Name = Annotated[str, msgspec.Meta(min_length=1, max_length=255)]
Word = Annotated[str, msgspec.Meta(max_length=KEY_LENGTH_MAX)]


class MessageSend(msgspec.Struct, forbid_unknown_fields=True, tag_field="action", tag="send-message"):
    """Send a message to a topic, so that all its groups receive it. The audit log has its size, not its body."""

    topic: Name
    body: Annotated[str, msgspec.Meta(min_length=1)]
    key: Word = ""
    tag: Word = ""
    requests: ClassVar[tuple[RequestCode, ...]] = (RequestCode.SEND_MESSAGE_V2,)

    async def plan(self, context: ChangeContext) -> OperatedPlan:
        """TopicNotExist. Problem: the topic is the broker's."""
        validate_topic(self.topic)
        if not is_business_topic(self.topic):
            raise wrong(f"found the topic {self.topic!r}, expected an application's: this one is RocketMQ's own")
        await context.broker.known_topic(self.topic)
        groups = await context.broker.groups_of(self.topic)
        size = len(self.body.encode())
        words = [f"group {name} receives it" for name in groups]
        return OperatedPlan([OperatedStep(self.topic, None, f"a message of {size} bytes")], words)

    async def perform(self, context: ChangeContext) -> AsyncIterator[OperatedOutcome]:
        """Send it."""
        message = message_of(self.topic, Publish(body=self.body, key=self.key, tag=self.tag), 0)
        try:
            (stored,) = await context.sender.publish([message], None, context.broker.host)
        except Problem as problem:
            fate = OperatedFate.UNKNOWN if problem.status in (503, 504) else OperatedFate.FAILED
            yield OperatedOutcome(self.topic, fate, problem.detail)
            return
        yield OperatedOutcome(self.topic, OperatedFate.DONE, f"{stored.queue}@{stored.offset} {stored.id}")
