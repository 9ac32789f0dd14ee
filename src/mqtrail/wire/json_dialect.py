"""The reader of fastjson's dialect (see json_body), for texts that are not strict JSON."""

import math
import re
from json import JSONDecodeError, JSONDecoder
from typing import Any

from .errors import BodyError
from .json_bounds import DEPTH_MAX, ObjectKey

_DECODER = JSONDecoder(strict=False)  # accepts control characters inside a string
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
_DIGITS_MAX = 400  # digits of a number: more than any of RocketMQ's, fewer than Python's limit for int(text)
_NAME_MAX = 1 << 63  # integer names are Java's longs; larger ones could be chosen to share one hash


class DialectReader:
    """A recursive reader of fastjson's dialect, for texts that the strict decoder rejects."""

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
        """Go to the next character that is not white space and return it; "" at the end."""
        head = self._text[self._position : self._position + 1]
        return self._skip(_SPACE) if head in _BLANKS else head

    def _skip_commas(self) -> str:
        """Do as _skip_space, and skip extra commas, which fastjson accepts."""
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
            # An object name within an object name would be quoted twice: its text doubles with each level.
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
        # Two escaped surrogates become one character; a lone one has no UTF-8: it is replaced as by Java's encoder.
        return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")

    def _strict_string(self) -> str | None:
        """Read a string that has only JSON's escapes; None: it has others."""
        match = _QUOTED.match(self._text, self._position)
        if match is None:
            return None
        quoted = match[0]
        if "\\" in quoted:
            try:
                text = _DECODER.decode(quoted)
            except JSONDecodeError:  # decoded separately: the decoder counts the lines of all the text that it gets
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
