"""Requests about replicas, as a master without slaves answers them: 905 to 908, 1007.

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
    """Serves requests about replicas: there are none."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store

    def smallest_id_changed(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """905: a name server reports the smallest broker id of the group. A master ignores it."""
        return answer(peer, request)

    def exchange_places(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """906: a slave asks for the HA address. Replication is not supported yet."""
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
        """908: concerns slaves only."""
        return answer(peer, request)

    def epochs(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """1007. SystemError_: there is no controller; the text is Java's."""
        raise SystemError_("this request only for controllerMode ")
