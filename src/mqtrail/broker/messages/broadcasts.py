"""Offsets of broadcasting clients behind proxies.

A broadcasting client normally stores its own offsets. Clients behind a proxy cannot: a pull from a proxy with an offset
below 0 is answered with the offset to start from. The same applies to a client that moves from a proxy to a direct
connection, or back. The lowest offset of all live clients of a group is committed as group@broadcast; a new client
behind a proxy starts there.

Source: BroadcastOffsetManager, PullMessageProcessor.queryBroadcastPullInitOffset, apache/rocketmq 5.3.3 broker/.
"""

from dataclasses import dataclass, field
from typing import Final

from mqtrail.wire import ConsumeType, Peer, PullHeader

from ..state import BrokerState
from ..tables import is_young

PROXY_BROADCAST: Final = 1  # requestSource: a proxy pulls for one of its broadcasting clients
CLIENTS_MAX: Final = 100_000  # maximum number of clients; offsets of further ones are not kept
_Key = tuple[str, str, str]  # topic, group, client id


@dataclass(slots=True)
class _Client:
    from_proxy: bool
    seen_ms: int
    queue_offsets: dict[int, int] = field(default_factory=dict)


class BroadcastOffsets:
    """Offsets of broadcasting clients, by topic, group and client."""

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._store = state.store
        self._clients = state.clients
        self._offsets = state.offsets
        self._known: dict[_Key, _Client] = {}
        self._counts: dict[tuple[str, str], int] = {}  # clients of a (topic, group)

    def client_of(self, peer: Peer, header: PullHeader) -> str | None:
        """Return the client that a pull is for; None: the group does not broadcast."""
        if not self._config.broadcast_offsets:
            return None
        if header.request_source == PROXY_BROADCAST:
            return header.proxy_froward_client_id or ""
        group = self._clients.consumer_group(header.consumer_group)
        if group is None or not group.broadcasts or group.consume_type != ConsumeType.CONSUME_PASSIVELY:
            return None
        member = group.members.get(peer.id)
        return None if member is None else member.client_id

    def start(self, client_id: str, header: PullHeader, now_ms: int) -> int | None:
        """Return the offset at which the client must start; None: the offset of its request is valid."""
        from_proxy = header.request_source == PROXY_BROADCAST
        asks = from_proxy and header.queue_offset < 0
        topic, group = header.topic, header.consumer_group
        if (topic, group) not in self._counts:
            return self._begin(None, header) if asks else None
        client = self._client((topic, group, client_id), from_proxy, now_ms)
        if client is None:
            return self._begin(None, header) if asks else None
        if (asks and client.from_proxy) or client.from_proxy != from_proxy:
            return self._begin(client, header)
        return None

    def _begin(self, client: _Client | None, header: PullHeader) -> int:
        topic, queue_id = header.topic, header.queue_id
        offset = None if client is None else client.queue_offsets.get(queue_id)
        if offset is None:
            offset = self._offsets.get(broadcast_group(header.consumer_group), topic, queue_id)
        if offset is None:
            young = is_young(self._store, topic, queue_id, self._config.young_queue_size)
            offset = 0 if young else self._store.max_offset(topic, queue_id)
        return offset

    def note(self, client_id: str, header: PullHeader, queue_offset: int, now_ms: int) -> None:
        """Store the offset of a client: the one that it pulled from, or the start offset in the answer."""
        from_proxy = header.request_source == PROXY_BROADCAST
        client = self._client((header.topic, header.consumer_group, client_id), from_proxy, now_ms)
        if client is not None:
            client.from_proxy, client.seen_ms = from_proxy, now_ms
            known = client.queue_offsets.get(header.queue_id, 0)
            client.queue_offsets[header.queue_id] = max(known, queue_offset)

    def _client(self, key: _Key, from_proxy: bool, now_ms: int) -> _Client | None:
        known = self._known.get(key)
        if known is None and len(self._known) < CLIENTS_MAX:
            known = self._known[key] = _Client(from_proxy, now_ms)
            self._counts[key[:2]] = self._counts.get(key[:2], 0) + 1
        return known

    def commit(self, now_ms: int) -> None:
        """Commit the lowest offset of the live clients and remove clients that left. Call it before offsets are
        saved."""
        least: dict[tuple[str, str, int], int] = {}
        for key, client in list(self._known.items()):
            topic, group, client_id = key
            members = self._clients.consumer_group(group)
            online = members is not None and members.member(client_id) is not None
            silent_ms = now_ms - client.seen_ms
            if online or silent_ms < self._config.broadcast_expire_ms:
                for queue_id, offset in client.queue_offsets.items():
                    place = (group, topic, queue_id)
                    least[place] = min(least.get(place, offset), offset)
            if silent_ms >= (self._config.broadcast_expire_max_ms if online else self._config.broadcast_expire_ms):
                self._forget(key)
        for (group, topic, queue_id), offset in least.items():
            if self._offsets.get(broadcast_group(group), topic, queue_id) != offset:
                self._offsets.commit(broadcast_group(group), topic, queue_id, offset)

    def _forget(self, key: _Key) -> None:
        del self._known[key]
        self._counts[key[:2]] -= 1
        if not self._counts[key[:2]]:
            del self._counts[key[:2]]


def broadcast_group(group: str) -> str:
    """Return the group name under which the common offset of a broadcasting group is stored."""
    return f"{group}@broadcast"
