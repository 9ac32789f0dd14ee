"""What a master without slaves answers about them: 905 to 908, 1007.

Source: AdminBrokerProcessor, DefaultHAService.getRuntimeInfo, apache/rocketmq broker/ and store/.
"""

from mqtrail.wire import (
    ExchangeHaInfoHeader,
    HaRuntimeInfo,
    Peer,
    RemotingCommand,
    Send,
    SystemError_,
    answer,
)

from ..state import BrokerState


class ReplicaRequests:
    """Tells of replicas: that there are none."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store

    def smallest_id_changed(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """905: a name server tells who is the first of this broker's group. A master goes on as it did."""
        return answer(peer, request)

    def exchange_places(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """906: a slave asks where to copy from. Nothing listens at the HA address yet."""
        header = ExchangeHaInfoHeader.from_ext(request.ext)
        if header.master_ha_address is not None:
            return answer(peer, request, {})
        config = self._config
        reply = ExchangeHaInfoHeader(str(config.ha_address), self._store.flushed_offset, str(config.address))
        return answer(peer, request, reply.to_ext())

    def status(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """907."""
        return answer(peer, request, body=HaRuntimeInfo(master_commit_log_max_offset=self._store.end_offset).encode())

    def reset_flushed(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """908: says something to slaves alone."""
        return answer(peer, request)

    def epochs(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """1007. SystemError_: there is no controller, in Java's words."""
        raise SystemError_("this request only for controllerMode ")
