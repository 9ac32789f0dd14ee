"""The key-value configuration of a name server: values by namespace and key, saved in kvConfig.json.

Operators set them with requests.

Source: KVConfigManager, apache/rocketmq namesrv/.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import merge
from typing import Any, Final

import msgspec

from mqtrail.store import ConfigFileStore
from mqtrail.wire import (
    BodyError,
    KvHeader,
    KvResponseHeader,
    KvTable,
    NamespaceHeader,
    Peer,
    QueryNotFound,
    RemotingCommand,
    Send,
    SystemError_,
    Work,
    answer,
    encode_in_slices,
    sorted_in_slices,
)

FILE: Final = "kvConfig.json"
VALUES_A_SLICE: Final = 2_000  # encoded as JSON
PIECE_COUNT: Final = 200  # small values that are encoded for the file in one call, which no other thread interrupts
SORTED_COUNT: Final = 5_000  # values sorted in one call
LARGE_SIZE: Final = 1_024  # characters of a value that is encoded by itself
_encode = msgspec.json.Encoder().encode

# Limits of the configuration, which is kept in memory and saved whole. Lengths are characters; in SIZE_MAX those of the
# file, where a control character is six.
NAMESPACES_MAX: Final = 1_000
VALUES_MAX: Final = 100_000
NAME_LENGTH_MAX: Final = 1_024  # of a namespace, of a key
VALUE_LENGTH_MAX: Final = 64 * 1024
SIZE_MAX: Final = 16 * 1024 * 1024  # total of all keys and values


class KeyValues:
    """The values of one name server. files: where they are saved."""

    def __init__(self, files: ConfigFileStore) -> None:
        self._files = files
        self._tables = self._files.load_as(FILE, _read) or {}
        self._count = sum(map(len, self._tables.values()))
        self._size = sum(_length(key, value) for table in self._tables.values() for key, value in table.items())

    def put(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """100."""
        header = KvHeader.from_ext(request.ext)
        if header.value is None:
            raise SystemError_(f"found no value for {header.namespace}/{header.key}, expected one")
        self._check_room(header.namespace, header.key, header.value)
        self._change(header.namespace, header.key, header.value)
        return answer(peer, request)

    def _check_room(self, namespace: str, key: str, value: str) -> None:
        """Check the limits for a new value. SystemError_: one would be exceeded."""
        if namespace not in self._tables and len(self._tables) >= NAMESPACES_MAX:
            self._tables = {known: table for known, table in self._tables.items() if table}
        table = self._tables.get(namespace)
        before = None if table is None else table.get(key)
        size = self._size + _length(key, value) - (0 if before is None else _length(key, before))
        for what, found, limit in (
            ("a namespace of {} characters", len(namespace), NAME_LENGTH_MAX),
            ("a key of {} characters", len(key), NAME_LENGTH_MAX),
            ("a value of {} characters", len(value), VALUE_LENGTH_MAX),
            ("{} namespaces with this one", len(self._tables) + (table is None), NAMESPACES_MAX),
            ("{} values with this one", self._count + (before is None), VALUES_MAX),
            ("{} characters of keys and values with this one", size, SIZE_MAX),
        ):
            if found > limit:
                raise SystemError_(
                    f"found {what.format(found)}, expected at most {limit}: delete some, or use shorter ones"
                )

    def _change(self, namespace: str, key: str, value: str | None) -> None:
        """Set or delete a value. It is saved together with other concurrent changes."""
        before = self.value(namespace, key)
        self._set(namespace, key, value)
        self._files.change(FILE, self._document, lambda: self._set(namespace, key, before))

    def _set(self, namespace: str, key: str, value: str | None) -> None:
        table = self._tables.setdefault(namespace, {})
        before = table.pop(key, None)
        if before is not None:
            self._count -= 1
            self._size -= _length(key, before)
        if value is not None:
            table[key] = value
            self._count += 1
            self._size += _length(key, value)

    def _document(self) -> Callable[[], bytes]:
        tables = {namespace: table.copy() for namespace, table in self._tables.items()}
        return lambda: encode_tables(tables)

    def get(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """101."""
        header = KvHeader.from_ext(request.ext)
        value = self.value(header.namespace, header.key)
        if value is None:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace} Key: {header.key}")
        return answer(peer, request, KvResponseHeader(value).to_ext())

    def delete(self, peer: Peer, request: RemotingCommand, now_ms: int) -> list[Send]:
        """102."""
        header = KvHeader.from_ext(request.ext)
        if header.key in self._tables.get(header.namespace, {}):
            self._change(header.namespace, header.key, None)
        return answer(peer, request)

    def list_values(self, peer: Peer, request: RemotingCommand, now_ms: int) -> Work:
        """219."""
        header = NamespaceHeader.from_ext(request.ext)
        if header.namespace not in self._tables:
            raise QueryNotFound(f"No config item, Namespace: {header.namespace}")
        return answer(peer, request, body=(yield from self.encoded(header.namespace)))

    # For other requests.

    def value(self, namespace: str, key: str) -> str | None:
        """Return one value; None: there is none."""
        return self._tables.get(namespace, {}).get(key)

    def has_values(self, namespace: str) -> bool:
        """Return whether the namespace has any value."""
        return bool(self._tables.get(namespace))

    def encoded(self, namespace: str) -> Generator[None, None, bytes]:
        """Return the values of a namespace as the body of a reply, in slices."""
        values = yield from sorted_in_slices(self._tables[namespace].items())
        return (yield from encode_in_slices(KvTable(), "table", values, VALUES_A_SLICE))


def encode_tables(tables: dict[str, dict[str, str]]) -> bytes:
    """Return the file of values by namespace and key, names alphabetical.

    It is written whole for each save: a general encoder takes nearly twice as long for many values.
    """
    parts = [b'{"configTable":{']
    for number, (namespace, table) in enumerate(sorted(tables.items())):
        parts.append(b"%b%b:{" % (b"," if number else b"", _encode(namespace)))
        for count, members in enumerate(_members(_sorted(table))):
            parts += (b",", *members) if count else members
        parts.append(b"}")
    parts.append(b"}}")
    return b"".join(parts)


def _length(*texts: str) -> int:
    """Return how many characters texts take in the file, without their quotes."""
    return sum(len(_encode(text).decode()) - 2 for text in texts)


def _sorted(table: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield key and value, keys alphabetical. One sort of all would hold the interpreter for 80 ms."""
    items = list(table.items())
    return merge(*(sorted(items[first : first + SORTED_COUNT]) for first in range(0, len(items), SORTED_COUNT)))


def _members(items: Iterable[tuple[str, str]]) -> Iterator[tuple[bytes, ...]]:
    """Yield parts of JSON members: several small values together, a large one alone."""
    piece: dict[str, str] = {}
    for key, value in items:
        is_large = len(value) > LARGE_SIZE
        if piece and (is_large or len(piece) >= PIECE_COUNT):
            yield (_encode(piece)[1:-1],)
            piece = {}
        if is_large:
            yield _encode(key), b":", _encode(value)
        else:
            piece[key] = value
    if piece:
        yield (_encode(piece)[1:-1],)


def _read(document: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return the values of a file. BodyError: it is another document."""
    table = document.get("configTable")
    if table is None:
        raise BodyError("found no configTable, expected the table")
    try:
        return msgspec.convert(table, dict[str, dict[str, str]])
    except msgspec.ValidationError as error:
        raise BodyError(str(error)) from error
