"""Caches of the lane: queues that accept sends, and properties that messages share.

Each drops all entries when it is full; routes are also dropped whenever a topic changes.
"""

from collections.abc import Callable
from typing import Final

from mqtrail.store import MessageStore, PendingRecord
from mqtrail.wire import (
    PROPERTY_TRANSACTION_ID,
    RAW_CHECK_IMMUNITY_TIME,
    RAW_PGROUP,
    RAW_UNIQ_KEY,
    TOPIC_LENGTH_MAX,
    MQError,
    find_property,
)

from ..messages import Admission
from ..properties import PropertyRules, StoredProperties, is_transactional, real_properties
from ..telemetry import Counter, Statistics
from ..transactions import half_record

ROUTES_MAX: Final = 20_000
NUMBER_MAX: Final = 1 << 31  # of a queue id or a count
NUMBER_DIGITS_MAX: Final = 19
PROPERTIES_MAX: Final = 4_096
PROPERTIES_LENGTH_MAX: Final = 1_024  # longer texts are not cached
SENT_SIZE_MAX: Final = 30_000  # bytes of a properties text; leaves room for the additions of the broker

# The fields of a PendingRecord, for the append of a store. A plain tuple is five times as fast to make.
Record = tuple[str, int, bytes, bytes, int, int, bytes, int, int, int, int]
# Shared by texts that differ in the id only: suffix to store, tags code, whether the sender waits for the flush, and
# for half messages the producer group.
Shared = tuple[bytes, int, bool, str]

_MARK: Final = RAW_UNIQ_KEY + b"\x01"  # written as a literal in `read`, which runs for every message
assert _MARK == b"UNIQ_KEY\x01"


