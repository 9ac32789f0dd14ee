"""The bodies of pmq's interface, with its own names of fields. Unknown fields are ignored, null counts as absent."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec

NAME_SIZE_MAX: Final = 255  # characters
ITEMS_MAX: Final = 1_000  # messages, groups, topics or commits of a request

Name = Annotated[str, msgspec.Meta(max_length=NAME_SIZE_MAX)]
Names = Annotated[list[Name], msgspec.Meta(max_length=ITEMS_MAX)]


class PmqBody(msgspec.Struct, rename="camel"):
    """What every request may have; lan, sdkVersion and clientIp are not needed."""

    client_ip: str | None = None


class RegisterBody(PmqBody):
    name: Name | None = None


class ReportBody(PmqBody):
    """What a client reports, of any shape: nothing is done with it."""


class MailBody(PmqBody):
    """A mail that a client asks for. type: 1 a warning, 2 an error; others are not sent."""

    topic_name: Name | None = None
    consumer_group_name: Name | None = None
    type: int = 0
    subject: str | None = None
    content: str | None = None
    key: Name | None = None


class RegisterGroupBody(PmqBody):
    consumer_id: int = 0
    consumer_name: str | None = None
    consumer_group_names: Annotated[dict[Name, Names | None], msgspec.Meta(max_length=ITEMS_MAX)] | None = None


class DeregisterBody(PmqBody):
    id: int = 0


class HeartbeatBody(PmqBody):
    consumer_id: int = 0
    asyn: int = 0


class PollBody(PmqBody):
    consumer_id: int = 0
    consumer_group_version: Annotated[dict[Name, int], msgspec.Meta(max_length=ITEMS_MAX)] | None = None


class Partition(msgspec.Struct, rename="camel"):
    queue_id: int = 0
    strict_mode: int = 1


class PmqMessage(msgspec.Struct, rename="camel", gc=False):
    """A message to publish. body, and values of head, may be numbers: they become texts."""

    id: int = 0
    tag: str | None = None
    biz_id: str | None = None
    head: dict[str, Any] | None = None
    body: Any = None
    trace_id: str | None = None
    retry_count: int = 0
    partition_info: Partition | None = None


class PublishBody(PmqBody):
    topic_name: str | None = None
    client_ip: Name | None = None
    token: str | None = None
    msgs: Annotated[list[PmqMessage], msgspec.Meta(max_length=ITEMS_MAX)] | None = None


class PullBody(PmqBody):
    consumer_group_name: str | None = None
    queue_id: int = 0
    offset_start: int = 0
    offset_end: int = 0


class CommitItem(msgspec.Struct, rename="camel"):
    queue_offset_id: int = 0
    offset_version: int = 0
    offset: int = 0


class CommitBody(PmqBody):
    queue_offsets: Annotated[list[CommitItem], msgspec.Meta(max_length=ITEMS_MAX)] | None = None
    flag: int = 0


class FailBody(PmqBody):
    queue_id: int = 0
    ids: list[int] | None = None
    fail_msg: PublishBody | None = None


class CountBody(PmqBody):
    consumer_group_name: str | None = None
    topics: Names | None = None


class GroupTopicsBody(PmqBody):
    consumer_group_names: Names | None = None


class TopicQueuesBody(PmqBody):
    topic_names: Names | None = None
