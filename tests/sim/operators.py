"""Operators: create topics, and record the brokers' replies. An acknowledged topic must stay."""

from mqtrail.wire import CreateTopicHeader, Perm, RemotingCommand, RequestCode, ResponseCode, encode_command

from .engine import Engine
from .history import History
from .network import Link, Network
from .servers import SimBroker, first_command

PACE_MS = (20.0, 600.0)  # between two topics


class Operator:
    """Creates topics on one broker until it is stopped. Without a reply it continues with the next one."""

    def __init__(self, engine: Engine, network: Network, history: History, broker: SimBroker) -> None:
        self._engine, self._network, self._history, self._broker = engine, network, history, broker
        self._link: Link | None = None
        self._asked: list[str] = []
        self.stopped = False
        self._later()

    def _later(self) -> None:
        self._engine.after(self._engine.between(*PACE_MS), self._next)

    def _next(self) -> None:
        if self.stopped:
            return
        if self._link is None or not self._link.is_open:
            self._link = self._network.connect(str(self._broker.address), self._heard, lambda: None)
        if self._link is not None:
            topic = f"made-{len(self._asked)}"
            ext = CreateTopicHeader(topic, 1, 1, int(Perm.READ | Perm.WRITE)).to_ext()
            command = RemotingCommand(RequestCode.UPDATE_AND_CREATE_TOPIC, ext, opaque=len(self._asked))
            self._asked.append(topic)
            self._link.to_server(encode_command(command))
        self._later()

    def _heard(self, data: bytes) -> None:
        reply = first_command(data)
        if reply.is_response and reply.code == ResponseCode.SUCCESS:
            self._history.made.setdefault(self._broker.name, {})[self._asked[reply.opaque]] = None
