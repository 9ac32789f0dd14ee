"""The common part of all clients: connections, requests, routes, heartbeats. A small state machine without threads."""

from collections.abc import Callable
from functools import partial

from mqtrail.wire import (
    HeartbeatData,
    MessageExt,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    RouteHeader,
    TopicRouteData,
    encode_command,
)

from .engine import START_MS, Engine
from .history import History, Place, Read
from .network import Link, Network
from .servers import first_command

TIMEOUT_MS = 3_000.0
PAUSE_MS = 300.0
HEARTBEAT_MS, ROUTE_MS = 3_000.0, 2_000.0
ONEWAY_FLAG = 2
OnReply = Callable[[RemotingCommand | None], None]
Queue = tuple[str, str, int]  # topic, broker, queue id


class Client:
    """Connections by address, requests with timeouts, routes of known topics."""

    def __init__(self, engine: Engine, network: Network, history: History, name: str, namesrv: str) -> None:
        self.engine, self.network, self.history, self.name, self.namesrv = engine, network, history, name, namesrv
        self.alive = True
        self.addresses: dict[str, str] = {}  # broker -> address
        self.queues: dict[str, list[Queue]] = {}  # topic -> writable queues
        self.topics: list[str] = []
        self._links: dict[str, Link] = {}
        self._asked: dict[int, tuple[str, OnReply]] = {}
        self._opaque = 0
        self._every(ROUTE_MS, self._ask_routes)
        self._every(HEARTBEAT_MS, self._heartbeat)

    def _every(self, interval_ms: float, act: Callable[[], None]) -> None:
        def run() -> None:
            if self.alive:
                act()
                self.engine.after(interval_ms, run)

        self.engine.after(self.engine.between(0, PAUSE_MS), run)

    def later(self, delay_ms: float, act: Callable[[], None]) -> None:
        """Call act after a delay, if this client is still alive then."""
        self.engine.after(delay_ms, lambda: act() if self.alive else None)

    def kill(self) -> None:
        """End the client: its state is lost."""
        self.engine.log(f"{self.name}: killed")
        self.alive = False
        self._asked.clear()
        for link in self._links.values():
            link.close()

    # Requests.

    def request(self, address: str, command: RemotingCommand, on_reply: OnReply, timeout_ms: float = TIMEOUT_MS) -> int:
        """Send a request; on_reply gets the reply, or None once none can come. Return its number."""
        self._opaque += 1
        opaque = command.opaque = self._opaque
        self._asked[opaque] = (address, on_reply)
        link = self._link(address)
        if link is None:
            self.engine.after(1, lambda: self._answered(opaque, None))
            return opaque
        link.to_server(encode_command(command))
        self.engine.after(timeout_ms, lambda: self._answered(opaque, None))
        return opaque

    def oneway(self, address: str, command: RemotingCommand) -> None:
        self._opaque += 1
        command.opaque, command.flag = self._opaque, command.flag | ONEWAY_FLAG
        link = self._link(address)
        if link is not None:
            link.to_server(encode_command(command))

    def _link(self, address: str) -> Link | None:
        link = self._links.get(address)
        if link is None or not link.is_open:
            link = self.network.connect(
                address, lambda data: self._received(address, data), lambda: self._lost(address)
            )
            if link is None:
                self._links.pop(address, None)
            else:
                self._links[address] = link
        return link

    def _lost(self, address: str) -> None:
        link = self._links.get(address)
        if link is None or link.is_open:
            return  # another connection replaced it
        for opaque in [opaque for opaque, (asked, _) in self._asked.items() if asked == address]:
            self._answered(opaque, None)

    def _received(self, address: str, data: bytes) -> None:
        command = first_command(data)
        if command.is_response and command.opaque not in self._asked:
            self.stray(command)
        elif command.is_response:
            self._answered(command.opaque, command)
        elif self.alive:
            self.asked(address, command)

    def _answered(self, opaque: int, reply: RemotingCommand | None) -> None:
        entry = self._asked.pop(opaque, None)
        if entry is not None and self.alive:
            entry[1](reply)

    def stray(self, reply: RemotingCommand) -> None:
        """Handle a reply without a waiting request: a late or duplicated one."""

    def asked(self, address: str, command: RemotingCommand) -> None:
        """Handle a request of a broker."""

    # Routes and heartbeats.

    def _ask_routes(self) -> None:
        for topic in self.topics:
            command = RemotingCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader(topic).to_ext())
            self.request(self.namesrv, command, partial(self._learn, topic))

    def _learn(self, topic: str, reply: RemotingCommand | None) -> None:
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        route = TopicRouteData.decode(reply.body)
        for broker in route.broker_datas:
            if broker.master is not None:
                self.addresses[broker.broker_name] = broker.master
        self.queues[topic] = [
            (topic, data.broker_name, queue_id)
            for data in route.queue_datas
            for queue_id in range(data.write_queue_nums)
        ]

    def _heartbeat(self) -> None:
        body = self.heartbeat().encode()
        for address in list(self.addresses.values()):
            self.request(address, RemotingCommand(RequestCode.HEART_BEAT, {}, body), lambda reply: None)

    def heartbeat(self) -> HeartbeatData:
        raise NotImplementedError


def number_of(body: bytes) -> int | None:
    """Return the number in a body, None if the body is none of ours."""
    head, _, rest = body.partition(b":")
    return int(head) if head.isdigit() and rest == bytes(len(rest)) else None


def note_read(history: History, at_ms: float, reader: str, place: Place, message: MessageExt) -> None:
    """Record a delivered record."""
    stored_ms = message.store_timestamp_ms - START_MS
    number = number_of(message.body)
    history.reads.append(
        Read(at_ms, reader, place, message.body, number, message.physical_offset, message.reconsume_times, stored_ms)
    )


def place_of(broker: str, message: MessageExt) -> Place:
    """Return the position of a pulled message."""
    return Place(broker, message.topic, message.queue_id, message.queue_offset)
