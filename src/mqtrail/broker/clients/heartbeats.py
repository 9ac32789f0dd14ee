"""Client requests: heartbeats (34, 35, 46), members of groups (38, 40), queue locks (41, 42).

Source: ClientManageProcessor, ConsumerManageProcessor, DefaultConsumerIdsChangeListener, AdminBrokerProcessor,
apache/rocketmq broker/.
"""

from collections.abc import Generator, Iterable, Iterator
from typing import Final

from mqtrail.wire import (
    EXT_HEART_BEAT_V2,
    EXT_SUB_CHANGE,
    FLAG_ONEWAY,
    ConsumerData,
    ConsumerGroupHeader,
    ConsumerIdList,
    HeartbeatData,
    InvalidParameter,
    LockBatchBody,
    LockedQueues,
    MessageQueue,
    NoPermission,
    Peer,
    PeerId,
    Perm,
    RemotingCommand,
    RequestCode,
    Send,
    SubscriptionData,
    SystemError_,
    TopicSysFlag,
    UnregisterClientHeader,
    Work,
    answer,
    check_length,
    encode_list_in_slices,
    loads_request,
    queue_members,
    retry_topic,
)

from ..bounds import (
    CLIENT_GROUPS_MAX,
    CLIENT_ID_LENGTH_MAX,
    EXPRESSION_LENGTH_MAX,
    GROUP_NAME_LENGTH_MAX,
    LOCK_QUEUES_MAX,
    MEMBERSHIPS_MAX,
    SUBSCRIPTIONS_SIZE_MAX,
    check_count,
    check_heartbeat,
)
from ..filter import compile_expression, is_tag_type, require_filter
from ..jobs import BODY_SIZE_A_SLICE, CHANGES_A_SLICE, LOCKS_A_SLICE, NOTIFIED_A_SLICE
from ..state import BrokerState
from ..tables import Client, subscriptions_size

GROUPS_A_SLICE: Final = CHANGES_A_SLICE // 2  # of a heartbeat, each of which may be made, and its retry topic


