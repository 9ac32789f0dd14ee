"""Connected clients: producers and consumers by group, and the subscriptions of each consumer group.

Clients register by heartbeats. A connection that is closed, or silent for client_expire_ms, is removed. Subscriptions
belong to the group, not to the client: a heartbeat replaces those with a lower version, and they are removed with the
last client.

Source: ConsumerManager, ConsumerGroupInfo, ProducerManager, apache/rocketmq broker/client/.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from mqtrail.wire import ConsumerData, Peer, PeerId, SubscriptionData


@dataclass(slots=True)
class Client:
    """A connection as a member of a group."""

    peer: Peer
    client_id: str
    language: str
    version: int
    seen_ms: int
    account: str = ""
    """Access key of its newest heartbeat; empty without access control."""

    def renew(self, newer: "Client") -> None:
        """Update the member from a newer heartbeat of its connection."""
        self.client_id, self.seen_ms, self.account = newer.client_id, newer.seen_ms, newer.account


@dataclass(slots=True)
class ConsumerGroup:
    """The live members of a consumer group and its subscriptions."""

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
        """Return the distinct client ids; clients sort them to assign queues."""
        return sorted({member.client_id for member in self.members.values()})

    def member(self, client_id: str) -> Client | None:
        return next((member for member in self.members.values() if member.client_id == client_id), None)

    def subscribe(self, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Store newer subscriptions and remove those of other topics; return whether the set of topics changed."""
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
    """Return the approximate number of characters of subscriptions."""
    return sum(
        len(one.topic) + len(one.sub_string) + sum(map(len, one.tags_set)) + 10 * len(one.code_set)
        for one in subscriptions
    )


class ClientTable:
    """All live clients, by group and by connection."""

    def __init__(self) -> None:
        self._consumers: dict[str, ConsumerGroup] = {}
        self.subscriptions_size = 0  # of all consumer groups, in characters
        self._producers: dict[str, dict[PeerId, Client]] = {}
        self._groups_of: dict[PeerId, tuple[set[str], set[str]]] = {}
        self._producer_ids: dict[str, Client] = {}
        self.memberships = 0  # pairs of a connection and a group
        self._id_of: dict[PeerId, str] = {}  # connection of a producer -> its only id in _producer_ids

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def consumer_groups(self) -> Iterator[ConsumerGroup]:
        return iter(self._consumers.values())

    def producers(self, group: str) -> list[Client]:
        return list(self._producers.get(group, {}).values())

    def producer(self, client_id: str) -> Client | None:
        """Return the live producer with a client id, in any group."""
        return self._producer_ids.get(client_id)

    def producer_group_names(self) -> list[str]:
        return list(self._producers)

    def producer_groups(self) -> dict[str, list[Client]]:
        return {group: list(members.values()) for group, members in self._producers.items()}

    def groups_of(self, peer: PeerId) -> tuple[frozenset[str], frozenset[str]]:
        """Return the consumer groups and the producer groups of a connection."""
        consumers, producers = self._groups_of.get(peer, ((), ()))
        return frozenset(consumers), frozenset(producers)

    def producer_groups_with(self, groups: Iterable[str]) -> int:
        """Return the number of producer groups including these."""
        return len(self._producers) + sum(group not in self._producers for group in groups)

    def groups_subscribing(self, topic: str) -> set[str]:
        return {group.name for group in self._consumers.values() if topic in group.subscriptions}

    def register_producer(self, group: str, client: Client) -> None:
        known = self._producers.setdefault(group, {}).get(client.peer.id)
        if known is None:
            self._producers[group][client.peer.id] = client
            self._of(client.peer.id)[1].add(group)
            self.memberships += 1
        else:
            known.renew(client)
        if self._id_of.get(client.peer.id) != client.client_id:
            self._forget_producer_id(client.peer.id)
            self._id_of[client.peer.id] = client.client_id
        self._producer_ids[client.client_id] = client

    def register_consumer(self, data: ConsumerData, client: Client, *, subscriptions_known: bool = False) -> bool:
        """Store a heartbeat; return whether the members of the group must rebalance.

        subscriptions_known: the heartbeat has no subscriptions because they are unchanged (heartbeat v2).
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
            self.memberships += 1
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
            self.memberships -= 1
            producing = self._groups_of[peer][1]
            producing.discard(group)
            if not producing:
                self._forget_producer_id(peer)
        if not members:
            self._producers.pop(group, None)

    def _forget_producer_id(self, peer: PeerId) -> None:
        """Remove the client id of a connection that changed its id or is no longer a producer."""
        client_id = self._id_of.pop(peer, "")
        known = self._producer_ids.get(client_id)
        if known is not None and known.peer.id == peer:
            del self._producer_ids[client_id]

    def unregister_consumer(self, group_name: str, peer: PeerId) -> bool:
        """Remove a member; return whether it existed."""
        group = self._consumers.get(group_name)
        if group is None or group.members.pop(peer, None) is None:
            return False
        self.memberships -= 1
        self._groups_of[peer][0].discard(group_name)
        if not group.members:
            del self._consumers[group_name]
            self.subscriptions_size -= group.size
        return True

    def disconnect(self, peer: PeerId) -> list[str]:
        """Remove a connection; return its consumer groups."""
        consumers, producers = self._groups_of.pop(peer, (set(), set()))
        self._groups_of[peer] = (set(consumers), set(producers))
        for group in producers:
            self.unregister_producer(group, peer)
        left = [group for group in sorted(consumers) if self.unregister_consumer(group, peer)]
        del self._groups_of[peer]
        return left

    def expire(self, before_ms: int) -> list[str]:
        """Remove clients that are silent since before_ms; return the consumer groups that lost one."""
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
