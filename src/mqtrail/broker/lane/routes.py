"""What the lane looked up once: of a topic's queues, and of the properties that messages share.

Both forget everything when there is too much of it, and routes also with every change of any topic.
"""

from collections.abc import Callable
from typing import Final

from mqtrail.store import MessageStore, PendingRecord
from mqtrail.wire import TOPIC_LENGTH_MAX, MQError, find_property

from ..messages import Admission
from ..properties import PropertyRules, StoredProperties, is_transactional
from ..telemetry import Counter, Statistics
from ..transactions import half_record

ROUTES_MAX: Final = 20_000
NUMBER_MAX: Final = 1 << 31  # of a queue id or a count; times and offsets are compared with less care
NUMBER_DIGITS_MAX: Final = 19
PROPERTIES_MAX: Final = 4_096
PROPERTIES_LENGTH_MAX: Final = 1_024  # longer texts are not remembered
SENT_SIZE_MAX: Final = 30_000  # of a properties text: what the broker adds still fits

# What a store's append takes: the fields of a PendingRecord. A plain tuple is made in a fifth of the time.
Record = tuple[str, int, bytes, bytes, int, int, bytes, int, int, int, int]
# Of texts that differ in the id alone: suffix to store, tags code, whether the sender waits for the flush, and of half
# messages the producer group.
Shared = tuple[bytes, int, bool, str]

_MARK: Final = b"UNIQ_KEY\x01"  # spelt out in `read`, which is called for every message
assert len(_MARK) == 9
_IMMUNITY: Final = b"CHECK_IMMUNITY_TIME_IN_SECONDS"


class Route:
    """One queue that messages may go to, without a check left to make. counter: where its messages are counted.

    real: what a half message's properties end with, from behind its transaction id on, to name this queue.
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
    return f"\x02REAL_TOPIC\x01{topic}\x02REAL_QID\x01{queue_id}\x02".encode()


class Routes:
    """Topic and queue id, as requests write them, to Route. `clear` when any topic changed."""

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
        """Return the route, learning it; None: the general road must look at the request."""
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
    """Return a field's number; -1 when it is none, is negative, or is so long that a range check is due."""
    if isinstance(text, int):
        return text if 0 <= text < NUMBER_MAX else -1
    return int(text) if len(text) < NUMBER_DIGITS_MAX and text.isascii() and text.isdigit() else -1


class SharedProperties:
    """Properties texts without their UNIQ_KEY, and what the broker makes of them.

    A text is cut in three: what is before the id, the id, what is after it. Texts that differ in the id alone are
    stored with the same suffix, tags code and wait flag. What the general road would refuse, divert or rebuild is
    remembered as None. half: of half messages, whose suffix ends where their transaction id comes; that, and the
    route's `real`, stand behind it.
    """

    __slots__ = ("_ask", "_known", "_rules")

    def __init__(self, rules: PropertyRules, *, half: bool = False) -> None:
        self._rules = rules
        self._ask = self._ask_half if half else self._ask_plain
        self._known: dict[bytes, Shared | None] = {}

    def read(self, sent: bytes) -> tuple[bytes, Shared] | None:
        """Return the unique id and what texts like this share; None: not for the lane."""
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

    def _learn(self, sent: bytes, rest: bytes, unique_id: bytes) -> Shared | None:
        shared = None if _MARK in rest or len(sent) > SENT_SIZE_MAX else self._ask(sent, unique_id)
        if len(rest) <= PROPERTIES_LENGTH_MAX:
            if len(self._known) >= PROPERTIES_MAX:
                self._known.clear()
            self._known[rest] = shared
        return shared

    def _ask_plain(self, sent: bytes, unique_id: bytes) -> Shared | None:
        """Let the general road's own rules judge the text."""
        if is_transactional(sent):
            return None
        stored = self._judge(sent, unique_id)
        return None if stored is None else (stored.text[len(sent) :], stored.tags_code, stored.waits, "")

    def _ask_half(self, sent: bytes, unique_id: bytes) -> Shared | None:
        """The same for a half message, and let `half_record` show that it adds to the text and changes nothing.

        One with an immunity of its own is the general road's: until when its end counts depends on its age.
        """
        group = find_property(sent, b"PGROUP")
        if not is_transactional(sent) or group is None or find_property(sent, _IMMUNITY) is not None:
            return None
        stored = self._judge(sent, unique_id)
        if stored is None:
            return None
        suffix = stored.text[len(sent) :] + b"__transactionId__\x01"
        try:
            half = half_record(PendingRecord("t", 0, b"", stored.text, stored.tags_code, 0, b""))
        except MQError:
            return None
        if half.properties != sent + suffix + unique_id + real_suffix("t", 0) or half.tags_code != stored.tags_code:
            return None
        return suffix, stored.tags_code, stored.waits, group.decode()

    def _judge(self, sent: bytes, unique_id: bytes) -> StoredProperties | None:
        """Return what the text is stored as; None: it is refused, diverted or rebuilt."""
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
