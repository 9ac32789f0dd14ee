"""The permission matrix: what each request code needs, the ways to name its resources, and who may send what.

A user may do exactly what a request on its own topic and group needs. The same request on other resources is refused,
also if its fields name the user's resources while the request refers to others.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from mqtrail.broker import Broker, BrokerConfig, Lane
from mqtrail.broker.access.policies import Acl, Entry, Resource, User
from mqtrail.node.fast_port import FastPort
from mqtrail.store import ConfigFileStore, MemoryDisk, MemoryStore, PendingRecord
from mqtrail.wire import (
    FLAG_ONEWAY,
    BatchAck,
    BatchAckBody,
    ConsumerData,
    Credentials,
    HeartbeatData,
    Host,
    LockBatchBody,
    MessageQueue,
    Peer,
    PeerId,
    PopHandle,
    QueryAssignmentBody,
    RemotingCommand,
    RequestCode,
    RequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    encode_command,
    encode_properties,
    offset_msg_id,
    sign,
)

from ..helpers import NOW_MS

Code = RequestCode
PEER = Peer(PeerId(1), Host("10.0.0.1", 40001))
ACCOUNT = Credentials(access_key="traders", secret_key="traderpass")
SECRET = b"only for h: 7f3a"


@dataclass(frozen=True)
class Case:
    """What a request needs of its topic, group or cluster, and which names it may omit or point elsewhere."""

    topic: str = ""
    group: str = ""
    cluster: str = ""
    record: bool = False
    """Whether it points at a stored record."""
    named: bool = True
    """Whether it must name its topic."""
    retry: str = ""
    """What a retry topic in the topic's place needs of its group, where a request about it is not refused anyway."""
    also: str = ""
    """Another topic that it needs Pub on."""


TOPIC_GET, GROUP_GET, BOTH_GET = Case("Get"), Case(group="Get"), Case("Get", "Get")
QUEUE = Case("Sub", retry="Sub")
CONSUMES = Case("Sub", "Sub", retry="Sub")
SENDS = Case("Pub", retry="Sub")
REPLIES = Case("Pub", retry="Sub", also="DefaultCluster_REPLY_TOPIC")
OWN_PORT_CODES_CLUSTER, CHANGES_CLUSTER = Case(cluster="Get"), Case(cluster="Update")
CASES: dict[int, Case] = {
    **dict.fromkeys((10, 310, 320), SENDS),
    **dict.fromkeys((324, 325), REPLIES),
    370: Case("Pub"),
    37: Case("Pub", record=True, named=False),
    323: Case("Update", record=True, named=False),
    36: Case("Sub", "Sub", record=True, named=False),
    309: Case("Sub", "Sub", record=True, named=False),
    33: Case("Get", record=True, named=False),
    12: QUEUE,
    **dict.fromkeys((29, 30, 31, 32), QUEUE),
    **dict.fromkeys((11, 361, 14, 15, 34, 41, 42, 400), CONSUMES),
    **dict.fromkeys((200050, 200051, 200052, 200053, 200054, 200151), CONSUMES),
    200055: Case("Get", "Get", retry="Get"),
    **dict.fromkeys((202, 300, 351), Case("Get", retry="Get")),
    **dict.fromkeys((203, 307, 343, 352), GROUP_GET),
    35: Case(group="Sub"),
    38: Case(group="Sub"),
    **dict.fromkeys((223, 303, 345, 308), Case("Get", "Get", retry="Get")),
    321: Case("Get", "Get", retry="Get"),
    208: Case("Get", "Get", named=False),
    **dict.fromkeys((222, 353), Case("Update", "Update")),
    314: Case("Update", "Update", named=False),
    **dict.fromkeys((17, 18), Case("Create")),
    215: Case("Delete"),
    **dict.fromkeys((200, 225), Case(group="Create")),
    207: Case(group="Delete"),
    46: Case(),
    **dict.fromkeys((21, 201, 305, 43, 45, 402, 204, 328, 317, 315, 28, 26, 60, 61, 354, 355), OWN_PORT_CODES_CLUSTER),
    **dict.fromkeys((2003, 907, 1007, 52, 54, 3004, 3005, 3009, 3010), OWN_PORT_CODES_CLUSTER),
    **dict.fromkeys((25, 306, 316, 329, 401, 2001, 2002, 2004, 905, 906, 908, 1008), CHANGES_CLUSTER),
    **dict.fromkeys((50, 51, 53, 3001, 3002, 3003, 3006, 3007, 3008), CHANGES_CLUSTER),
}


