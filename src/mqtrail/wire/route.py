"""Routes: on which brokers a topic has queues, and where these brokers are (GET_ROUTEINFO_BY_TOPIC, code 105).

Source: TopicRouteData, QueueData, BrokerData, ClusterInfo, apache/rocketmq remoting/.
"""

from collections.abc import Generator
from typing import Final

import msgspec

from .body import Body, Long
from .codes import Perm
from .json_body import dumps, dumps_fastjson

__all__ = [
    "MASTER_ID",
    "BrokerData",
    "ClusterInfo",
    "QueueData",
    "TopicRouteData",
]

MASTER_ID: Final = 0


class QueueData(Body, frozen=True, gc=False):
    """A topic's queues on one broker group. topic_sys_flag was once spelled topicSynFlag."""

    broker_name: str
    read_queue_nums: Long = 0
    write_queue_nums: Long = 0
    perm: Long = Perm.READ | Perm.WRITE
    topic_sys_flag: Long = 0


class BrokerData(Body, frozen=True):
    """A broker group. broker_addrs: broker id (0: the master) to "host:port"."""

    broker_name: str
    broker_addrs: dict[Long, str] = msgspec.field(default_factory=dict)
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None

    @property
    def master(self) -> str | None:
        """The address to send to; None while there is no master."""
        return self.broker_addrs.get(MASTER_ID)


class TopicRouteData(Body, frozen=True):
    """A topic's route. order_topic_conf: "broker-a:4;broker-b:2" for topics of ordered messages."""

    queue_datas: tuple[QueueData, ...] = ()
    broker_datas: tuple[BrokerData, ...] = ()
    order_topic_conf: str | None = None
    filter_server_table: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def encode(self, *, strict: bool = True) -> bytes:
        """Return the route as a name server writes it. strict: for versions from 401 and requests for it.

        The strict form has text names, every character beyond ASCII as \\uXXXX and / as \\/; the other has bare broker
        ids. A lenient reader reads both alike.
        """
        if not strict:
            return dumps_fastjson(self.members())
        return _ascii_json(super().encode())

    def encode_in_slices(self, count: int, *, strict: bool = True) -> Generator[None, None, bytes]:
        """Return what `encode` does, yielding after each count of brokers, and of their queues."""
        write = (lambda item: _ascii_json(dumps(item))) if strict else dumps_fastjson
        rest = TopicRouteData((), (), self.order_topic_conf, self.filter_server_table).encode(strict=strict)
        for member, items in (("brokerDatas", self.broker_datas), ("queueDatas", self.queue_datas)):
            before, empty, after = rest.partition(b'"%b":[]' % member.encode())
            parts = []
            for first in range(0, len(items), count):
                some: list[Body] = list(items[first : first + count])
                parts.append(write([item.members() for item in some])[1:-1])
                yield
            rest = b"".join((before, empty[:-1], b",".join(parts), b"]", after))
        return rest


class ClusterInfo(Body, frozen=True):
    """Reply to GET_BROKER_CLUSTER_INFO (106): broker groups by name, their names by cluster."""

    broker_addr_table: dict[str, BrokerData] = msgspec.field(default_factory=dict)
    cluster_addr_table: dict[str, tuple[str, ...]] = msgspec.field(default_factory=dict)

    def encode(self, *, strict: bool = False) -> bytes:
        """Return the reply; broker ids are bare for every version of peer, as name servers write them."""
        return super().encode(strict=strict)


def _ascii_json(data: bytes) -> bytes:
    """Escape / and all characters beyond ASCII in a JSON text."""
    data = data.replace(b"/", b"\\/")
    if data.isascii():
        return data
    units = data.decode().encode("utf-16-be")
    return "".join(
        chr(unit) if unit < 0x80 else f"\\u{unit:04X}"
        for unit in (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
    ).encode()
