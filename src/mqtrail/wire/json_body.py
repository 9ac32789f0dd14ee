"""JSON as Apache RocketMQ's peers write it, which is not always JSON.

Bodies come from fastjson 1.x. Where it leaves the standard:

    {0:"1.2.3.4:10911"}                                   member names that are bare integers
    {{"brokerName":"b","queueId":0,"topic":"t"}:{…}}      member names that are objects (a Java map with such keys)
    {"$ref":"$.a[0]"}                                     an object written once, then referred to
    {name:1}  {'a':'b'}                                   bare and single-quoted names, accepted from anyone

Here an integer name becomes an int, an object name an ObjectKey (body.py makes MessageQueues of them), and a reference
the very value it points to. We write strict JSON (dumps), or, for an answer that old peers know only in fastjson's
form, bare integer and object names (dumps_fastjson).

Source: remoting.md of this project's references, verified on fastjson 1.2.83; RemotingSerializable, apache/rocketmq.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .errors import BodyError

DEPTH_MAX: Final = 64  # nested values; deeper is nobody's body and would exhaust the stack


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


def dumps_fastjson(value: object) -> bytes:
    """Return value as fastjson writes it: integer and ObjectKey names bare, otherwise as dumps."""
    parts: list[bytes] = []
    _write(value, parts)
    return b"".join(parts)


def _write(value: object, parts: list[bytes]) -> None:
    if isinstance(value, Mapping):
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


def _sorted_keys(value: Mapping[Any, Any]) -> list[Any]:
    """Texts alphabetically, as Java's bean members; integers by size; object names in the map's own order."""
    if all(isinstance(key, str) for key in value) or all(isinstance(key, int) for key in value):
        return sorted(value)
    return list(value)


def loads(data: bytes | bytearray | memoryview | str) -> Any:
    """Return the value of a JSON text, read as leniently as the module says. BodyError: it cannot be read.

    Bytes that are no UTF-8 become U+FFFD. Blanks and a newline after the value are ignored, other text is not.
    """
    if isinstance(data, str):
        text = data
    else:
        try:
            value = msgspec.json.decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            text = str(data, "utf-8", "replace")
        else:
            if b"$ref" not in bytes(data):
                return value
            return _resolved(value)
    return _resolved(_Reader(text).read())


_SPACE = re.compile(r"[ \t\r\n\f\x00\ufeff]*")
_STRING = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_BARE_NAME = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]*")
_ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "0": "\0"}
_WORDS = {"true": True, "false": False, "null": None}
_INTEGER_DIGITS_MAX = 400  # beyond any number of RocketMQ's, below Python's limit for text to int


class _Reader:
    """A recursive reader of fastjson's dialect, for what the strict decoder refused."""

    __slots__ = ("_position", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0

    def read(self) -> Any:
        value = self._value(0)
        self._skip_space()
        if self._position != len(self._text):
            raise self._error("the end")
        return value

    def _error(self, expected: str) -> BodyError:
        found = self._text[self._position : self._position + 20]
        return BodyError(f"JSON at character {self._position}: found {found!r}, expected {expected}")

    def _skip_space(self) -> str:
        """Go to the next character that is not white space and return it, "" at the end."""
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"values nested at most {DEPTH_MAX} deep")
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
            head = self._skip_space()
            if head == "}":
                self._position += 1
                return members
            if head == ",":  # fastjson accepts stray commas
                self._position += 1
                continue
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
            if any(isinstance(value, dict | list) for value in members.values()):
                raise self._error("an object of plain values as a member name")
            return ObjectKey(sorted((str(name), value) for name, value in members.items()))
        if head in ('"', "'"):
            return self._string(head)
        match = _BARE_NAME.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
            return match[0]
        number = self._scalar()
        if number is None or isinstance(number, float | bool):
            raise self._error("a member name")
        return number

    def _array(self, depth: int) -> list[Any]:
        self._position += 1
        items: list[Any] = []
        while True:
            head = self._skip_space()
            if head == "]":
                self._position += 1
                return items
            if head == ",":
                self._position += 1
                continue
            items.append(self._value(depth + 1))
            if self._skip_space() not in (",", "]"):
                raise self._error("',' or ']'")

    def _string(self, quote: str) -> str:
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
                break
            parts.append(self._escape())
        text = "".join(parts)
        # Escaped halves of a pair join; a half alone has no UTF-8, so it is replaced as Java's encoder does.
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")

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
            if len(match[0]) > _INTEGER_DIGITS_MAX:
                raise self._error(f"a number of at most {_INTEGER_DIGITS_MAX} digits")
            self._position = match.end()
            return float(match[0]) if match[1] or match[2] else int(match[0])
        for word, value in _WORDS.items():
            if self._text.startswith(word, self._position):
                self._position += len(word)
                return value
        raise self._error("a value")


def _resolved(root: Any) -> Any:
    """Return root with each {"$ref": path} replaced by what it points to; a path to nowhere gives None.

    BodyError: the result would contain itself, or nest deeper than DEPTH_MAX.
    """
    root = _replace(root, root, (), 0)
    _check_depth(root, {}, 0)
    return root


def _replace(value: Any, root: Any, parents: tuple[Any, ...], depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise BodyError(f"JSON nested deeper than {DEPTH_MAX}")
    if isinstance(value, dict):
        if len(value) == 1 and isinstance(path := value.get("$ref"), str):
            return _target(path, root, parents)
        for key, member in value.items():
            if isinstance(member, dict | list):
                value[key] = _replace(member, root, (*parents, value), depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            if isinstance(item, dict | list):
                value[number] = _replace(item, root, (*parents, value), depth + 1)
    return value


_PATH_STEP = re.compile(r"\.([^.\[]+)|\[(\d{1,9})\]")


def _target(path: str, root: Any, parents: tuple[Any, ...]) -> Any:
    """Find what a path names: "$" the root, ".." the object that holds this one's holder, "$.a[0].b" a step each."""
    if path == "..":
        return parents[-2] if len(parents) > 1 else None
    found = root
    for _ in range(DEPTH_MAX):  # a reference may point to a reference
        if not path.startswith("$"):
            return None
        found = root
        for name, number in _PATH_STEP.findall(path):
            try:
                found = found[name] if name else found[int(number)]
            except (KeyError, IndexError, TypeError):
                return None
        if not (isinstance(found, dict) and len(found) == 1 and isinstance(found.get("$ref"), str)):
            return found
        path = found["$ref"]
    return None


def _check_depth(value: Any, depths: dict[int, int], depth: int) -> int:
    """Return how deep value nests, each shared part looked at once. BodyError: too deep, or it contains itself."""
    if not isinstance(value, dict | list):
        return 0
    known = depths.get(id(value))
    if known == -1 or depth + (known or 0) > DEPTH_MAX:
        raise BodyError(f"JSON references nest deeper than {DEPTH_MAX}, or in a circle")
    if known is None:
        depths[id(value)] = -1
        members = value.values() if isinstance(value, dict) else value
        known = 1 + max((_check_depth(member, depths, depth + 1) for member in members), default=0)
        depths[id(value)] = known
    return known
