"""The fast port of a broker, two below its own: clients with vipChannelEnabled (the default before 4.5.1) send there.

In Apache's broker it prevents many pulls from delaying sends. Here one loop serves both ports; the fast port exists
only for these clients. It serves the same requests, except the reads that Apache's broker rejects there (code 3).

Source: BrokerController.registerProcessor (fastRemotingServer), apache/rocketmq 5.3.3 broker/.
"""

from collections.abc import Callable
from typing import Final, cast

from mqtrail.broker import OWN_PORT_CODES
from mqtrail.net import ServerConnection, next_command
from mqtrail.wire import Peer, RequestCodeNotSupported, answer

from .broker_shell import BrokerShell

PORT_STEP: Final = -2  # from the broker's port; RocketMQ: fastListenPort
FIRST_ID: Final = 1 << 40  # first connection id: no id is used on both ports


class FastPort:
    """The `net.Application` of the fast port, over a broker's shell."""

    def __init__(self, shell: BrokerShell, clock: Callable[[], int]) -> None:
        self._shell = shell
        self._clock = clock

    def connected(self, connection: ServerConnection) -> None:
        self._shell.connected(connection)

    def disconnected(self, connection: ServerConnection) -> None:
        self._shell.disconnected(connection)

    def process(self, connection: ServerConnection, buffer: bytes, start: int, end: int) -> int:
        """Serve one command after another. RemotingError: the bytes are malformed."""
        now_ms = self._clock()
        peer = cast(Peer, connection.data)
        try:
            while start < end and not connection.write_paused:
                command, start = next_command(buffer, start, end)
                if command is None:
                    break
                if command.code not in OWN_PORT_CODES or command.is_response:
                    self._shell.write(self._shell.decide(peer, command, now_ms))
                elif not command.is_oneway:
                    remark = f" request type {command.code} not supported: send it to the broker's own port, two above"
                    self._shell.write(answer(peer, command, code=RequestCodeNotSupported.code, remark=remark))
                if connection.turn_is_over():
                    break
        finally:
            self._shell.set_timer()
        return start
