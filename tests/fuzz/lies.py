"""Answers that are changed on their way to an admin, and the questions of an admin."""

import json
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from copy import deepcopy
from typing import Any, Final

from mqtrail.client import Admin
from mqtrail.wire import MessageQueue, RemotingCommand

from .frames import EDGES
from .grammar import Grammar

ODD: Final[tuple[Any, ...]] = (
    None, True, -1, 0, 1, 1 << 31, 1 << 63, -(1 << 63), 10**30, 1.5, 1e308, "", "x", "-1", "9" * 400, [], {}, [None],
    {"a": 1}, [[]], "\u202e\x1b]8;;x\x07", "\ud800",
)  # fmt: skip
CODES: Final = (0, 1, 2, 14, 16, 17, 19, 20, 21, 22, 26, 40, 200, 210, -1, (1 << 31) - 1)
TRUE_SHARE: Final = 0.6  # of the answers: what follows a lie is reached too


class Liar:
    """Changes answers: fields, values of any type anywhere in JSON, bytes, codes, whole bodies."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._grammar = Grammar(self._chance, 0.0)
        self._lock = threading.Lock()  # the admin of blocking callers lives in a thread

    def altered(self, reply: RemotingCommand) -> RemotingCommand:
        """Return what arrives in the place of an answer."""
        with self._lock:
            chance = self._chance
            if chance.random() < TRUE_SHARE:
                return reply
            ext, body = dict(reply.ext), bytes(reply.body)
            changed = RemotingCommand(reply.code, ext, body, flag=reply.flag, opaque=reply.opaque, remark=reply.remark)
            match chance.randrange(10):
                case 0 | 1 | 2 if ext:
                    ext[chance.choice(sorted(ext))] = chance.choice(EDGES)
                case 3:
                    changed.code, changed.remark = chance.choice(CODES), chance.choice((None, "x", "\x1b[2J"))
                case 4:
                    changed.body = self._grammar.any_body()
                case 5:
                    changed.ext = self._grammar.ext()
                case _ if body:
                    changed.body = self._changed(body)
            return changed

    def _changed(self, body: bytes) -> bytes:
        chance = self._chance
        try:
            found = json.loads(body)
        except ValueError:
            at = chance.randrange(len(body))
            return body[:at] if chance.random() < 0.3 else body[:at] + chance.randbytes(1) + body[at + 1 :]
        for _ in range(chance.choice((1, 1, 2, 5))):
            holders = list(_holders(found))
            if not holders:
                found = deepcopy(chance.choice(ODD))
                break
            holder, key = chance.choice(holders)
            if chance.random() < 0.8:
                holder[key] = deepcopy(chance.choice(ODD))
            else:
                del holder[key]
        return json.dumps(found).encode("utf-8", "surrogatepass")


def _holders(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value, as (object or list, key)."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _holders(value[key])


def questions(admin: Admin, address: str) -> list[Callable[[], Awaitable[object]]]:
    queue = MessageQueue("orders", "broker-a", 0)
    return [
        admin.cluster, admin.masters, admin.brokers, admin.topics, admin.users, admin.producers, admin.namesrv_config,
        admin.export, lambda: admin.broker_config(address), lambda: admin.runtime_info(address),
        lambda: admin.broker_stats(address, "TOPIC_PUT_NUMS", "orders"), lambda: admin.ha_status(address),
        lambda: admin.topic_rates("orders"), lambda: admin.groups(address), lambda: admin.group_config("cg"),
        lambda: admin.groups_of_topic("orders"), lambda: admin.topics_of_group("cg", address),
        lambda: admin.subscription("cg", "orders"), lambda: admin.group_connections("cg"), lambda: admin.members("cg"),
        lambda: admin.producer_connections("pg", address), lambda: admin.consume_stats("cg"),
        lambda: admin.broker_consume_stats(address), lambda: admin.consume_time_spans("cg", "orders"),
        lambda: admin.lag("cg", oldest_count=2), lambda: admin.lag(over_ms=0), lambda: admin.query("orders", "k1"),
        lambda: admin.consume_queue(queue, 0, 5), lambda: admin.message_at_offset(queue, 0),
        lambda: admin.queues("orders"), lambda: admin.reset_offset("cg2", "orders", -1),
        lambda: admin.consumer_offset("cg", queue), lambda: admin.max_offset(queue),
        lambda: admin.offset_by_time(queue, 0),
    ]  # fmt: skip
