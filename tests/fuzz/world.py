"""A broker with topics and groups of two parties. The fuzzer acts as one of them and must not reach the other's.

The frames come from `traders`, who own topic `orders` and group `g`. With access control on they have one or a few
permissions, different ones in each life. Everything else belongs to the other party: no answer may show it, and no
frame may change it. Both are checked, so a code without a permission check is found whatever it does.
"""

import random
from collections.abc import Iterable
from typing import Final

from mqtrail.broker import Broker, BrokerConfig
from mqtrail.broker.access.policies import Acl, Entry, Resource, User, UserType
from mqtrail.store import CommitLogConfig, ConfigFileStore, MemoryStore, PendingRecord
from mqtrail.wire import (
    ConsumerData,
    Credentials,
    HeartbeatData,
    Host,
    Peer,
    PeerId,
    ProducerData,
    RemotingCommand,
    RequestCode,
    ResponseCode,
    Send,
    SubscriptionData,
    SubscriptionGroupConfig,
    TopicConfig,
    encode_command,
    encode_properties,
    sign,
)

from .limits import Bug
from .plausible import HIDDEN

START_MS: Final = 1_700_000_000_000
PEER: Final = Peer(PeerId(7), Host("10.0.0.7", 40_007))
VICTIM: Final = Peer(PeerId(9), Host("10.0.0.9", 40_009))
OWNERS: Final = Credentials(access_key="landlords", secret_key="landlordpass")
SECRET: Final = b"only for h: 7f3a"
STORE: Final = CommitLogConfig(
    segment_size=1 << 22,
    queue_entries=1_000,
    index_slots=100,
    index_entries=2_000,
    message_size_max=1 << 20,
    timer_log_file_size=52 * 640 + 16,
)
TOPICS: Final = ("orders", "%RETRY%g", "%DLQ%g", "secret", "%RETRY%h", "%DLQ%h", "ns%orders", HIDDEN[0])
OTHERS: Final = TOPICS[3:]
GROUPS: Final = ("g", "h", HIDDEN[1])
POPPED: Final = 6  # messages of each topic that are popped at the start
OFFERED: Final = frozenset({RequestCode.CHECK_TRANSACTION_STATE})  # commands that a broker sends without a request


