"""JSON as Apache RocketMQ's peers write it, which is not always JSON.

Bodies come from fastjson 1.x. Where it leaves the standard:

    {0:"1.2.3.4:10911"}                                   member names that are bare integers
    {{"brokerName":"b","queueId":0,"topic":"t"}:{…}}      member names that are objects (a Java map with such keys)
    {"$ref":"$.a[0]"}                                     an object written once, then referred to
    {name:1}  {'a':'b'}                                   bare and single-quoted names, accepted from anyone

Here an integer name becomes an int, an object name an ObjectKey (body.py makes MessageQueues of them), and a reference
the very value it points to. We write strict JSON (dumps), or, for an answer that old peers know only in fastjson's
form, bare integer and object names (dumps_fastjson).

A text comes from a peer that may be hostile, so reading it is bounded:

    NODES_MAX              values and names of one text, references followed: what its readers walk over
    DIALECT_NODES_MAX      the same for a text that is no strict JSON, which is read a hundred times as slowly
    nodes_of_references    the same for texts with references: the larger the text, the more they may bring in
    DEPTH_MAX              nested values
    REFERENCE_SIZE_MAX     characters of one reference

References let a text of 1 KB stand for more values than memory holds (each level of a few names for the same level
below), so what they expand to is counted before anyone walks over it.

Source: remoting.md of this project's references, verified on fastjson 1.2.83; RemotingSerializable, apache/rocketmq.
"""

import math
import re
from collections.abc import Mapping
from json.decoder import JSONDecodeError, scanstring  # type: ignore[attr-defined]  # CPython's reader of one string
from typing import Any, Final

import msgspec

from .errors import BodyError

__all__ = [
    "dumps",
    "dumps_fastjson",
    "loads",
    "loads_file",
]

DEPTH_MAX: Final = 64  # nested values; deeper is nobody's body and would exhaust the stack
NODES_MAX: Final = 1_000_000
"""Values and names of one text that a peer sent: a registration of 50 000 topics has half as many."""
DIALECT_NODES_MAX: Final = 50_000
"""Values and names of a text that only the lenient reader takes, about 2 µs each. Requests in the dialect are small;
a reply with a table by queues may have more, and its body class says so."""
NODES_PER_BYTE: Final = 4
"""Values that references may bring in for each byte of a text, beside NODES_FREE. The shortest reference has 17 bytes;
RocketMQ's longer ones, of 40 and more, stand for a SubscriptionData or TopicConfig of about ten values."""
NODES_FREE: Final = 1_000
TEXT_PER_NODE: Final = 64  # characters of a text that references bring in, which count as one value more
REFERENCE_SIZE_MAX: Final = 1_000  # characters of a reference's path; a longer one points to nothing


class ObjectKey(tuple[tuple[str, Any], ...]):
    """A member name that is an object: its (member, value) pairs, sorted. Hashable, written by dumps_fastjson."""

    __slots__ = ()

    @classmethod
    def of(cls, members: Mapping[str, Any]) -> "ObjectKey":
        """Return the key of an object whose values are plain (text, numbers, booleans, null)."""
        return cls(sorted(members.items()))

    def members(self) -> dict[str, Any]:
        """Return the object again."""
        return dict(self)


_fast_encode = msgspec.json.Encoder(order="sorted").encode


def dumps(value: object) -> bytes:
    """Return value as strict JSON: members alphabetical, names as text, no white space, non-ASCII raw.

    An ObjectKey becomes the text of its JSON, which Java reads as a MessageQueue. TypeError: not JSON's types.
    """
    return _fast_encode(_strict(value))


