"""Commands: the content of frames, which net, broker, namesrv and client exchange.

JSON header: an object; members alphabetical, nulls left out, no white space, all ext values strings:

    {"code":105,"extFields":{"topic":"T"},"flag":0,"language":"JAVA","opaque":7,
     "serializeTypeCurrentRPC":"JSON","version":479}

ROCKETMQ header: fixed fields, then the remark and the ext fields, each behind its length:

    code i16 ‖ language i8 ‖ version i16 ‖ opaque i32 ‖ flag i32
    ‖ remark size i32 ‖ remark ‖ ext size i32 ‖ (name size i16 ‖ name ‖ value size i32 ‖ value)…

We write strictly and read as leniently as Java does: missing members, numbers and booleans where strings belong,
strings where numbers belong, bare member names, unknown members, a language by number or unknown.

Headers are read before a peer is authenticated, so they are small (HEADER_SIZE_MAX, EXT_FIELDS_MAX, HEADER_NODES_MAX);
those of replies may be longer (REPLY_HEADER_SIZE_MAX).
fastjson's references ({"$ref": …}) have no effect in them.

Source: RemotingCommand, RocketMQSerializable, RemotingSerializable, apache/rocketmq remoting/.
"""

import contextlib
import struct
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Self

import msgspec

from .codes import FLAG_ONEWAY, FLAG_RESPONSE, MQ_VERSION, LanguageCode, SerializeType
from .errors import BodyError, RemotingError
from .frame import HEADER_SIZE_MAX, REPLY_HEADER_SIZE_MAX, Frame, encode_frame
from .json_body import dumps_fastjson, loads
from .json_bounds import ObjectKey

__all__ = [
    "RemotingCommand",
    "decode_command",
    "encode_command",
]

LANGUAGE: Final = "PYTHON"

EXT_FIELDS_MAX: Final = 1_000  # ext fields of one header; Apache's largest has fewer than 40
HEADER_NODES_MAX: Final = 5_000  # values and names of a JSON header that only the lenient reader accepts
REMARK_LENGTH_MAX: Final = 4_000  # characters of a reply's remark; it may quote what the peer sent
_BINARY_HEAD = struct.Struct(
    ">h"  # code: requests above 32767 (POP) do not fit and must be JSON
    "b"  # language: LanguageCode
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark size in bytes, 0 for none
)
assert _BINARY_HEAD.size == 17
_I32 = struct.Struct(">i")
_I16 = struct.Struct(">h")
_LANGUAGE_NAMES = {int(code): code.name for code in LanguageCode}


@dataclass(slots=True)
class RemotingCommand:
    """A request or a reply.

    ext: the header's fields, all text. opaque: int32 that pairs a reply with its request. flag: FLAG_RESPONSE,
    FLAG_ONEWAY. serialize: the format of the header. empty_ext: write "extFields":{} if ext is empty, as
    Java does when the header's class has no value set; its clients see a difference only in a debugger.
    """

    code: int
    ext: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    remark: str | None = None
    opaque: int = 0
    flag: int = 0
    language: str = LANGUAGE
    version: int = MQ_VERSION
    serialize: SerializeType = SerializeType.JSON
    empty_ext: bool = False

    @property
    def is_response(self) -> bool:
        return self.flag & FLAG_RESPONSE != 0

    @property
    def is_oneway(self) -> bool:
        return self.flag & FLAG_ONEWAY != 0

    @classmethod
    def reply_to(
        cls,
        request: "RemotingCommand",
        code: int,
        remark: str | None = None,
        ext: dict[str, str] | None = None,
        body: bytes = b"",
    ) -> Self:
        """Return the reply to request: its opaque, bit 0 of the flag set. Like 5.3.3, always in JSON.

        A remark above REMARK_LENGTH_MAX characters is cut.
        """
        if remark is not None and len(remark) > REMARK_LENGTH_MAX:
            remark = remark[:REMARK_LENGTH_MAX] + "…"
        return cls(code, {} if ext is None else ext, body, remark, request.opaque, FLAG_RESPONSE)

    def __str__(self) -> str:
        kind = "reply" if self.is_response else "oneway" if self.is_oneway else "request"
        remark = "" if self.remark is None else f" remark={self.remark[:80]!r}"
        return f"{kind} code={self.code} opaque={self.opaque} ext={len(self.ext)} body={len(self.body)}B{remark}"