@dataclass(frozen=True)
class Naming:
    """One way to name the resources of a request. foreign: those that are not the user's."""

    title: str
    topic: str | None = "orders"
    group: str = "g"
    record: str = "orders"
    more: bool = False
    """For bodies with lists: the other user's resources follow the own ones."""
    foreign: frozenset[str] = field(default=frozenset())


NAMINGS = (
    Naming("own"),
    Naming("other topic", "secret", foreign=frozenset({"topic"})),
    Naming("other group", group="h", foreign=frozenset({"group"})),
    Naming("namespaced topic", "ns%orders", foreign=frozenset({"topic"})),
    Naming("namespaced group", group="ns%g", foreign=frozenset({"group"})),
    Naming("group as a retry topic", group="%RETRY%h", foreign=frozenset({"group"})),
    Naming("retry topic of another group", "%RETRY%h", foreign=frozenset({"topic"})),
    Naming("retry topic twice", "%RETRY%%RETRY%g", foreign=frozenset({"topic"})),
    Naming("pop retry topic of another group", "%RETRY%h_orders", foreign=frozenset({"topic"})),
    Naming("pop retry topic of another topic", "%RETRY%g_secret", foreign=frozenset({"topic"})),
    Naming("pop retry topic of another topic, second way", "%RETRY%g+secret", foreign=frozenset({"topic"})),
    Naming("retry topic of a group that begins alike", "%RETRY%g_orders2", foreign=frozenset({"topic"})),
    Naming("dead letters", "%DLQ%g", foreign=frozenset({"topic"})),
    Naming("dead letters of another group", "%DLQ%h", foreign=frozenset({"topic"})),
    Naming("half messages", "RMQ_SYS_TRANS_HALF_TOPIC", foreign=frozenset({"topic"})),
    Naming("no topic", None, foreign=frozenset({"name"})),
    Naming("record of another topic", record="secret", foreign=frozenset({"record"})),
    Naming("no topic, record of another", None, record="secret", foreign=frozenset({"name", "record"})),
    Naming("record of another's retry topic", record="%RETRY%h", foreign=frozenset({"record"})),
    Naming("record of the dead letters", record="%DLQ%g", foreign=frozenset({"record"})),
    Naming("own and others in one", more=True, foreign=frozenset({"more"})),
)
LISTS = frozenset({34, 41, 42, 200151, 18, 225})  # codes whose bodies list topics or groups
GROUP_LISTS = frozenset({225})