def _strict(value: object) -> object:
    if isinstance(value, Mapping):
        return {_strict_key(key): _strict(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return value


def _strict_key(key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, ObjectKey):
        return _fast_encode(key.members()).decode()
    if isinstance(key, int):
        return str(key)
    raise TypeError(f"found a member name of type {type(key).__name__}, expected str, int or ObjectKey")


_INT: Final = frozenset((int,))


def dumps_fastjson(value: object) -> bytes:
    """Return value as fastjson writes it: integer and ObjectKey names bare, otherwise as dumps."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _write(value: object, parts: list[bytes]) -> None:
    if isinstance(value, Mapping):
        if _is_plain_numbers(value):  # offsets by queue id, of which there may be many
            parts.append(b"{%b}" % b",".join([b"%d:%d" % item for item in sorted(value.items())]))
            return
        parts.append(b"{")
        for number, key in enumerate(_sorted_keys(value)):
            if number:
                parts.append(b",")
            if isinstance(key, ObjectKey):
                _write(key.members(), parts)
            else:
                parts.append(_fast_encode(key))
            parts.append(b":")
            _write(value[key], parts)
        parts.append(b"}")
    elif isinstance(value, list | tuple):
        parts.append(b"[")
        for number, item in enumerate(value):
            if number:
                parts.append(b",")
            _write(item, parts)
        parts.append(b"]")
    else:
        parts.append(_fast_encode(value))


def _is_plain_numbers(value: Mapping[Any, Any]) -> bool:
    return set(map(type, value)) == _INT and set(map(type, value.values())) == _INT


def _sorted_keys(value: Mapping[Any, Any]) -> list[Any]:
    """Texts alphabetically, as Java's bean members; integers by size; object names in the map's own order."""
    if all(isinstance(key, str) for key in value) or all(isinstance(key, int) for key in value):
        return sorted(value)
    return list(value)


def nodes_of_references(size: int, nodes_max: int = NODES_MAX) -> int:
    """Return how many values and names a text of size bytes may have, what its references stand for included."""
    return min(nodes_max, NODES_FREE + NODES_PER_BYTE * size)


def loads(
    data: bytes | bytearray | memoryview | str,
    *,
    nodes_max: int = NODES_MAX,
    dialect_nodes_max: int | None = None,
    with_references: bool = True,
) -> Any:
    """Return the value of a JSON text, read as leniently as the module says. BodyError: it cannot be read.

    Bytes that are no UTF-8 become U+FFFD. Blanks and a newline after the value are ignored, other text is not.
    nodes_max: the values and names it may have. dialect_nodes_max: those it may have if it is no strict JSON; None: as
    nodes_max. with_references: false leaves {"$ref": …} as the object it is.
    """
    if isinstance(data, str):
        text = data
    else:
        if isinstance(data, memoryview):
            data = bytes(data)
        if _surely_has(data, nodes_max):
            try:
                value = _strict_value(data)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass
            else:
                return _resolved(value, len(data), nodes_max) if with_references and b"$ref" in data else value
        text = str(data, "utf-8", "replace")
    value = _Reader(text, nodes_max if dialect_nodes_max is None else min(nodes_max, dialect_nodes_max)).read()
    return _resolved(value, len(text), nodes_max) if with_references and "$ref" in text else value


def loads_file(data: bytes) -> Any:
    """Return the value of a document that this machine keeps: as loads, as large as it is. BodyError: as loads."""
    return loads(data, nodes_max=NODES_FREE + NODES_PER_BYTE * len(data))


def _surely_has(data: bytes | bytearray, nodes_max: int) -> bool:
    """Tell whether a text surely has no more than nodes_max values and names; one with many commas in its texts may."""
    return len(data) <= nodes_max or 1 + sum(map(data.count, (b",", b":", b"[", b"{"))) <= nodes_max


def _strict_value(data: bytes | bytearray) -> Any:
    """Read strict JSON. BodyError: values nested too deep; other errors: it is not strict."""
    value = msgspec.json.decode(data)
    if len(data) > DEPTH_MAX and data.count(b"[") + data.count(b"{") > DEPTH_MAX:
        _check_nesting(value)
    return value


def _check_nesting(value: Any) -> None:
    """Raise BodyError if values nest deeper than DEPTH_MAX, each level looked at once."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise BodyError(f"found JSON nested deeper than {DEPTH_MAX} values, expected at most so many")


_BLANKS = frozenset(" \t\r\n\f\x00\ufeff")
_BLANKS_AND_COMMA = _BLANKS | {","}
_SPACE = re.compile(r"[ \t\r\n\f\x00\ufeff]*")
_SPACE_AND_COMMAS = re.compile(r"[ \t\r\n\f\x00\ufeff,]*")
_QUOTED = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_STRING = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_BARE_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]*")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS = {"true": True, "false": False, "null": None}
_DIGITS_MAX = 400  # of a number: beyond any of RocketMQ's, below Python's limit for text to int
_NAME_MAX = 1 << 63  # integer names are Java's longs; larger ones could be made to share one hash


class _Reader:
    """A recursive reader of fastjson's dialect, for what the strict decoder refused."""

    __slots__ = ("_left", "_nodes_max", "_position", "_text")

    def __init__(self, text: str, nodes_max: int) -> None:
        self._text = text
        self._position = 0
        self._nodes_max = nodes_max
        self._left = nodes_max

    def read(self) -> Any:
        value = self._value(0)
        self._skip_space()
        if self._position != len(self._text):
            raise self._error("the end")
        return value

    def _error(self, expected: str) -> BodyError:
        found = self._text[self._position : self._position + 20]
        return BodyError(f"JSON at character {self._position}: found {found!r}, expected {expected}")

    def _count(self) -> None:
        """Count one value, name or escaped character."""
        self._left -= 1
        if self._left < 0:
            raise self._error(f"at most {self._nodes_max} values, names and escaped characters before it")

    def _skip_space(self) -> str:
        """Go to the next character that is no white space and return it, "" at the end."""
        head = self._text[self._position : self._position + 1]
        return self._skip(_SPACE) if head in _BLANKS else head

    def _skip_commas(self) -> str:
        """The same, stray commas skipped as well, which fastjson accepts."""
        head = self._text[self._position : self._position + 1]
        return self._skip(_SPACE_AND_COMMAS) if head in _BLANKS_AND_COMMA else head

    def _skip(self, what: re.Pattern[str]) -> str:
        match = what.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"values nested at most {DEPTH_MAX} deep")
        self._count()
        head = self._skip_space()
        if head == "{":
            return self._object(depth)
        if head == "[":
            return self._array(depth)
        if head in ('"', "'"):
            return self._string(head)
        return self._scalar()

    def _object(self, depth: int) -> Any:
        self._position += 1
        members: dict[Any, Any] = {}
        while True:
            head = self._skip_commas()
            if head == "}":
                self._position += 1
                return members
            self._count()
            key = self._key(head, depth)
            if self._skip_space() != ":":
                raise self._error("':'")
            self._position += 1
            members[key] = self._value(depth + 1)
            if self._skip_space() not in (",", "}"):
                raise self._error("',' or '}'")

    def _key(self, head: str, depth: int) -> Any:
        if head == "{":
            members = self._value(depth + 1)
            # An object name within an object name would be quoted within a quotation: its text doubles at each level.
            if any(isinstance(value, dict | list) for value in members.values()) or any(
                isinstance(name, ObjectKey) for name in members
            ):
                raise self._error("an object of plain names and values as a member name")
            return ObjectKey.of({str(name): value for name, value in members.items()})
        if head in ('"', "'"):
            return self._string(head)
        match = _BARE_NAME.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
            return match[0]
        number = self._scalar()
        if not isinstance(number, int) or isinstance(number, bool) or not -_NAME_MAX <= number < _NAME_MAX:
            raise self._error("a member name")
        return number

    def _array(self, depth: int) -> list[Any]:
        self._position += 1
        items: list[Any] = []
        while True:
            head = self._skip_commas()
            if head == "]":
                self._position += 1
                return items
            items.append(self._value(depth + 1))
            if self._skip_space() not in (",", "]"):
                raise self._error("',' or ']'")

    def _string(self, quote: str) -> str:
        text = self._strict_string() if quote == '"' else None
        if text is None:
            text = self._lenient_string(quote)
        if text.isascii():
            return text
        # Escaped halves of a pair join; a half alone has no UTF-8, so it is replaced as Java's encoder does.
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")

    def _strict_string(self) -> str | None:
        """Read a string whose escapes are JSON's, None where it is another."""
        match = _QUOTED.match(self._text, self._position)
        if match is None:
            return None
        quoted = match[0]
        if "\\" in quoted:
            try:
                text, _ = scanstring(quoted, 1, False)
            except JSONDecodeError:  # made from the text by itself: it counts all lines of what it is given
                return None
        else:
            text = quoted[1:-1]
        self._position = match.end()
        return str(text)

    def _lenient_string(self, quote: str) -> str:
        self._position += 1
        plain = _STRING[quote]
        parts = []
        while True:
            match = plain.match(self._text, self._position)
            assert match is not None
            parts.append(match[0])
            self._position = match.end()
            stop = self._text[self._position : self._position + 1]
            if not stop:
                raise self._error(f"a closing {quote}")
            self._position += 1
            if stop == quote:
                return "".join(parts)
            self._count()
            parts.append(self._escape())

    def _escape(self) -> str:
        letter = self._text[self._position : self._position + 1]
        self._position += 1
        if letter in ("u", "x"):
            size = 4 if letter == "u" else 2
            digits = self._text[self._position : self._position + size]
            if len(digits) < size or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
                raise self._error(f"{size} hex digits")
            self._position += size
            return chr(int(digits, 16))
        if not letter:
            raise self._error("an escaped character")
        return _ESCAPES.get(letter, letter)

    def _scalar(self) -> Any:
        match = _NUMBER.match(self._text, self._position)
        if match is not None:
            if len(match[0]) > _DIGITS_MAX:
                raise self._error(f"a number of at most {_DIGITS_MAX} digits")
            if not (match[1] or match[2]):
                self._position = match.end()
                return int(match[0])
            number = float(match[0])
            if math.isinf(number):
                raise self._error("a number that a double can hold")
            self._position = match.end()
            return number
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._position):
                self._position += len(word)
                return value
        raise self._error("a value")


