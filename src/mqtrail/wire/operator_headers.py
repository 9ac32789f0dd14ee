"""Headers of requests that operators' tools send to brokers occasionally.

Source: the classes of remoting/protocol/header, apache/rocketmq.
"""

from .header import Header

__all__ = [
    "CorrectionOffsetHeader",
    "ExchangeHaInfoHeader",
    "GroupForbiddenHeader",
]


class CorrectionOffsetHeader(Header):
    """308. filter_groups: groups to leave out, joined by commas."""

    compare_group: str
    topic: str
    filter_groups: str | None = None


class GroupForbiddenHeader(Header):
    """353. readable None: only query the current value."""

    group: str
    topic: str
    readable: bool | None = None


class ExchangeHaInfoHeader(Header):
    """906, request and reply: a slave reports its master's address, or asks the master for its addresses and
    offsets."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None
