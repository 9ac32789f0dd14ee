"""Requests that a broker does not reject at once: every code with all the fields of any request, about a few existing
topics and groups. One or two fields have any other value."""

import random
from collections.abc import Callable
from typing import Final

from mqtrail.broker.requests import REQUESTS
from mqtrail.wire import (
    FLAG_ONEWAY,
    BatchAck,
    BatchAckBody,
    BatchItem,
    CompressionType,
    ConsumerData,
    Credentials,
    HeartbeatData,
    Host,
    LockBatchBody,
    MessageQueue,
    PopHandle,
    ProducerData,
    QueryAssignmentBody,
    RemotingCommand,
    RequestCode,
    RequestMode,
    SubscriptionData,
    SubscriptionGroupConfig,
    SubscriptionGroupList,
    TopicConfig,
    TopicConfigList,
    compress,
    encode_batch,
    offset_msg_id,
    sign,
)

from .grammar import Grammar

OWN, OTHER = ("orders", "g"), ("secret", "h")
HIDDEN = ("hidden-4711", "hidden-group-4711")
"""A topic and a group that no request names: an answer that names them reveals data that was not requested."""
TOPICS: Final = (
    "orders", "orders", "orders", "secret", "secret", "%RETRY%g", "%RETRY%h", "%DLQ%g", "%DLQ%h", "%RETRY%g_orders",
    "%RETRY%h_secret", "%RETRY%g+orders", "RMQ_SYS_TRANS_HALF_TOPIC", "SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer",
    "RMQ_SYS_TRACE_TOPIC", "TBW102", "%LMQ%x", "broker-a", "new", "rmq_sys_REVIVE_LOG_DefaultCluster", "ns%orders", "",
)  # fmt: skip
GROUPS: Final = ("g", "g", "g", "h", "h", "%RETRY%h", "pg", "ph", "new", "TOOLS_CONSUMER", "CID_RMQ_SYS_TRANS", "")
QUEUE_IDS: Final = ("0", "0", "0", "1", "-1", "7", "2147483647")
FLAGS: Final = ("0", "0", "0", "1", "2", "4", "8", "12", "6", "1025", "257", "513", "769", "1793", "48")
OFFSETS: Final = ("0", "0", "1", "2", "-1", "100", "9223372036854775807", "-9223372036854775808")
COUNTS: Final = ("1", "4", "32", "0", "-1", "1000000", "2147483647")
SENDS: Final = frozenset({10, 310, 320, 324, 325})
SHORT_SENDS: Final = frozenset({310, 320, 325})
USER: Final = b'{"username":"x","password":"password","userType":"Normal","userStatus":"enable"}'
PAIRS: Final = 0.5  # share of requests with a topic and a group of one owner
LANE: Final = 0.5  # share of sends and pulls with the fields that official clients write
ANY_CODE: Final = 0.7  # share of requests of any code; the others are frequent ones
FREQUENT: Final = (10, 310, 11, 37, 36, 200050, 200051)
UNANSWERED: Final = 0.05  # share of one-way requests
MESSAGE_SIZES: Final = (10, 10, 10, 5_000, 100_000)

ACCOUNTS: Final = (
    Credentials(access_key="traders", secret_key="traderpass"),
    Credentials(access_key="traders", secret_key="wrong-password"),
    Credentials(access_key="nobody", secret_key="traderpass"),
)


