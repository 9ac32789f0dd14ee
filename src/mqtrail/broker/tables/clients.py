"""Who is connected: producers and consumers by group, and what each consumer group subscribes to.

A client says who it is in heartbeats; a connection that closes or stays silent for client_expire_ms is forgotten. What
a group subscribes to belongs to the group, not to the client: the newest heartbeat replaces it where its version is
higher, and the last client to leave takes it away.

Source: ConsumerManager, ConsumerGroupInfo, ProducerManager, apache/rocketmq broker/client/.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mqtrail.wire import ConsumerData, Peer, PeerId, SubscriptionData


@dataclass(slots=True)
class Client:
    """One connection's part in one group."""

    peer: Peer
    client_id: str
    language: str
    version: int
    seen_ms: int
    account: str = ""
    """The access key that signed its newest heartbeat; empty without access control."""

    def renew(self, newer: "Client") -> None:
        """Take over what a newer heartbeat of the same connection says."""
        self.client_id, self.seen_ms, self.account = newer.client_id, newer.seen_ms, newer.account


@dataclass(slots=True)
class ConsumerGroup:
    """The live members of a consumer group and what they subscribe to."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    members: dict[PeerId, Client] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    size: int = 0  # of the subscriptions, in characters

    @property
    def broadcasts(self) -> bool:
        return self.message_model == "BROADCASTING"

    def client_ids(self) -> list[str]:
        """Return the members' ids, each once; clients sort them to share the queues out."""
        return sorted({member.client_id for member in self.members.values()})

    def member(self, client_id: str) -> Client | None:
        return next((member for member in self.members.values() if member.client_id == client_id), None)

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Take over newer subscriptions, forget those of topics not named; return whether topics came or went."""
        changed = False
        named = set()
        for subscription in subscriptions:
            named.add(subscription.topic)
            known = self.subscriptions.get(subscription.topic)
            if known is None:
                changed = True
            if known is None or subscription.sub_version > known.sub_version:
                self.subscriptions[subscription.topic] = subscription
        for topic in self.subscriptions.keys() - named:
            del self.subscriptions[topic]
            changed = True
        return changed


def subscriptions_size(subscriptions: Iterable[SubscriptionData]) -> int:
    """Return about how many characters subscriptions hold."""
    return sum(
        len(one.topic) + len(one.sub_string) + sum(map(len, one.tags_set)) + 10 * len(one.code_set)
        for one in subscriptions
    )


class ClientTable:
    """All live clients. Answers who consumes and who produces, and who must hear of a change."""

    def __init__(self) -> None:
        self._consumers: dict[str, ConsumerGroup] = {}
        self.subscriptions_size = 0  # of all consumer groups, in characters
        self._producers: dict[str, dict[PeerId, Client]] = {}
        self._groups_of: dict[PeerId, tuple[set[str], set[str]]] = {}
        self._producer_ids: dict[str, Client] = {}
        self._id_of: dict[PeerId, str] = {}  # of a producer's connection: the one id it has in _producer_ids

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def consumer_groups(self) -> Iterator[ConsumerGroup]:
        return iter(self._consumers.values())

    def producers(self, group: str) -> list[Client]:
        return list(self._producers.get(group, {}).values())

    def producer(self, client_id: str) -> Client | None:
        """Return the live producer of a client id, whatever its groups."""
        return self._producer_ids.get(client_id)

    def producer_groups(self) -> dict[str, list[Client]]:
        return {group: list(members.values()) for group, members in self._producers.items()}

    def groups_of(self, peer: PeerId) -> tuple[frozenset[str], frozenset[str]]:
        """Return the consumer groups and the producer groups that a connection is in."""
        consumers, producers = self._groups_of.get(peer, ((), ()))
        return frozenset(consumers), frozenset(producers)

    def producer_groups_with(self, groups: Iterable[str]) -> int:
        """Return how many producer groups there would be with these."""
        return len(self._producers) + sum(group not in self._producers for group in groups)

    def groups_subscribing(self, topic: str) -> set[str]:
        return {group.name for group in self._consumers.values() if topic in group.subscriptions}

    def register_producer(self, group: str, client: Client) -> None:
        known = self._producers.setdefault(group, {}).get(client.peer.id)
        if known is None:
            self._producers[group][client.peer.id] = client
            self._of(client.peer.id)[1].add(group)
        else:
            known.renew(client)
        if self._id_of.get(client.peer.id) != client.client_id:
            self._forget_producer_id(client.peer.id)
            self._id_of[client.peer.id] = client.client_id
        self._producer_ids[client.client_id] = client

    def register_consumer(self, data: ConsumerData, client: Client, *, subscriptions_known: bool = False) -> bool:
        """Note a heartbeat; return whether the group's members must be told that they share the queues anew.

        subscriptions_known: the heartbeat left its subscriptions out because they are as before (heartbeat v2).
        """
        group = self._consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.group_name, data.consume_type, data.message_model, data.consume_from_where)
            self._consumers[data.group_name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(client.peer.id)
        if known is None:
            group.members[client.peer.id] = client
            self._of(client.peer.id)[0].add(group.name)
        else:
            known.renew(client)
        changed = known is None
        if not subscriptions_known:
            changed |= group.subscribe(data.subscription_data_set)
            size = subscriptions_size(group.subscriptions.values())
            self.subscriptions_size += size - group.size
            group.size = size
        return changed

    def _of(self, peer: PeerId) -> tuple[set[str], set[str]]:
        return self._groups_of.setdefault(peer, (set(), set()))

    def unregister_producer(self, group: str, peer: PeerId) -> None:
        members = self._producers.get(group, {})
        member = members.pop(peer, None)
        if member is not None:
            producing = self._groups_of[peer][1]
            producing.discard(group)
            if not producing:
                self._forget_producer_id(peer)
        if not members:
            self._producers.pop(group, None)

    def _forget_producer_id(self, peer: PeerId) -> None:
        """Forget the client id of a connection that has another one now, or is no producer any more."""
        client_id = self._id_of.pop(peer, "")
        known = self._producer_ids.get(client_id)
        if known is not None and known.peer.id == peer:
            del self._producer_ids[client_id]

    def unregister_consumer(self, group_name: str, peer: PeerId) -> bool:
        """Forget one member; return whether it was one."""
        group = self._consumers.get(group_name)
        if group is None or group.members.pop(peer, None) is None:
            return False
        self._groups_of[peer][0].discard(group_name)
        if not group.members:
            del self._consumers[group_name]
            self.subscriptions_size -= group.size
        return True

    def disconnect(self, peer: PeerId) -> list[str]:
        """Forget a connection; return the consumer groups it was a member of."""
        consumers, producers = self._groups_of.pop(peer, (set(), set()))
        self._groups_of[peer] = (set(consumers), set(producers))
        for group in producers:
            self.unregister_producer(group, peer)
        left = [group for group in sorted(consumers) if self.unregister_consumer(group, peer)]
        del self._groups_of[peer]
        return left

    def expire(self, before_ms: int) -> list[str]:
        """Forget clients not heard of since before_ms; return the consumer groups that lost one."""
        left: dict[str, None] = {}
        for group in list(self._consumers.values()):
            for member in [member for member in group.members.values() if member.seen_ms < before_ms]:
                self.unregister_consumer(group.name, member.peer.id)
                left[group.name] = None
        for name, members in list(self._producers.items()):
            for member in [member for member in members.values() if member.seen_ms < before_ms]:
                self.unregister_producer(name, member.peer.id)
        for peer in [peer for peer, (consumers, producers) in self._groups_of.items() if not consumers | producers]:
            del self._groups_of[peer]
        return list(left)
