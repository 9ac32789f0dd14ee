"""JSON as Apache RocketMQ's peers write it, which is not always standard JSON.

Bodies come from fastjson 1.x. It differs from the standard:

    {0:"1.2.3.4:10911"}                                   member names that are bare integers
    {{"brokerName":"b","queueId":0,"topic":"t"}:{…}}      member names that are objects (a Java map with such keys)
    {"$ref":"$.a[0]"}                                     an object written once, then referred to
    {name:1}  {'a':'b'}                                   bare and single-quoted names, accepted from anyone

Here an integer name becomes an int, an object name an ObjectKey (body.py makes MessageQueues of them), and a reference
the same value as its target. We write strict JSON (dumps). Old peers read some replies only in fastjson's form: these
have bare integer and object names (dumps_fastjson).

A text may come from a hostile peer, so reading it has limits:

    NODES_MAX              values and names of one text, with references followed
    DIALECT_NODES_MAX      the same for a text that is not strict JSON, which takes a hundred times as long to read
    nodes_of_references    the same for texts with references: more for larger texts
    DEPTH_MAX              nested values
    REFERENCE_SIZE_MAX     characters of one reference

With references a text of 1 KB can expand to more values than memory holds (each level has a few names for the same
level below), so the expanded values are counted before any reader visits them.

Source: remoting.md of this project's references, verified on fastjson 1.2.83; RemotingSerializable, apache/rocketmq.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from .errors import BodyError
from .json_bounds import DEPTH_MAX, DIALECT_SIZE_PER_NODE, NODES_FREE, NODES_MAX, NODES_PER_BYTE, ObjectKey
from .json_dialect import DialectReader
from .json_references import resolved

__all__ = [
    "dumps",
    "dumps_fastjson",
    "loads",
    "loads_file",
]

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


def loads(
    data: bytes | bytearray | memoryview | str,
    *,
    nodes_max: int = NODES_MAX,
    dialect_nodes_max: int | None = None,
    with_references: bool = True,
) -> Any:
    """Return the value of a JSON text, read as leniently as the module says. BodyError: it cannot be read.

    Bytes that are not UTF-8 become U+FFFD. Blanks and a newline after the value are ignored; other text is an error.
    nodes_max: maximum number of values and names. dialect_nodes_max: the same if it is not strict JSON, which may have
    DIALECT_SIZE_PER_NODE bytes for each; None: nodes_max. with_references: false leaves {"$ref": …} as a plain object.
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
                return resolved(value, len(data), nodes_max) if with_references and b"$ref" in data else value
        if dialect_nodes_max is not None and len(data) > dialect_nodes_max * DIALECT_SIZE_PER_NODE:
            raise BodyError(
                f"found {len(data)} bytes of JSON that is not strict, or has too many values, expected at most "
                f"{dialect_nodes_max} values and names in {dialect_nodes_max * DIALECT_SIZE_PER_NODE} bytes: send "
                "strict JSON, or less of it"
            )
        text = str(data, "utf-8", "replace")
    value = DialectReader(text, nodes_max if dialect_nodes_max is None else min(nodes_max, dialect_nodes_max)).read()
    return resolved(value, len(text), nodes_max) if with_references and "$ref" in text else value


def loads_file(data: bytes) -> Any:
    """Return the value of a local file: as loads, but of any size. BodyError: as loads."""
    return loads(data, nodes_max=NODES_FREE + NODES_PER_BYTE * len(data))


def _surely_has(data: bytes | bytearray, nodes_max: int) -> bool:
    """Return whether a text certainly has at most nodes_max values and names, judged by its commas."""
    return len(data) <= nodes_max or 1 + sum(map(data.count, (b",", b":", b"[", b"{"))) <= nodes_max


def _strict_value(data: bytes | bytearray) -> Any:
    """Read strict JSON. BodyError: values nested too deep; other errors: it is not strict."""
    value = msgspec.json.decode(data)
    if len(data) > DEPTH_MAX and data.count(b"[") + data.count(b"{") > DEPTH_MAX:
        _check_nesting(value)
    return value


_CONTAINERS: Final = frozenset((dict, list))


def _check_nesting(value: Any) -> None:
    """Raise BodyError if values nest deeper than DEPTH_MAX."""
    level = [value]
    for _ in range(DEPTH_MAX + 1):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in _CONTAINERS
        ]
        if not level:
            return
    raise BodyError(f"found JSON nested deeper than {DEPTH_MAX} values, expected at most {DEPTH_MAX}")