class ClientRequests:
    """Updates the table of live clients, and notifies consumers of changes in their groups.

    account_of: the access key that signed a request, empty without access control.
    """

    def __init__(self, state: BrokerState) -> None:
        self._config = state.config
        self._account_of = state.access.account_of
        self._clients = state.clients
        self._groups = state.groups
        self._topics = state.topics
        self._locks = state.locks
        self._filters = state.filters
        self._fingerprints: dict[str, int] = {}
        self._left: set[str] = set()  # groups that lost a connection since the last scan
        self._opaque = 0
        self._to_notify: dict[str, None] = {}  # groups whose members are to be notified, besides those of _notifying
        self._notifying: Iterator[tuple[str, Client]] = iter(())
        self._is_notifying = False
        self._next_scan_ms: int | None = None

    def heartbeat(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """34: store producers and consumers, create retry topics, notify groups that changed.

        NoPermission: a live producer of another account has this client id.
        """
        if len(request.body) > BODY_SIZE_A_SLICE:
            yield
        data = HeartbeatData.decode(request.body)
        if not data.client_id:
            raise InvalidParameter("found a heartbeat without clientID, expected the client's id")
        check_heartbeat(data)
        if len(data.consumer_data_set) > GROUPS_A_SLICE:
            yield
        self._check_room(peer, data)
        if self._next_scan_ms is None:
            self._next_scan_ms = now_ms + self._config.client_scan_ms
        client = Client(peer, data.client_id, request.language, request.version, now_ms, self._account_of(request))
        self._check_owner(client)
        changed_groups = []
        subscriptions_changed = True
        for number, consumer in enumerate(data.consumer_data_set, 1):
            known = data.heartbeat_fingerprint != 0 and self._is_known(consumer.group_name, data.heartbeat_fingerprint)
            if known:
                subscriptions_changed = False
            if self._register_consumer(consumer, client, known or data.without_sub, now_ms):
                changed_groups.append(consumer.group_name)
            if not data.without_sub and self._clients.consumer_group(consumer.group_name) is not None:
                self._fingerprints[consumer.group_name] = data.heartbeat_fingerprint
            if number % GROUPS_A_SLICE == 0:
                yield
        for producer in data.producer_data_set:
            self._clients.register_producer(producer.group_name, client)
        ext = {EXT_HEART_BEAT_V2: "true", EXT_SUB_CHANGE: "true" if subscriptions_changed else "false"}
        return [*answer(peer, request, ext), *self._notify(changed_groups)]

    def _check_room(self, peer: Peer, data: HeartbeatData) -> None:
        """Check the bounds on groups of a heartbeat. InvalidParameter, SystemError_: exceeded."""
        consuming, producing = self._clients.groups_of(peer.id)
        consumers = {consumer.group_name for consumer in data.consumer_data_set}
        check_count("consumer groups of one connection", consuming | consumers, CLIENT_GROUPS_MAX)
        producers = {producer.group_name for producer in data.producer_data_set}
        check_count("producer groups of one connection", producing | producers, CLIENT_GROUPS_MAX)
        count = self._clients.producer_groups_with(producers)
        if count > self._config.producer_groups_max:
            raise SystemError_(
                f"found {count} producer groups with those of this heartbeat, expected at most "
                f"{self._config.producer_groups_max}: let producers share groups, or raise producer_groups_max"
            )
        memberships = self._clients.memberships + len(consumers - consuming) + len(producers - producing)
        if memberships > MEMBERSHIPS_MAX and (consumers - consuming or producers - producing):
            raise SystemError_(
                f"found {memberships} clients in groups with those of this heartbeat, expected at most "
                f"{MEMBERSHIPS_MAX}: let clients join fewer groups"
            )
        grown = 0
        for consumer in data.consumer_data_set:
            known = self._clients.consumer_group(consumer.group_name)
            size = subscriptions_size(consumer.subscription_data_set)
            grown += max(0, size - (0 if known is None else known.size))
        if grown and self._clients.subscriptions_size + grown > SUBSCRIPTIONS_SIZE_MAX:
            raise SystemError_(
                f"found subscriptions of {self._clients.subscriptions_size + grown} characters with those of this "
                f"heartbeat, expected at most {SUBSCRIPTIONS_SIZE_MAX}: use shorter expressions"
            )

    def _check_owner(self, client: Client) -> None:
        holder = self._clients.producer(client.client_id)
        if holder is None or holder.peer.id == client.peer.id or holder.account == client.account:
            return
        if not self._config.acl_like_apache:
            raise NoPermission(
                f"found client id {client.client_id} of a live client of another account, expected an unused one: set "
                "another instanceName"
            )

    def _is_known(self, group: str, fingerprint: int) -> bool:
        return self._clients.consumer_group(group) is not None and self._fingerprints.get(group) == fingerprint

    def _register_consumer(self, data: ConsumerData, client: Client, subscriptions_known: bool, now_ms: int) -> bool:
        group = self._groups.find(data.group_name, now_ms)
        if group is None:  # its pulls are refused with code 26
            return False
        if group.retry_queue_nums > 0:
            self._topics.create_own(
                retry_topic(group.group_name),
                group.retry_queue_nums,
                Perm.READ | Perm.WRITE,
                now_ms,
                TopicSysFlag.UNIT_SUB if data.unit_mode else 0,
            )
        changed = self._clients.register_consumer(data, client, subscriptions_known=subscriptions_known)
        if not subscriptions_known:
            self._filters.register(data.group_name, data.subscription_data_set, now_ms)
        return changed and group.notify_consumer_ids_changed_enable

    def unregister(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """35: the client leaves one group, or one of each kind."""
        header = UnregisterClientHeader.from_ext(request.ext)
        if header.producer_group:
            self._clients.unregister_producer(header.producer_group, peer.id)
        sends = []
        if header.consumer_group and self._clients.unregister_consumer(header.consumer_group, peer.id):
            self._forget_filters(header.consumer_group, now_ms)
            sends = self._notify_where_wanted([header.consumer_group])
        return [*answer(peer, request, {}), *sends]

    def consumer_ids(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """38: the live clients of the group. SystemError_: none, as in 5.3.3."""
        header = ConsumerGroupHeader.from_ext(request.ext)
        group = self._clients.consumer_group(header.consumer_group)
        if group is None:
            raise SystemError_(
                f"no consumer for this group, {header.consumer_group}: let its clients send heartbeats first"
            )
        return answer(peer, request, {}, body=ConsumerIdList(tuple(group.client_ids())).encode())

    def check_config(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """46: check a subscription. SubscriptionParseFailed, SystemError_: the broker cannot serve it."""
        body = loads_request(request.body)
        subscription = SubscriptionData()
        if isinstance(body, dict) and isinstance(body.get("subscriptionData"), dict):
            subscription = SubscriptionData.read(body["subscriptionData"])
        check_length(f"an expression for topic {subscription.topic}", subscription.sub_string, EXPRESSION_LENGTH_MAX)
        require_filter(subscription, self._config.property_filter)
        if is_tag_type(subscription.expression_type):
            SubscriptionData.build(subscription.topic, subscription.sub_string)
        else:
            compile_expression(subscription.expression_type, subscription.sub_string)
        return answer(peer, request)

    def lock(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """41: lock queues for a client that consumes in order."""
        body = yield from _lock_body(request)
        locked: list[MessageQueue] = []
        for first in range(0, len(body.mq_set), LOCKS_A_SLICE):
            if first:
                yield
            queues = body.mq_set[first : first + LOCKS_A_SLICE]
            locked += self._locks.lock(body.consumer_group, body.client_id, queues, now_ms)
        found = map(queue_members, locked)
        return answer(
            peer, request, body=(yield from encode_list_in_slices(LockedQueues(), "lockOKMQSet", found, LOCKS_A_SLICE))
        )

    def unlock(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """42."""
        body = yield from _lock_body(request)
        for first in range(0, len(body.mq_set), LOCKS_A_SLICE):
            if first:
                yield
            queues = body.mq_set[first : first + LOCKS_A_SLICE]
            self._locks.unlock(body.consumer_group, body.client_id, queues)
        return answer(peer, request)

    def _forget_filters(self, group: str, now_ms: int) -> None:
        """Update the filters of a group without members."""
        if self._clients.consumer_group(group) is None:
            self._filters.unregister(group, now_ms)

    # Clients that leave without unregistering.

    def disconnected(self, peer: PeerId) -> list[Send]:
        """Remove the clients of a closed connection; return notifications for their groups."""
        left = self._clients.disconnect(peer)
        self._left.update(left)
        return self._notify_where_wanted(left)

    def set_back(self, by_ms: int) -> None:
        """Continue without waiting, after the clock was set back."""
        if self._next_scan_ms is not None:
            self._next_scan_ms -= by_ms

    def next_tick_ms(self) -> int | None:
        return 0 if self._is_notifying else self._next_scan_ms

    def tick(self, now_ms: int) -> list[Send]:
        """Remove clients that are silent for client_expire_ms; return notifications for their groups."""
        if self._next_scan_ms is None or now_ms < self._next_scan_ms:
            return self._notify_some()
        self._next_scan_ms = now_ms + self._config.client_scan_ms
        left = self._clients.expire(now_ms - self._config.client_expire_ms)
        for name in self._left.union(left):
            self._forget_filters(name, now_ms)
        self._left.clear()
        self._fingerprints = {
            group: mark for group, mark in self._fingerprints.items() if self._clients.consumer_group(group) is not None
        }
        return self._notify_where_wanted(left)

    def _notify_where_wanted(self, groups: Iterable[str]) -> list[Send]:
        wanted = []
        for name in groups:
            config = self._groups.get(name)
            if config is None or config.notify_consumer_ids_changed_enable:
                wanted.append(name)
        return self._notify(wanted)

    def _notify(self, groups: Iterable[str]) -> list[Send]:
        """Return 40, one-way, for each member of the groups that rebalance; `tick` returns the rest if there are
        many."""
        self._to_notify.update(dict.fromkeys(groups))
        return self._notify_some()

    def _notify_some(self) -> list[Send]:
        sends: list[Send] = []
        while len(sends) < NOTIFIED_A_SLICE:
            notified = next(self._notifying, None)
            if notified is None:
                if not self._to_notify:
                    break
                name = next(iter(self._to_notify))
                del self._to_notify[name]
                group = self._clients.consumer_group(name)
                if group is not None and not group.broadcasts:
                    self._notifying = iter([(name, member) for member in group.members.values()])
                continue
            name, member = notified
            self._opaque += 1
            command = RemotingCommand(
                RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
                ConsumerGroupHeader(name).to_ext(),
                opaque=self._opaque & 0x7FFFFFFF,
                flag=FLAG_ONEWAY,
            )
            sends.append(Send(member.peer.id, command))
        self._is_notifying = bool(self._to_notify) or len(sends) >= NOTIFIED_A_SLICE
        return sends


def _lock_body(request: RemotingCommand) -> Generator[None, None, LockBatchBody]:
    """Return the queues to lock or unlock. InvalidParameter: too many queues, or too long names."""
    if len(request.body) > BODY_SIZE_A_SLICE:
        yield
    body = LockBatchBody.decode(request.body)
    if len(body.mq_set) > LOCKS_A_SLICE:
        yield
    check_count("queues", body.mq_set, LOCK_QUEUES_MAX)
    check_length("a consumer group", body.consumer_group, GROUP_NAME_LENGTH_MAX)
    check_length("a clientID", body.client_id, CLIENT_ID_LENGTH_MAX)
    for queue in body.mq_set:
        check_length("a topic", queue.topic, GROUP_NAME_LENGTH_MAX)
        check_length("a broker's name", queue.broker_name, GROUP_NAME_LENGTH_MAX)
    return body
