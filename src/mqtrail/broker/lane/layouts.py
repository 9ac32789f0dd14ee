"""Binary headers, read by layouts that were learned from earlier ones.

The headers of a client differ in a few values of equal length (queue id, time, properties, opaque). A layout is a
header parsed once: a Struct that cuts headers of that size into constant pieces (keys, lengths, group, topic) and
values. If the constants are equal, the values are valid. Otherwise the next layout of that size is tried, and finally
the header is parsed field by field. A wrong guess costs time only.

    c0 = code language version | opaque | c1 = flag … key length | value | c2 | value | … | cn
"""

import struct
from typing import Any, Final, NamedTuple

from .headers import END_CONSTANTS, END_REQUIRED, HALF_FLAG, PULL_CONSTANTS, PULL_REQUIRED, SEND_CONSTANTS, Kind

_HEAD: Final = struct.Struct(">hbhiiI")  # code, language, version, opaque, flag, remark size
_I16: Final = struct.Struct(">H")
_I32: Final = struct.Struct(">I")
_FIELDS_AT: Final = _HEAD.size + 4
OPAQUE_AT: Final = 5

LAYOUTS_MAX: Final = 1024  # maximum number of header sizes
SAME_SIZE_MAX: Final = 16  # maximum number of layouts of one header size
CONSTANTS_SIZE_MAX: Final = 2_048  # bytes of a layout's constants; a header with more is parsed each time

VARIABLE: Final = {
    Kind.SEND: ("e", "g", "i"),
    Kind.BATCH: ("e", "g", "i"),
    Kind.PULL: ("queueId", "queueOffset", "commitOffset", "subVersion"),
    Kind.END: ("tranStateTableOffset", "commitLogOffset", "msgId", "transactionId"),
}
_KINDS: Final = {310: Kind.SEND, 320: Kind.BATCH, 11: Kind.PULL, 37: Kind.END}
_FLAGS: Final = {37: 2}  # header flags by code; 0 for others
_BATCH_CONSTANTS: Final = {**SEND_CONSTANTS, "f": ("0",), "m": ("true", "false")}
_CONSTANTS: Final = {
    Kind.SEND: SEND_CONSTANTS,
    Kind.BATCH: _BATCH_CONSTANTS,
    Kind.PULL: PULL_CONSTANTS,
    Kind.END: END_CONSTANTS,
}
_REQUIRED: Final = {
    Kind.SEND: frozenset("abegi"),
    Kind.BATCH: frozenset("abegi"),
    Kind.PULL: PULL_REQUIRED,
    Kind.END: END_REQUIRED,
}


class HeaderLayout(NamedTuple):
    """One layout of headers of one size.

    cut: a Struct that cuts a header into pieces: constants at even places, values at odd ones; the opaque is at 1.
    constants: the expected bytes of the constant pieces. fields: values of the constant fields. places: for each field
    of VARIABLE (HALF has those of SEND), the place of its value; 0: the header lacks the field.
    """

    kind: Kind
    cut: struct.Struct
    constants: tuple[bytes, ...]
    fields: dict[str, str]
    places: tuple[int, ...]


class Layouts:
    """Known layouts by header size. Bounded: all are dropped when there are too many."""

    __slots__ = ("_by_size",)

    def __init__(self) -> None:
        self._by_size: dict[int, list[HeaderLayout]] = {}

    def read(self, header: bytes) -> tuple[HeaderLayout, tuple[Any, ...]] | None:
        """Return the layout of a header and its pieces; None: the lane does not support the header."""
        known = self._by_size.get(len(header))
        if known is not None:
            for layout in known:
                pieces = layout.cut.unpack(header)
                if pieces[::2] == layout.constants:
                    return layout, pieces
        learnt = _learn(header)
        if learnt is None:
            return None
        if known is None:
            if len(self._by_size) >= LAYOUTS_MAX:
                self._by_size.clear()
            known = self._by_size[len(header)] = []
        elif len(known) >= SAME_SIZE_MAX:
            known.clear()
        known.append(learnt)
        return learnt, learnt.cut.unpack(header)


def _learn(header: bytes) -> HeaderLayout | None:
    """Parse a header; None: the lane does not support it."""
    end = len(header)
    if end < _FIELDS_AT:
        return None
    code, _, _, _, flag, remark_size = _HEAD.unpack_from(header)
    kind = _KINDS.get(code)
    if kind is None or flag != _FLAGS.get(code, 0) or remark_size:
        return None
    if _I32.unpack_from(header, _HEAD.size)[0] != end - _FIELDS_AT:
        return None
    variable, constants = VARIABLE[kind], _CONSTANTS[kind]
    fields: dict[str, str] = {}
    names: list[str] = []
    cuts: list[tuple[int, int]] = []  # (start, end) of each variable value
    position = _FIELDS_AT
    try:
        while position < end:
            (size,) = _I16.unpack_from(header, position)
            name = str(header[position + 2 : position + 2 + size], "ascii")
            position += 2 + size
            (size,) = _I32.unpack_from(header, position)
            position += 4
            value = header[position : position + size]
            if not value or len(value) != size or name in fields or name in names:
                return None
            if name in variable:
                names.append(name)
                cuts.append((position, position + size))
            elif name in constants:
                accepted = constants[name]
                fields[name] = str(value, "utf-8")
                if accepted is not None and fields[name] not in accepted:
                    return None
            else:
                return None
            position += size
    except (struct.error, UnicodeDecodeError):
        return None
    if not _REQUIRED[kind] <= fields.keys() | set(names):
        return None
    format_ = f">{OPAQUE_AT}si"
    at = OPAQUE_AT + 4
    for start, stop in cuts:
        format_ += f"{start - at}s{stop - start}s"
        at = stop
    cut = struct.Struct(format_ + f"{end - at}s")
    pieces = cut.unpack(header)
    if sum(map(len, pieces[::2])) > CONSTANTS_SIZE_MAX:
        return None
    if kind is Kind.SEND and fields.get("f") == HALF_FLAG:
        kind = Kind.HALF
    places = tuple(3 + 2 * names.index(name) if name in names else 0 for name in variable)
    return HeaderLayout(kind, cut, pieces[::2], fields, places)
