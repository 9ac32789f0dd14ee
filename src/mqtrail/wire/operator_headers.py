"""Headers of requests that operators' tools send to a broker now and then.

Source: the classes of remoting/protocol/header, apache/rocketmq.
"""

from dataclasses import dataclass

from .header import Header

__all__ = [
    "CorrectionOffsetHeader",
    "ExchangeHaInfoHeader",
    "GroupForbiddenHeader",
]


@dataclass(slots=True)
class CorrectionOffsetHeader(Header):
    """308. filter_groups: joined by commas, groups that do not count."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


@dataclass(slots=True)
class GroupForbiddenHeader(Header):
    """353. readable None: only ask."""

    group: str
    topic: str
    readable: bool | None = None


@dataclass(slots=True)
class ExchangeHaInfoHeader(Header):
    """906, request and reply: a slave tells where its master is, or asks the master for its places."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None