def _resolved(root: Any, size: int, nodes_max: int) -> Any:
    """Return root with each {"$ref": path} replaced by what it points to; a path to nowhere gives None.

    size: characters of the text. BodyError: the result would contain itself, nest deeper than DEPTH_MAX, or have more
    values and names than nodes_of_references says.
    """
    return _Resolver(root, nodes_of_references(size, nodes_max)).resolve()


_PATH_STEP = re.compile(r"\.([^.\[]+)|\[(\d{1,9})\]")


class _Resolver:
    """Replaces references in place. Each value of the text is visited once; what is shared stays shared."""

    __slots__ = ("_left", "_nodes_max", "_root")

    def __init__(self, root: Any, nodes_max: int) -> None:
        self._root = root
        self._nodes_max = nodes_max
        self._left = nodes_max

    def resolve(self) -> Any:
        root = self._root = self._replace(self._root, (), 0)
        if not isinstance(root, dict | list):
            return root
        _, nodes = self._measure(root, {}, 0)
        if nodes > self._nodes_max:
            raise self._too_many()
        return root

    def _too_many(self) -> BodyError:
        return BodyError(
            f"found JSON references ($ref) that stand for more values and names than the {self._nodes_max} that a "
            "text of this size may have"
        )

    def _replace(self, value: Any, parents: tuple[Any, ...], depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise BodyError(f"JSON nested deeper than {DEPTH_MAX}")
        if isinstance(value, dict):
            if len(value) == 1 and isinstance(path := value.get("$ref"), str):
                return self._target(path, parents)
            for key, member in value.items():
                if isinstance(member, dict | list):
                    value[key] = self._replace(member, (*parents, value), depth + 1)
        elif isinstance(value, list):
            for number, item in enumerate(value):
                if isinstance(item, dict | list):
                    value[number] = self._replace(item, (*parents, value), depth + 1)
        return value

    def _target(self, path: str, parents: tuple[Any, ...]) -> Any:
        """Find what a path names: "$" the root, ".." the object that holds this one's holder, "$.a[0].b" a step each.

        Steps count as values do: many references to one long chain of references are no cheaper than a large text.
        """
        if path == "..":
            return parents[-2] if len(parents) > 1 else None
        for _ in range(DEPTH_MAX):  # a reference may point to a reference
            if not path.startswith("$") or len(path) > REFERENCE_SIZE_MAX:
                return None
            found = self._root
            for step in _PATH_STEP.finditer(path):
                name, number = step.groups()
                self._left -= 1
                if self._left < 0:
                    raise self._too_many()
                try:
                    found = found[name] if name else found[int(number)]
                except (KeyError, IndexError, TypeError):
                    return None
            if not (isinstance(found, dict) and len(found) == 1 and isinstance(found.get("$ref"), str)):
                return found
            path = found["$ref"]
        return None

    def _measure(self, value: Any, known: dict[int, tuple[int, int] | None], depth: int) -> tuple[int, int]:
        """Return how deep value nests and of how many values and names it is made, each shared part looked at once.

        BodyError: too deep, or it contains itself.
        """
        measured = known.get(id(value), (0, 0))
        if measured is None or depth + measured[0] > DEPTH_MAX:
            raise BodyError(f"JSON references nest deeper than {DEPTH_MAX}, or in a circle")
        if measured[1]:
            return measured
        known[id(value)] = None  # for as long as it is being measured
        nested, nodes = 0, 1 + (sum(map(_weight, value)) if isinstance(value, dict) else 0)
        for member in value.values() if isinstance(value, dict) else value:
            if isinstance(member, dict | list):
                member_nested, member_nodes = self._measure(member, known, depth + 1)
                nested, nodes = max(nested, member_nested), nodes + member_nodes
            else:
                nodes += _weight(member)
        known[id(value)] = 1 + nested, nodes
        return 1 + nested, nodes


def _weight(value: Any) -> int:
    """Return as how many values a name or plain value counts: one, a long text as several."""
    if isinstance(value, str):
        return 1 + len(value) // TEXT_PER_NODE
    return sum(1 + _weight(member) for _, member in value) if isinstance(value, ObjectKey) else 1
