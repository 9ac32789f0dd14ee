"""Text of columns: MariaDB's character sets as Python's codecs."""

from __future__ import annotations

from typing import Final

BINARY: Final = "binary"

CODECS: Final = {
    "ascii": "ascii",
    "big5": "big5hkscs",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp932": "cp932",
    "eucjpms": "euc_jp",
    "euckr": "euc_kr",
    "gb2312": "gb2312",
    "gbk": "gbk",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "latin1": "latin1",  # see text_of
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "macroman": "mac_roman",
    "sjis": "shift_jis",
    "tis620": "tis_620",
    "ucs2": "utf_16_be",
    "ujis": "euc_jp",
    "utf16": "utf_16_be",
    "utf16le": "utf_16_le",
    "utf32": "utf_32_be",
    "utf8": "utf_8",
    "utf8mb3": "utf_8",
    "utf8mb4": "utf_8",
}
"""Character set of a server -> Python's codec."""


def _latin1() -> dict[int, str]:
    """MySQL's latin1 is Windows' 1252, and keeps the five bytes that have no character there."""
    table = {}
    for byte in range(0x80, 0xA0):
        try:
            table[byte] = bytes([byte]).decode("cp1252")
        except UnicodeDecodeError:
            continue
    return table


_LATIN1: Final = _latin1()


def text_of(data: bytes, charset: str) -> str:
    """Return the text of a column's bytes. LookupError: the character set is not in CODECS. UnicodeDecodeError."""
    text = data.decode(CODECS[charset])
    return text.translate(_LATIN1) if charset == "latin1" else text
