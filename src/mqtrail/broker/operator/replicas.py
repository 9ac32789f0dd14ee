"""Requests about replicas: 905 to 908, 1007, 1008.

Source: AdminBrokerProcessor, DefaultHAService.getRuntimeInfo, apache/rocketmq broker/ and store/.
"""

from mqtrail.wire import (
    EpochCache,
    EpochEntry,
    ExchangeHaInfoHeader,
    HaClientInfo,
    HaRuntimeInfo,
    Peer,
    RemotingCommand,
    RequestCodeNotSupported,
    Send,
    SystemError_,
    answer,
)

from ..ha import Replica
from ..state import BrokerState

NO_END = (1 << 63) - 1  # of the last epoch


def _progress(slave: Replica, end_offset: int, now_ms: int) -> dict[str, int]:
    """Return what Apache's broker does not report of a slave in controller mode: its id, and how far it is behind."""
    if slave.broker_id is None or slave.caught_up_ms is None:
        return {}
    lag_ms = 0 if slave.acked_offset >= end_offset else max(0, now_ms - slave.caught_up_ms)
    return {"brokerId": slave.broker_id, "lagMs": lag_ms}


class ReplicaRequests:
    """Serves requests about replicas."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store
        self._replicas = state.replicas

    def smallest_id_changed(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """905: a name server reports the smallest broker id of the group. A master ignores it."""
        return answer(peer, request)

    def exchange_places(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """906: a slave asks for the HA address."""
        header = ExchangeHaInfoHeader.from_ext(request.ext)
        if header.master_ha_address is not None:
            return answer(peer, request, {})
        config = self._config
        reply = ExchangeHaInfoHeader(str(config.ha_address), self._store.flushed_offset, str(config.address))
        return answer(peer, request, reply.to_ext())

    def status(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """907: who follows this master, or how this slave follows."""
        return answer(
            peer, request, body=(self._as_slave() if self._config.is_slave else self._as_master(now_ms)).encode()
        )

    def _as_master(self, now_ms: int) -> HaRuntimeInfo:
        end_offset = self._store.end_offset
        return HaRuntimeInfo(
            master_commit_log_max_offset=end_offset,
            in_sync_slave_nums=self._replicas.in_sync_count - 1,
            ha_connection_info=tuple(
                {
                    "addr": one.address,
                    "diff": end_offset - one.acked_offset,
                    "inSync": one.is_in_sync,
                    "slaveAckOffset": one.acked_offset,
                    "transferFromWhere": one.next_offset,
                    "transferredByteInSecond": one.rate,
                }
                | _progress(one, end_offset, now_ms)
                for one in self._replicas.all(now_ms)
            ),
        )

    def _as_slave(self) -> HaRuntimeInfo:
        following = self._replicas.following
        return HaRuntimeInfo(
            master=False,
            ha_client_runtime_info=HaClientInfo(
                last_read_timestamp=following.read_ms,
                last_write_timestamp=following.reported_ms,
                master_addr=following.master or None,
                max_offset=self._store.end_offset,
            ),
        )

    def reset_flushed(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """908: concerns slaves only."""
        return answer(peer, request)

    def epochs(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """1007: the epochs of the log. SystemError_: there is no controller; the text is Java's."""
        config, epochs = self._config, self._replicas.epochs
        if not config.controller_mode:
            raise SystemError_("this request only for controllerMode ")
        found, in_sync = epochs.all(), self._replicas.in_sync
        ends = [epoch.start_offset for epoch in found[1:]] + [NO_END]
        body = EpochCache(
            broker_id=config.broker_id if in_sync is None else in_sync.term.broker_id,
            broker_name=config.broker_name,
            cluster_name=config.cluster_name,
            epoch_list=tuple(
                EpochEntry(end_offset=end, epoch=epoch.number, start_offset=epoch.start_offset)
                for epoch, end in zip(found, ends, strict=False)
            ),
            max_offset=self._store.end_offset,
        )
        return answer(peer, request, body=body.encode())

    def role_changed(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """1008: the controller reports another master. The node asks it which: any client could send this."""
        if not self._config.controller_mode:
            raise RequestCodeNotSupported(f" request type {request.code} not supported")
        self._replicas.on_role_changed()
        return answer(peer, request)