class Requests:
    """Makes requests. places: physical offsets of stored records; handles: of popped messages."""

    def __init__(self, chance: random.Random, places: list[int], handles: list[str], now_ms: int) -> None:
        self._chance = chance
        self._grammar = Grammar(chance)
        self._places = places
        self._handles = handles
        self._now_ms = now_ms
        self._bodies: dict[int, Callable[[], bytes]] = {
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: self._lock,
            RequestCode.QUERY_ASSIGNMENT: lambda: QueryAssignmentBody(self._topic(), self._group(), "c").encode(),
            RequestCode.SET_MESSAGE_REQUEST_MODE: lambda: RequestMode(self._topic(), self._group()).encode(),
            RequestCode.BATCH_ACK_MESSAGE: self._acks,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: lambda: TopicConfigList(
                (TopicConfig("orders", 1, 1), TopicConfig(self._topic() or "new", 1, 1))
            ).encode(),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: lambda: SubscriptionGroupConfig(self._group()).encode(),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: lambda: SubscriptionGroupList(
                (SubscriptionGroupConfig("g"), SubscriptionGroupConfig(self._group()))
            ).encode(),
            RequestCode.SEND_BATCH_MESSAGE: self._batch,
            RequestCode.UPDATE_BROKER_CONFIG: lambda: b"maxTransferCountOnMessageInMemory=16\n",
            RequestCode.AUTH_CREATE_USER: lambda: USER,
            RequestCode.AUTH_UPDATE_USER: lambda: USER,
        }
        self._codes = sorted(REQUESTS)

    def next(self) -> RemotingCommand:
        """Return a request of any code, sometimes signed, sometimes one-way."""
        chance = self._chance
        code = chance.choice(self._codes if chance.random() < ANY_CODE else FREQUENT)
        ext = self.ext(code)
        for _ in range(chance.choice((0, 0, 0, 0, 1, 2))):
            ext[chance.choice(sorted(ext))] = self._grammar.value()
        body = self._body(code)
        request = RemotingCommand(code, ext, body, opaque=chance.randrange(1 << 20))
        if chance.random() < UNANSWERED:
            request.flag |= FLAG_ONEWAY
        self._sign(request)
        return request

    def ext(self, code: int) -> dict[str, str]:
        """Return plausible fields."""
        chance = self._chance
        number, place = chance.choice, str(chance.choice(self._places))
        topic, group = chance.choice((OWN, OTHER)) if chance.random() < PAIRS else (self._topic(), self._group())
        if code in SENDS:
            return self._send_ext(code, topic)
        if code == RequestCode.PULL_MESSAGE and chance.random() < LANE:
            return self._pull_ext(topic, group)
        ext = {
            "topic": topic, "consumerGroup": group, "group": group, "groupName": group, "compareGroup": group,
            "srcGroup": self._group(), "destGroup": self._group(), "producerGroup": number(("pg", "ph")),
            "originTopic": self._topic(), "topicList": ";".join((topic, self._topic())), "filterGroups": self._group(),
            "queueId": number(QUEUE_IDS), "queueOffset": number(OFFSETS), "commitOffset": number(OFFSETS),
            "offset": number((place, place, *OFFSETS)), "commitLogOffset": number((place, place, place, *OFFSETS)),
            "tranStateTableOffset": number(("0", "1", "2")), "commitOrRollback": number(("8", "8", "12", "0")),
            "msgId": offset_msg_id(Host("127.0.0.1", 10911), int(place)), "key": number(("k", "k", "K", "")),
            "maxMsgNums": number(COUNTS), "maxNum": number(COUNTS), "count": number(COUNTS), "index": number(OFFSETS),
            "beginTimestamp": "0", "endTimestamp": str(1 << 62), "timestamp": number(OFFSETS),
            "sysFlag": number(FLAGS), "suspendTimeoutMillis": number(("0", "0", "1000", "9223372036854775807")),
            "pollTime": number(("0", "0", "1000", "9223372036854775807")), "bornTime": str(self._now_ms),
            "invisibleTime": number(("60000", "1000", "0", "-1", "9223372036854775807", "2147483647")),
            "initMode": number(("0", "1")), "order": number(("false", "true")), "expType": number(("TAG", "SQL92")),
            "expressionType": number(("TAG", "SQL92")), "subscription": number(("*", "a", "a || b", "k = 'x'")),
            "exp": number(("*", "a", "k IS NOT NULL")), "extraInfo": self._handle(topic), "delayLevel": number(COUNTS),
            "maxReconsumeTimes": number(COUNTS), "originMsgId": "0" * 32, "unitMode": "false",
            "clientId": "c", "clientID": number(("c", "victim")), "isForce": number(("true", "false")),
            "readQueueNums": number(("1", "4", "-1", "70000")), "writeQueueNums": number(("1", "4", "70000")),
            "perm": number(("6", "2", "0", "99")), "topicFilterType": "SINGLE_TAG", "statsName": "TOPIC_PUT_NUMS",
            "statsKey": topic, "username": "x", "subject": "User:x", "recallHandle": "x", "accessKey": "short",
            "globalWhiteAddrs": "x", "offline": number(("true", "false")), "isOrder": "false", "topicSysFlag": "0",
            "cleanOffset": number(("true", "false")), "readable": number(("true", "false")), "minBrokerId": "0",
        }  # fmt: skip
        if code == RequestCode.END_TRANSACTION and chance.random() < 0.7:
            half = chance.randrange(len(self._places) // 2)  # every second place is one, in the order of their queue
            ext |= {"tranStateTableOffset": str(half), "commitLogOffset": str(self._places[2 * half + 1])}
        for name in chance.sample(sorted(ext), chance.choice((0, 0, 1, 3))):
            del ext[name]
        return ext

    def _send_ext(self, code: int, topic: str) -> dict[str, str]:
        chance = self._chance
        long = {
            "producerGroup": chance.choice(("pg", "ph")),
            "topic": topic,
            "defaultTopic": "TBW102",
            "defaultTopicQueueNums": "4",
            "queueId": chance.choice(QUEUE_IDS),
            "sysFlag": chance.choice(FLAGS),
            "bornTimestamp": str(self._now_ms),
            "flag": "0",
            "properties": self.properties(),
            "reconsumeTimes": chance.choice(("0", "0", "3", "100")),
            "unitMode": "false",
            "maxReconsumeTimes": chance.choice(("16", "1")),
            "batch": "true" if code == RequestCode.SEND_BATCH_MESSAGE else "false",
        }
        if code not in SHORT_SENDS:
            return long
        short = dict(zip("abcdefghijkml", long.values(), strict=False))
        short |= {"l": long["maxReconsumeTimes"], "m": long["batch"]}
        if chance.random() < LANE:  # exactly the fields that the lane takes
            del short["l"]
            short |= {"f": "0", "j": "0"}
        return short

    def _pull_ext(self, topic: str, group: str) -> dict[str, str]:
        """Return exactly the fields of a pull that the lane takes."""
        return {
            "consumerGroup": group,
            "topic": topic,
            "queueId": "0",
            "queueOffset": "0",
            "maxMsgNums": "32",
            "sysFlag": "4",
            "commitOffset": "0",
            "suspendTimeoutMillis": "0",
            "subscription": "*",
            "subVersion": "0",
            "expressionType": "TAG",
        }

    def properties(self) -> str:
        """Return properties that delay or redirect a message."""
        chance = self._chance
        soon_ms = self._now_ms + chance.choice((1_000, 5_000, 100_000, -1, 1 << 61))
        values = {
            "KEYS": "k",
            "TAGS": chance.choice(("a", "b")),
            "UNIQ_KEY": "0" * 32,
            "DELAY": chance.choice(("1", "2", "99", "-1")),
            "TIMER_DELIVER_MS": str(soon_ms),
            "TIMER_DELAY_SEC": chance.choice(("1", "5", "999999999")),
            "TIMER_OUT_MS": str(soon_ms),
            "TIMER_ROLL_TIMES": "1",
            "TIMER_DEL_UNIQKEY": "0" * 32,
            "TRAN_MSG": "true",
            "PGROUP": chance.choice(("pg", "ph")),
            "REAL_TOPIC": chance.choice(TOPICS),
            "REAL_QID": chance.choice(QUEUE_IDS),
            "RETRY_TOPIC": chance.choice(TOPICS),
            "POP_CK": self._handle("orders"),
            "INNER_MULTI_DISPATCH": chance.choice(("%LMQ%x", "%LMQ%x,secret", ",".join(["%LMQ%y"] * 500))),
            "INNER_MULTI_QUEUE_OFFSET": chance.choice(OFFSETS),
            "REPLY_TO_CLIENT": "c",
            "CLUSTER": "DefaultCluster",
            "MSG_TYPE": "reply",
            "__SHARDINGKEY": "s",
            "CONSUME_START_TIME": chance.choice(OFFSETS),
        }
        names = chance.sample(sorted(values), chance.choice((0, 1, 2, 2, 4)))
        return "".join(f"{name}\x01{values[name]}\x02" for name in names)

    def _topic(self) -> str:
        return self._chance.choice(TOPICS)

    def _group(self) -> str:
        return self._chance.choice(GROUPS)

    def _handle(self, topic: str) -> str:
        chance = self._chance
        if self._handles and chance.random() < 0.4:
            return chance.choice(self._handles)
        numbers = [chance.choice((0, 1, -1, 1 << 40, (1 << 63) - 1)) for _ in range(3)]
        time_ms = chance.choice((self._now_ms, self._now_ms - 60_000, 0, (1 << 63) - 1))
        revive, marker = chance.choice((0, 0, 1, 7, 999, -1)), chance.choice(("0", "0", "1", "2", topic))
        return PopHandle(
            numbers[0] if chance.random() < 0.5 else 0,
            time_ms,
            chance.choice((1_000, 60_000, numbers[1])),
            revive,
            marker,
            chance.choice(("broker-a", "broker-a", "x")),
            int(chance.choice(QUEUE_IDS)),
            chance.choice((0, 1, numbers[2], None)),
        ).encode()

    # Bodies.

    def _body(self, code: int) -> bytes:
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.06:
            return self._grammar.any_body()
        if drawn < 0.09:
            return chance.choice((b"{}", b"x", b"\x00")) * chance.choice((1, 40_000, 120_000))
        if code in self._bodies:
            return self._bodies[code]()
        return self.message() if code in SENDS or code in (RequestCode.SEND_REPLY_MESSAGE, 325) else b""

    def message(self) -> bytes:
        """Return a message's body, plain or compressed in any format, whole or cut."""
        chance = self._chance
        plain = chance.randbytes(10) * (chance.choice(MESSAGE_SIZES) // 10)
        kind = chance.choice((None, None, *CompressionType))
        if kind is None:
            return plain
        packed = compress(plain, kind)
        return packed[: chance.randrange(len(packed))] if chance.random() < 0.2 else packed

    def _batch(self) -> bytes:
        chance = self._chance
        items = [
            BatchItem(chance.randbytes(8), self.properties().encode()) for _ in range(chance.choice((1, 3, 50, 2_000)))
        ]
        packed = encode_batch(items)
        return packed[: chance.randrange(len(packed))] if chance.random() < 0.1 else packed

    def _heartbeat(self) -> bytes:
        chance = self._chance
        count = chance.choice((1, 1, 2, 300))
        groups = [self._group() if number < 2 else f"many-{number}" for number in range(count)]
        topics = [self._topic() for _ in range(chance.choice((1, 2)))]
        subscriptions = tuple(
            SubscriptionData(topic, chance.choice(("*", "a || b", "a = 'x'")), expression_type=kind)
            for topic in topics
            for kind in (chance.choice(("TAG", "SQL92")),)
        )
        producers = tuple(ProducerData(chance.choice(("pg", "ph", "new"))) for _ in range(chance.choice((0, 1))))
        consumers = tuple(ConsumerData(group, subscription_data_set=subscriptions) for group in groups)
        return HeartbeatData(chance.choice(("c", "victim")), producers, consumers).encode()

    def _lock(self) -> bytes:
        queues = tuple(MessageQueue(self._topic(), "broker-a", number) for number in range(self._chance.choice((1, 3))))
        return LockBatchBody(self._group(), "c", queues).encode()

    def _acks(self) -> bytes:
        chance = self._chance
        acks = tuple(
            BatchAck(
                self._group(),
                self._topic(),
                start_offset=int(chance.choice(OFFSETS)),
                pop_time_ms=self._now_ms,
                invisible_ms=60_000,
                bit_set=chance.choice(("AQ==", "/" * 12, "", "?", "/" * 5_000)),
            )
            for _ in range(chance.choice((1, 2, 20)))
        )
        return BatchAckBody("broker-a", acks).encode()

    def _sign(self, request: RemotingCommand) -> None:
        chance = self._chance
        drawn = chance.random()
        if drawn < 0.1:
            return
        sign(request, ACCOUNTS[0] if drawn < 0.85 else chance.choice(ACCOUNTS[1:]))
        if drawn > 0.95:
            request.ext["Signature"] = chance.choice(("", "é", "\udc80", "\x00", "=" * 28, "A" * 70_000))