class World:
    """A broker. access: "open", "users" (5.x) or "files" (4.x)."""

    def __init__(self, chance: random.Random, access: str = "open", files: ConfigFileStore | None = None) -> None:
        numbers = iter(range(1 << 60))
        self.config = BrokerConfig(
            message_size_max=1 << 20,
            topics_max=2_000,
            groups_max=2_000,
            property_filter=True,
            acl=access == "files",
            authentication=access == "users",
            authorization=access == "users",
        )
        self.store = MemoryStore(STORE)
        self.broker = Broker(self.config, self.store, files, unique_id=lambda: f"{next(numbers):032X}", now_ms=START_MS)
        self.access = access
        self.handles: list[str] = []
        if access != "open":
            self._grant(chance)
        self._fill()
        self.places = [self._put(topic, half) for topic in TOPICS[:5] for half in (False, True)]
        self._put(HIDDEN[0], False)
        self._pop()
        self._before = self._others()

    def _fill(self) -> None:
        broker = self.broker
        for topic in TOPICS:
            broker.topics.update(TopicConfig(topic, 2, 2), START_MS)
        for group in GROUPS:
            broker.groups.update(SubscriptionGroupConfig(group), START_MS)
        for group, topic in (("g", "orders"), ("h", "secret"), HIDDEN[::-1]):
            broker.offsets.commit(group, topic, 0, 1)
        subscriptions = (SubscriptionData.build("secret", "*"),)
        consumers = (ConsumerData("h", subscription_data_set=subscriptions), ConsumerData(HIDDEN[1]))
        heartbeat = HeartbeatData("victim", (ProducerData("ph"),), consumers)
        self._ask(RemotingCommand(RequestCode.HEART_BEAT, {}, heartbeat.encode()))

    def _ask(self, request: RemotingCommand) -> RemotingCommand:
        """Return the reply to a request of the owner of everything."""
        sign(request, OWNERS)
        sends = self.broker.handle(VICTIM, request, START_MS)
        (found,) = [send.command for send in sends if send.command.is_response]
        assert found.code == ResponseCode.SUCCESS, found
        return found

    def _put(self, topic: str, half: bool) -> int:
        """Store messages; return the position of the first one. half: store one half message."""
        own = topic in ("orders", "%RETRY%g", "%DLQ%g")
        names = {"KEYS": "k", "UNIQ_KEY": "0" * 32, "k": "x"}
        if half:
            names |= {"REAL_TOPIC": topic, "REAL_QID": "0", "PGROUP": "pg" if own else "ph", "TRAN_MSG": "true"}
        text = encode_properties(names).encode()
        record = PendingRecord(
            "RMQ_SYS_TRANS_HALF_TOPIC" if half else topic, 0, b"own" if own else SECRET, text, 0, START_MS, bytes(8)
        )
        return self.store.append([record] * (1 if half else POPPED + 4), START_MS)[0].physical_offset

    def _pop(self) -> None:
        """Pop messages of both parties, so that valid handles exist."""
        for topic, group in (("orders", "g"), ("secret", "h")):
            ext = {
                "consumerGroup": group, "topic": topic, "queueId": "0", "maxMsgNums": str(POPPED),
                "invisibleTime": "60000", "pollTime": "0", "bornTime": str(START_MS), "initMode": "0", "order": "false",
            }  # fmt: skip
            found = self._ask(RemotingCommand(RequestCode.POP_MESSAGE, ext)).ext
            for item in found["startOffsetInfo"].split(";"):
                marker, queue_id, start = item.split(" ")
                handle = f"{start} {found['popTime']} 60000 {found['reviveQid']} {marker} broker-a {queue_id}"
                self.handles += [handle, *(f"{handle} {int(start) + more}" for more in range(POPPED))]

    def _grant(self, chance: random.Random) -> None:
        actions = chance.sample(("Pub", "Sub", "Get", "Create", "Update", "Delete"), chance.choice((0, 1, 1, 2, 6)))
        if self.access == "files":
            topic = "|".join(action.upper() for action in ("Pub", "Sub") if action in actions) or "DENY"
            group = "SUB" if "Sub" in actions else "DENY"
            self.broker.access.load_acl(
                {
                    "f": "accounts: [{accessKey: landlords, secretKey: landlordpass, admin: true}, "
                    "{accessKey: traders, secretKey: traderpass, admin: false, "
                    f"topicPerms: ['orders={topic}'], groupPerms: ['g={group}']}}]"
                }
            )
            return
        auth = self.broker.access.auth
        auth.put_user(User(OWNERS.access_key, OWNERS.secret_key, UserType.SUPER))
        auth.put_user(User("traders", "traderpass"))
        entries = tuple(
            Entry(Resource(kind, name), tuple(actions), (), True, ())
            for kind, name in (("Topic", "orders"), ("Group", "g"))
            if actions
        )
        if entries:
            auth.put_acl("User:traders", Acl(entries))

    # What belongs to others.

    def _others(self) -> dict[str, object]:
        """Return the state that only the other party may change."""
        broker, store = self.broker, self.store
        topics, groups = broker.topics.all(), broker.groups.all()
        return {
            **{f"messages of {topic}": [store.max_offset(topic, queue) for queue in (0, 1)] for topic in OTHERS},
            **{f"topic {topic}": topics.get(topic) for topic in OTHERS},
            **{f"group {group}": groups.get(group) for group in GROUPS[1:]},
            **{
                f"offset of {group}": broker.offsets.get(group, topic, 0)
                for group, topic in (("h", "secret"), HIDDEN[::-1])
            },
            "users": dict(broker.access.auth.users),
            "policies": dict(broker.access.auth.acls),
            "accounts": broker.access.plain.rules.accounts,
            "settings": broker.settings_version,
        }

    def check_changes(self) -> None:
        """Bug: data of the other party changed."""
        if self.access == "open":
            return
        for name, now in self._others().items():
            if now != self._before[name]:
                raise Bug(f"{name}: changed from {self._before[name]} to {now} without permission")

    def check_answers(self, sends: Iterable[Send]) -> None:
        """Bug: data of the other party is shown, or another client gets a command."""
        for send in sends:
            data = encode_command(send.command)
            if self.access == "open":
                continue
            if send.peer != PEER.id:
                if send.command.code not in OFFERED or send.command.is_response:
                    raise Bug(f"a command {send.command.code} to another client without permission")
                continue
            self.check_bytes(data)

    def check_bytes(self, data: bytes) -> None:
        """Bug: the bytes of an answer contain data of the other party."""
        for mark in (SECRET, *(name.encode() for name in HIDDEN)):
            if mark in data:
                raise Bug(f"an answer shows {mark!r} without permission: {data[:300]!r}")