class World:
    """A broker with topics and groups of two parties, and an account with a case's permissions on those of the
    first."""

    def __init__(self, kind: str, case: Case, **settings: Any) -> None:
        self.kind = kind
        switches = {"acl": True} if kind == "files" else {"authentication": True, "authorization": True}
        config = BrokerConfig(**{**switches, **settings})
        self.store = MemoryStore()
        files = ConfigFileStore(MemoryDisk())
        self.broker = Broker(config, self.store, files, unique_id=lambda: "0" * 32, now_ms=NOW_MS)
        self.fill()
        self.grant(case)
        self.lane = Lane(self.broker, self.broker.handle)

    def fill(self) -> None:
        """Make the topics, groups and records of both parties."""
        topics = ("orders", "secret", "ns%orders", "%RETRY%g", "%RETRY%h", "%DLQ%g", "%DLQ%h")
        for topic in topics:
            self.broker.topics.update(TopicConfig(topic, 1, 1), NOW_MS)
        for group in ("g", "h", "g_orders2"):
            self.broker.groups.update(SubscriptionGroupConfig(group), NOW_MS)
        self.places = {topic: self.put(topic) for topic in topics}
        self.halves = {topic: self.put_half(topic) for topic in topics}

    def put(self, topic: str, stored_in: str | None = None, **properties: str) -> int:
        text = encode_properties({"KEYS": "k", "UNIQ_KEY": "0" * 32, **properties}).encode()
        body = b"body" if topic == "orders" else SECRET
        (place,) = self.store.append([PendingRecord(stored_in or topic, 0, body, text, 0, NOW_MS, bytes(8))], NOW_MS)
        return place.physical_offset

    def put_half(self, topic: str) -> int:
        return self.put(topic, "RMQ_SYS_TRANS_HALF_TOPIC", REAL_TOPIC=topic, REAL_QID="0", PGROUP="pg", TRAN_MSG="true")

    def grant(self, case: Case) -> None:
        """Grant `trader` what a case needs of topic orders, group g and the cluster."""
        if self.kind == "files":
            admin = bool(case.cluster) or any(action in CHANGES for action in (case.topic, case.group))
            topics = [("orders", case.topic), (case.also, "Pub" if case.also else "")]
            lists = [("topicPerms", topics), ("groupPerms", [("g", case.group or case.retry)])]
            text = ""
            for key, names in lists:
                entries = [f"{name}={BITS[action]}" for name, action in names if action in BITS]
                text += f", {key}: [{', '.join(entries)}]" if entries else ""
            self.admin = admin
            self.broker.access.load_acl(
                {"f": f"accounts: [{{accessKey: traders, secretKey: traderpass, admin: {str(admin).lower()}{text}}}]"}
            )
            return
        auth = self.broker.access.auth
        auth.put_user(User("traders", "traderpass"))
        grants = (
            (Resource("Topic", "orders"), case.topic),
            (Resource("Group", "g"), case.group or case.retry),
            (Resource("Cluster", "DefaultCluster"), case.cluster),
            (Resource("Topic", case.also), "Pub" if case.also else ""),
        )
        allowed = tuple(Entry(resource, (action,), (), True, ()) for resource, action in grants if action)
        auth.put_acl("User:traders", Acl(allowed))

    # Requests.

    def request(self, code: int, naming: Naming) -> RemotingCommand:
        """Return the signed request."""
        request = RemotingCommand(code, self.fields(code, naming), self.body(code, naming), opaque=7)
        sign(request, ACCOUNT)
        return request

    def fields(self, code: int, naming: Naming) -> dict[str, str]:
        topic, group = naming.topic, naming.group
        places = self.halves if code in (37, 323) else self.places
        place = places.get(naming.record, 0)
        ext = {
            **({} if topic is None else {"topic": topic}),
            **dict.fromkeys(("consumerGroup", "group", "groupName", "srcGroup", "destGroup", "compareGroup"), group),
            **dict.fromkeys(("queueId", "queueOffset", "commitOffset", "timestamp", "beginTimestamp", "index"), "0"),
            **dict.fromkeys(("sysFlag", "suspendTimeoutMillis", "invisibleTime", "pollTime", "bornTime"), "0"),
            **dict.fromkeys(("initMode", "tranStateTableOffset", "delayLevel", "readQueueNums"), "0"),
            **dict.fromkeys(("maxMsgNums", "maxNum", "count", "writeQueueNums", "perm", "endTimestamp"), "4"),
            "offset": str(place), "commitLogOffset": str(place), "commitOrRollback": "8", "producerGroup": "pg",
            "msgId": offset_msg_id(Host("127.0.0.1", 10911), place), "key": "k", "subscription": "*",
            "extraInfo": PopHandle(0, NOW_MS, 1000, 0, "0", "broker-a", 0, 0).encode(), "clientId": "c",
            "clientID": "c", "statsName": "TOPIC_PUT_NUMS", "statsKey": "orders", "username": "x", "subject": "User:x",
            "recallHandle": "x", "accessKey": "short", "globalWhiteAddrs": "x", "defaultTopic": "TBW102",
        }  # fmt: skip
        if code in (310, 320, 325):
            ext = {"a": group, "b": topic, "e": "0", "i": ""} if topic is not None else {"a": group, "e": "0", "i": ""}
        if code == 36 and topic is not None and topic != "orders":
            ext["originTopic"] = topic
        return ext

    def body(self, code: int, naming: Naming) -> bytes:
        topics = [naming.topic or "", *(["secret"] if naming.more else [])]
        group = naming.group
        match code:
            case 34:
                subscriptions = tuple(SubscriptionData(topic, "*") for topic in topics)
                data = (ConsumerData(group, subscription_data_set=subscriptions),)
                return HeartbeatData(client_id="c", consumer_data_set=data).encode()
            case 41 | 42:
                queues = tuple(MessageQueue(topic, "broker-a", 0) for topic in topics)
                return LockBatchBody(group, "c", queues).encode()
            case 400:
                return QueryAssignmentBody(topics[0], group, "c").encode()
            case 401:
                return RequestMode(topics[0], group).encode()
            case 200151:
                return BatchAckBody("broker-a", tuple(BatchAck(group, topic) for topic in topics)).encode()
            case 18:
                return TopicConfigList(tuple(TopicConfig(topic, 1, 1) for topic in topics)).encode()
            case 200:
                return SubscriptionGroupConfig(group).encode()
            case 225:
                names = (group, *(("h",) if naming.more else ()))
                return SubscriptionGroupList(tuple(map(SubscriptionGroupConfig, names))).encode()
        return b"{}"

    # Paths into the broker. Each returns whether the request was allowed.

    def general(self, request: RemotingCommand) -> bool:
        return self._let_in(lambda: self.broker.handle(PEER, request, NOW_MS))

    def one_way(self, request: RemotingCommand) -> bool:
        request.flag |= FLAG_ONEWAY
        return self._let_in(lambda: self.broker.handle(PEER, request, NOW_MS))

    def by_lane(self, request: RemotingCommand) -> bool:
        frame = encode_command(request)
        return self._let_in(lambda: self.lane.process(PEER, frame, 0, len(frame), NOW_MS))

    def by_fast_port(self, request: RemotingCommand) -> bool:
        shell = SimpleNamespace(decide=self.broker.handle, write=lambda sends: None, set_timer=lambda: None)
        fast_port = FastPort(cast(Any, shell), lambda: NOW_MS)
        connection = cast(Any, SimpleNamespace(data=PEER, write_paused=False, turn_is_over=lambda: False))
        frame = encode_command(request)
        return self._let_in(lambda: fast_port.process(connection, frame, 0, len(frame)))

    def _let_in(self, act: Any) -> bool:
        before = self.broker.access.refused
        act()
        return self.broker.access.refused == before


BITS = {"Pub": "PUB", "Sub": "SUB", "Get": "SUB"}
CHANGES = frozenset({"Create", "Update", "Delete"})
WAYS = (World.general, World.by_lane, World.by_fast_port, World.one_way)


def expected(code: int, case: Case, naming: Naming) -> bool:
    """Return whether the account of a case may send a request with this naming."""
    parts = set()
    if case.topic and code != 36 and not (code == 37 and naming.title == "half messages"):
        parts.add("topic")  # the answer to a check repeats that the message is in the half topic
    if case.group:
        parts.add("group")
    if case.topic and case.named:
        parts.add("name")
    if case.record:
        parts.add("record")
    if code in LISTS:
        parts.add("more")
    return not parts & naming.foreign