class _HeaderOut(msgspec.Struct, kw_only=True, omit_defaults=True, gc=False):
    """The JSON header as written: members in Java's (alphabetical) order."""

    code: int
    extFields: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    flag: int
    language: str
    opaque: int
    remark: str | msgspec.UnsetType = msgspec.UNSET
    serializeTypeCurrentRPC: str
    version: int


_Int32 = Annotated[int, msgspec.Meta(ge=-0x80000000, le=0x7FFFFFFF)]


class _HeaderIn(msgspec.Struct, gc=False):
    """The JSON header as nearly every peer writes it; any other text goes to the lenient reader."""

    code: _Int32 = 0
    extFields: dict[str, str] | None = None
    flag: _Int32 = 0
    language: str | None = "JAVA"
    opaque: _Int32 = 0
    remark: str | None = None
    version: _Int32 = 0


_encode_header = msgspec.json.Encoder().encode
_decode_header = msgspec.json.Decoder(_HeaderIn).decode


def encode_command(command: RemotingCommand) -> bytes:
    """Return the command's whole frame. RemotingError: it is too long, or a number does not fit its field."""
    if command.serialize == SerializeType.JSON:
        header = _encode_json(command)
    else:
        header = _encode_binary(command)
    size_max = REPLY_HEADER_SIZE_MAX if command.is_response else HEADER_SIZE_MAX
    return encode_frame(Frame(command.serialize, header, command.body), size_max)


def decode_command(frame: Frame) -> RemotingCommand:
    """Return the command in a frame. RemotingError: its header cannot be read; close the connection."""
    if frame.serialize_type == SerializeType.JSON:
        return _decode_json(frame)
    if frame.serialize_type == SerializeType.ROCKETMQ:
        return _decode_binary(frame)
    raise RemotingError(f"found serialize type {frame.serialize_type}, expected 0 (JSON) or 1 (ROCKETMQ)")


def _encode_json(command: RemotingCommand) -> bytes:
    return _encode_header(
        _HeaderOut(
            code=command.code,
            extFields=command.ext if command.ext or command.empty_ext else msgspec.UNSET,
            flag=command.flag,
            language=command.language,
            opaque=command.opaque,
            remark=msgspec.UNSET if command.remark is None else command.remark,
            serializeTypeCurrentRPC="JSON",
            version=command.version,
        )
    )


def _decode_json(frame: Frame) -> RemotingCommand:
    try:
        header = _decode_header(frame.header)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_json_lenient(frame)
    if header.extFields and len(header.extFields) > EXT_FIELDS_MAX:
        raise _too_many_fields()
    return RemotingCommand(
        header.code,
        header.extFields or {},
        frame.body,
        header.remark,
        header.opaque,
        header.flag,
        header.language or "",
        header.version,
        SerializeType.JSON,
        header.extFields is not None and not header.extFields,
    )


