"""Header classes: structs whose fields are the ext fields of one request or reply.

Field names are RocketMQ's in snake_case (queue_id is queueId on the wire), or `msgspec.field(name=...)` gives the name
on the wire. Values are text: decimal integers, "true" and "false", or the text itself; None is omitted. Reading is as
strict as Java's parseInt and parseLong, and as lenient as its parseBoolean: everything except "true" in any case is
false.

Source: CommandCustomHeader and its subclasses, RemotingCommand.decodeCommandCustomHeader, apache/rocketmq remoting/.
"""

import re
import types
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin

import msgspec

from .errors import HeaderError

Int32 = Annotated[int, 32]
"""An int that must fit into Java's int; a plain int must fit into its long."""

_QUOTED_NAMES_MAX = 30  # names of ext fields that an error quotes,
_QUOTED_LENGTH_MAX = 40  # and characters of each
_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")


class Header(msgspec.Struct, rename="camel"):
    """Base of all header classes: to and from ext fields."""

    @classmethod
    def from_ext(cls, ext: Mapping[str, str]) -> Self:
        """Return the header in a command's ext fields; unknown ones are ignored.

        HeaderError: a required field is missing, or a number is invalid or out of its range.
        """
        values = {}
        for field in _fields(cls):
            text = ext.get(field.wire)
            if text is not None and (text or field.is_text):
                values[field.name] = field.read(field.wire, text)
            elif field.required:
                raise HeaderError(f"found no {field.wire} in {_names(ext)}, expected it in {cls.__name__}")
        return cls(**values)

    def to_ext(self) -> dict[str, str]:
        """Return the ext fields, without those that are None."""
        ext = {}
        for field in _fields(type(self)):
            value = getattr(self, field.name)
            if value is not None:
                ext[field.wire] = ("true" if value else "false") if isinstance(value, bool) else str(value)
        return ext


class _Field(NamedTuple):
    name: str
    wire: str
    required: bool
    is_text: bool
    read: Callable[[str, str], Any]


_known: dict[type[Header], tuple[_Field, ...]] = {}


def _fields(cls: type[Header]) -> tuple[_Field, ...]:
    known = _known.get(cls)
    return _learn(cls) if known is None else known


def _learn(cls: type[Header]) -> tuple[_Field, ...]:
    fields = []
    for field in msgspec.structs.fields(cls):
        kind = field.type
        if get_origin(kind) in (Union, types.UnionType):
            (kind,) = (part for part in get_args(kind) if part is not type(None))
        fields.append(_Field(field.name, field.encode_name, field.required, kind is str, _READERS[kind]))
    _known[cls] = tuple(fields)
    return _known[cls]


def _names(ext: Mapping[str, str]) -> str:
    names = [name[:_QUOTED_LENGTH_MAX] for name in sorted(ext)[:_QUOTED_NAMES_MAX]]
    more = len(ext) - len(names)
    return f"{names} and {more} more" if more else str(names)


def _read_text(_: str, text: str) -> str:
    return text


def _read_bool(_: str, text: str) -> bool:
    return text.lower() == "true"


def _reader_of_int(bits: int) -> Callable[[str, str], int]:
    limit = 1 << bits - 1

    def read(name: str, text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else limit
        if not -limit <= value < limit:
            raise HeaderError(f"found {name}={text[:40]!r}, expected a decimal int{bits}")
        return value

    return read


_READERS: dict[Any, Callable[[str, str], Any]] = {
    str: _read_text,
    bool: _read_bool,
    int: _reader_of_int(64),
    Int32: _reader_of_int(32),
}
