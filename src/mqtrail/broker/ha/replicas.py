"""What a master knows of its slaves: who is connected, and how far each is."""

from dataclasses import dataclass

from ..config import BrokerConfig
from .sender import LogSender


@dataclass(frozen=True, slots=True)
class Replica:
    """A connected slave, for reports. address: of its connection. offsets: -1 before its first report."""

    address: str
    acked_offset: int
    next_offset: int


class Replicas:
    """The connected slaves of one master. senders: address of a connection -> its sender."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self._senders: dict[str, LogSender] = {}

    def add(self, address: str, sender: LogSender) -> None:
        """Note a new connection."""
        self._senders[address] = sender

    def remove(self, address: str) -> None:
        """Note a closed connection."""
        self._senders.pop(address, None)

    def __len__(self) -> int:
        return len(self._senders)

    def all(self) -> list[Replica]:
        """Return the connected slaves."""
        return [Replica(address, one.acked_offset, one.next_offset) for address, one in self._senders.items()]
