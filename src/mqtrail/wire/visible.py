"""Text from outside, made safe to show in a terminal and in a log.

The sender of a message or the owner of a name may use characters that control a terminal (cursor, title, clipboard,
links), that reorder text (bidi controls), or that are invisible, so that two names look alike or a text hides another.
They are written as Python escapes: \\x1b, \\u202e, \\U000e0001. These are all characters of the general categories Cc,
Cf, Cs, Zl and Zp, and all with the property Default_Ignorable_Code_Point, among them variation selectors: an emoji that
has one is followed by \\ufe0f. All others stay as they are: other scripts, emoji, spaces of any width, a backslash.

Source: UnicodeData.txt and DerivedCoreProperties.txt of Unicode 16 (a test compares them); UTR 36, Unicode Security
Considerations.
"""

import re
from collections.abc import Callable
from functools import cache
from typing import Final

__all__ = [
    "visible",
    "visible_block",
    "visible_json",
    "visible_lines",
]

_UNSAFE_RANGES: Final = (  # first and last character, or one
    *("\x00\x1f", "\x7f\x9f"),  # C0, DEL, C1
    *("\xad", "\u0600\u0605", "\u061c", "\u06dd", "\u070f", "\u0890\u0891", "\u08e2"),  # soft hyphen, marks that format
    *("\u200b\u200f", "\u2028\u202e", "\u2060\u206f", "\ufeff"),  # zero width, separators, bidi controls, isolates
    *("\u034f", "\u115f\u1160", "\u17b4\u17b5", "\u3164", "\uffa0"),  # fillers and joiners, which are invisible
    *("\u180b\u180f", "\ufe00\ufe0f"),  # variation selectors, and a separator of vowels
    "\ufff0\ufffb",  # not assigned, but invisible where they are; annotations
    "\ud800\udfff",  # surrogates, which UTF-8 cannot encode
    *("\U000110bd", "\U000110cd", "\U00013430\U0001343f"),  # marks that format
    *("\U0001bca0\U0001bca3", "\U0001d173\U0001d17a"),  # the same for shorthand and music
    "\U000e0000\U000e0fff",  # tags and selectors, which can hide text
)
_UNSAFE: Final = re.compile("[" + "".join(f"{one[0]}-{one[-1]}" for one in _UNSAFE_RANGES) + "]")


def visible(text: str) -> str:
    """Return text on one line, with control and invisible characters written as escapes."""
    return text.translate(_escapes(_escaped)) if _UNSAFE.search(text) else text


def visible_lines(text: str) -> str:
    """Return text of several lines: newlines stay, everything else as in `visible`."""
    return text.translate(_escapes(_escaped_in_lines)) if _UNSAFE.search(text) else text


def visible_block(text: str, indent: str = "    ") -> str:
    """Return text of several lines, all but the first one indented: no line of a quoted peer looks like ours."""
    return visible_lines(text).replace("\n", f"\n{indent}")


def visible_json(text: str) -> str:
    """Return JSON text with each such character as \\uXXXX, which means the same to its reader."""
    return text.translate(_escapes(_json_escaped)) if _UNSAFE.search(text) else text


@cache
def _escapes(escape: Callable[[int], str]) -> dict[int, str]:
    """Return the escapes of all unsafe characters: a body of millions of them is translated ten times as fast as by
    the pattern, and in the memory of the result."""
    return {code: escape(code) for one in _UNSAFE_RANGES for code in range(ord(one[0]), ord(one[-1]) + 1)}


def _escaped(code: int) -> str:
    if code == 0x0A:
        return "\\n"
    if code == 0x09:
        return "\\t"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escaped_in_lines(code: int) -> str:
    return "\n" if code == 0x0A else _escaped(code)


def _json_escaped(code: int) -> str:
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}"