def _decode_json_lenient(frame: Frame) -> RemotingCommand:
    try:
        header = loads(frame.header, nodes_max=HEADER_NODES_MAX, with_references=False)
    except BodyError as error:
        raise RemotingError(f"found a JSON header that cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise RemotingError(f"found a JSON header that is a {type(header).__name__}, expected an object")
    ext = header.get("extFields")
    if ext is not None and not isinstance(ext, dict):
        raise RemotingError(f"found extFields that is a {type(ext).__name__}, expected an object")
    if ext and len(ext) > EXT_FIELDS_MAX:
        raise _too_many_fields()
    language = header.get("language", "JAVA")
    if isinstance(language, int):
        language = _LANGUAGE_NAMES.get(language, "")
    remark = header.get("remark")
    return RemotingCommand(
        _int_member(header, "code"),
        {_text(name): _text(value) for name, value in ext.items() if value is not None} if ext else {},
        frame.body,
        None if remark is None else _text(remark),
        _int_member(header, "opaque"),
        _int_member(header, "flag"),
        language.upper() if isinstance(language, str) else "",
        _int_member(header, "version"),
        SerializeType.JSON,
        ext is not None and not ext,
    )


def _int_member(header: dict[Any, Any], name: str) -> int:
    value = header.get(name, 0)
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = int(value)
    if value is None:
        return 0
    if not isinstance(value, int) or not -0x80000000 <= value <= 0x7FFFFFFF:
        raise RemotingError(f"found {name} {value!r:.40} in a JSON header, expected an int32")
    return value


def _text(value: object) -> str:
    """Return a JSON value as fastjson turns it into a String."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, ObjectKey):
        value = value.members()
    return dumps_fastjson(value).decode()


def _too_many_fields() -> RemotingError:
    return RemotingError(f"found a header with too many ext fields, expected at most {EXT_FIELDS_MAX}")


def _encode_binary(command: RemotingCommand) -> bytes:
    remark = b"" if command.remark is None else command.remark.encode()
    ext: list[bytes] = []
    language = LanguageCode.__members__.get(command.language, LanguageCode.OTHER)
    try:
        for name, value in command.ext.items():
            name_bytes, value_bytes = name.encode(), value.encode()
            ext += (_I16.pack(len(name_bytes)), name_bytes, _I32.pack(len(value_bytes)), value_bytes)
        fields = b"".join(ext)
        head = _BINARY_HEAD.pack(command.code, language, command.version, command.opaque, command.flag, len(remark))
    except struct.error as error:
        raise RemotingError(
            f"command too large for a binary header ({error}): found code {command.code}, version {command.version} "
            f"and opaque {command.opaque}, expected int16, int16, int32: use JSON for codes above 32767"
        ) from error
    return b"".join((head, remark, _I32.pack(len(fields)), fields))


def _decode_binary(frame: Frame) -> RemotingCommand:
    header = frame.header
    try:
        code, language, version, opaque, flag, remark_size = _BINARY_HEAD.unpack_from(header)
        position = _BINARY_HEAD.size + remark_size
        (ext_size,) = _I32.unpack_from(header, position)
        remark = str(header[_BINARY_HEAD.size : position], "utf-8", "replace") if remark_size else None
        position += 4
        end = position + ext_size
        if remark_size < 0 or ext_size < 0 or end > len(header):
            raise RemotingError(
                f"found a binary header of {len(header)} bytes with a remark of {remark_size} and ext fields of "
                f"{ext_size} bytes, expected them to fit"
            )
        ext = _decode_ext(header, position, end)
    except struct.error as error:
        raise RemotingError(f"found a binary header cut short at {len(header)} bytes ({error})") from error
    return RemotingCommand(
        code,
        ext,
        frame.body,
        remark,
        opaque,
        flag,
        _LANGUAGE_NAMES.get(language, ""),
        version,
        SerializeType.ROCKETMQ,
    )


def _decode_ext(header: bytes, position: int, end: int) -> dict[str, str]:
    ext = {}
    count = 0
    while position < end:
        count += 1
        if count > EXT_FIELDS_MAX:  # equal names count, too: each takes its time
            raise _too_many_fields()
        (name_size,) = _I16.unpack_from(header, position)
        value_start = position + 6 + name_size
        if name_size < 0 or value_start > end:
            raise RemotingError(f"found an ext name of {name_size} bytes at {position}, expected it to fit")
        (value_size,) = _I32.unpack_from(header, value_start - 4)
        value_end = value_start + value_size
        if value_size < 0 or value_end > end:
            raise RemotingError(f"found an ext value of {value_size} bytes at {value_start}, expected it to fit")
        name = str(header[position + 2 : value_start - 4], "utf-8", "replace")
        ext[name] = str(header[value_start:value_end], "utf-8", "replace")
        position = value_end
    return ext
