"""What the lane looked up once: of a topic's queues, and of the properties that messages share.

Both forget everything when there is too much of it, and routes also with every change of any topic.
"""

from collections.abc import Callable
from typing import Final

from mqtrail.store import MessageStore
from mqtrail.wire import TOPIC_LENGTH_MAX, MQError

from ..message_properties import PropertyRules, is_transactional
from ..send import Admission
from ..stats import Counter, Statistics

ROUTES_MAX: Final = 20_000
NUMBER_MAX: Final = 1 << 31  # of a queue id or a count; times and offsets are compared with less care
NUMBER_DIGITS_MAX: Final = 19
PROPERTIES_MAX: Final = 4_096
PROPERTIES_LENGTH_MAX: Final = 1_024  # longer texts are not remembered
SENT_SIZE_MAX: Final = 30_000  # of a properties text: what the broker adds still fits

_MARK: Final = b"UNIQ_KEY\x01"  # spelt out in `read`, which is called for every message
assert len(_MARK) == 9


class Route:
    """One queue that messages may go to, without a check left to make. counter: where its messages are counted."""

    __slots__ = ("counter", "key", "queue_id", "sys_flag", "topic")

    def __init__(self, topic: str, queue_id: int, sys_flag: int, counter: Counter | None) -> None:
        self.topic = topic
        self.queue_id = queue_id
        self.key = (topic, queue_id)
        self.sys_flag = sys_flag
        self.counter = counter


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
    remembered as None.
    """

    __slots__ = ("_known", "_rules")

    def __init__(self, rules: PropertyRules) -> None:
        self._rules = rules
        self._known: dict[bytes, tuple[bytes, int, bool] | None] = {}

    def read(self, sent: bytes) -> tuple[bytes, tuple[bytes, int, bool]] | None:
        """Return the unique id and (suffix to store, tags code, waits); None: not for the lane."""
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

    def _learn(self, sent: bytes, rest: bytes, unique_id: bytes) -> tuple[bytes, int, bool] | None:
        shared = None if _MARK in rest or len(sent) > SENT_SIZE_MAX else self._ask(sent, unique_id)
        if len(rest) <= PROPERTIES_LENGTH_MAX:
            if len(self._known) >= PROPERTIES_MAX:
                self._known.clear()
            self._known[rest] = shared
        return shared

    def _ask(self, sent: bytes, unique_id: bytes) -> tuple[bytes, int, bool] | None:
        """Let the general road's own rules judge the text."""
        if is_transactional(sent):
            return None
        try:
            sent.decode()
            stored = self._rules.of_message(sent)
        except (MQError, UnicodeDecodeError):
            return None
        if stored.delay_level or stored.timed:
            return None
        if not stored.text.startswith(sent) or stored.unique_id.encode() != unique_id:
            return None
        return stored.text[len(sent) :], stored.tags_code, stored.waits