class Route:
    """A queue that passed all checks for sends. counter: counts its messages.

    real: the end of the properties of a half message for this queue, after its transaction id.
    """

    __slots__ = ("counter", "key", "queue_id", "real", "sys_flag", "topic")

    def __init__(self, topic: str, queue_id: int, sys_flag: int, counter: Counter | None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        self.real = real_suffix(topic, queue_id)
        self.sys_flag = sys_flag
        self.counter = counter


def real_suffix(topic: str, queue_id: int) -> bytes:
    return b"\x02" + real_properties(topic, queue_id)


class Routes:
    """Routes by topic and queue id as requests write them. Call `clear` when a topic changed."""

    __slots__ = ("_admission", "_count", "_stats", "_store", "topics")

    def __init__(
        self, admission: Callable[[str], Admission | None], store: MessageStore, stats: Statistics | None
    ) -> None:
        self._admission = admission
        self._store = store
        self._stats = stats
        self._count = 0
        self.topics: dict[str, dict[str | bytes | int, Route]] = {}

    def clear(self) -> None:
        self.topics.clear()
        self._count = 0

    def find(self, topic: str, queue_id: str | bytes | int) -> Route | None:
        """Return the route, from the cache if possible; None: `handle` must serve the request."""
        known = self.topics.get(topic)
        if known is not None and queue_id in known:
            return known[queue_id]
        admission = self._admission(topic)
        number = whole_number(queue_id)
        if admission is None or len(topic) > TOPIC_LENGTH_MAX or not 0 <= number < admission.queue_limit:
            return None
        if self._count >= ROUTES_MAX:
            self.clear()
        counter = None if self._stats is None else self._stats.put_counter(topic, number)
        route = Route(topic, number, admission.sys_flag, counter)
        self._count += 1
        self.topics.setdefault(topic, {})[queue_id] = route
        return route


def whole_number(text: str | bytes | int) -> int:
    """Return the number in a field; -1: not a number, negative, or too long."""
    if isinstance(text, int):
        return text if 0 <= text < NUMBER_MAX else -1
    return int(text) if len(text) < NUMBER_DIGITS_MAX and text.isascii() and text.isdigit() else -1


class SharedProperties:
    """Properties texts without their UNIQ_KEY, and what the broker adds to them.

    A text has three parts: before the id, the id, after the id. Texts that differ in the id only are stored with the
    same suffix, tags code and wait flag. The cache holds None for texts that `handle` would refuse, redirect or
    rebuild. half: of half messages; their suffix ends before the transaction id, which is followed by `real` of the
    route.
    """

    __slots__ = ("_ask", "_batches", "_known", "_rules")

    def __init__(self, rules: PropertyRules, *, half: bool = False) -> None:
        self._rules = rules
        self._ask = self._ask_half if half else self._ask_plain
        self._known: dict[bytes, Shared | None] = {}
        self._batches: dict[bytes, bool | None] = {}  # texts of batches without an id -> whether they wait

    def read(self, sent: bytes) -> tuple[bytes, Shared] | None:
        """Return the unique id and the shared values; None: the lane does not support the text."""
        at = sent.find(b"UNIQ_KEY\x01")
        if at < 0 or (at and sent[at - 1] != 2):
            return None
        stop = sent.find(b"\x02", at + 9)
        if stop < 0:
            stop = len(sent)
        unique_id = sent[at + 9 : stop]
        if not unique_id.isalnum():
            return None
        rest = sent[:at] + sent[stop:] if at else sent[stop:]
        try:
            shared = self._known[rest]
        except KeyError:
            shared = self._learn(sent, rest, unique_id)
        return None if shared is None else (unique_id, shared)

    def read_batch(self, sent: bytes) -> tuple[bytes, bool] | None:
        """Return the unique id of a batch, and whether it waits; None: as `read`. b"": it has no id, and gets one."""
        found = self.read(sent)
        if found is not None:
            return found[0], found[1][2]
        if _MARK in sent:
            return None
        try:
            waits = self._batches[sent]
        except KeyError:
            waits = self._learn_batch(sent)
        return None if waits is None else (b"", waits)

    def _learn_batch(self, sent: bytes) -> bool | None:
        own = sent if not sent or sent.endswith(b"\x02") else sent + b"\x02"
        shared = self._ask(own + _MARK + b"x\x02", b"x") if len(sent) <= PROPERTIES_LENGTH_MAX else None
        waits = None if shared is None else shared[2]
        if len(sent) <= PROPERTIES_LENGTH_MAX:
            if len(self._batches) >= PROPERTIES_MAX:
                self._batches.clear()
            self._batches[sent] = waits
        return waits

    def _learn(self, sent: bytes, rest: bytes, unique_id: bytes) -> Shared | None:
        shared = None if _MARK in rest or len(sent) > SENT_SIZE_MAX else self._ask(sent, unique_id)
        if len(rest) <= PROPERTIES_LENGTH_MAX:
            if len(self._known) >= PROPERTIES_MAX:
                self._known.clear()
            self._known[rest] = shared
        return shared

    def _ask_plain(self, sent: bytes, unique_id: bytes) -> Shared | None:
        """Apply PropertyRules, the rules of `handle`, to the text."""
        if is_transactional(sent):
            return None
        plain = self._rules.plain(sent)
        if plain is not None:
            try:
                sent.decode()
            except UnicodeDecodeError:
                return None
            return (*plain, "")
        stored = self._judge(sent, unique_id)
        return None if stored is None else (stored.text[len(sent) :], stored.tags_code, stored.waits, "")

    def _ask_half(self, sent: bytes, unique_id: bytes) -> Shared | None:
        """The same for a half message. `half_record` must only add to the text.

        A half message with an immunity time of its own goes to `handle`: whether its end is valid depends on its age.
        """
        group = find_property(sent, RAW_PGROUP)
        if not is_transactional(sent) or group is None or find_property(sent, RAW_CHECK_IMMUNITY_TIME) is not None:
            return None
        stored = self._judge(sent, unique_id)
        if stored is None:
            return None
        suffix = stored.text[len(sent) :] + f"{PROPERTY_TRANSACTION_ID}\x01".encode()
        try:
            half = half_record(PendingRecord("t", 0, b"", stored.text, stored.tags_code, 0, b""))
        except MQError:
            return None
        if half.properties != sent + suffix + unique_id + real_suffix("t", 0) or half.tags_code != stored.tags_code:
            return None
        return suffix, stored.tags_code, stored.waits, group.decode()

    def _judge(self, sent: bytes, unique_id: bytes) -> StoredProperties | None:
        """Return the stored text; None: `handle` would refuse, redirect or rebuild it."""
        try:
            sent.decode()
            stored = self._rules.of_message(sent)
        except (MQError, UnicodeDecodeError):
            return None
        if stored.delay_level or stored.timed:
            return None
        if not stored.text.startswith(sent) or stored.unique_id.encode() != unique_id:
            return None
        return stored
