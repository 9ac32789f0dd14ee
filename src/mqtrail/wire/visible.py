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
from typing import Final

__all__ = [
    "visible",
    "visible_block",
    "visible_json",
    "visible_lines",
]

_UNSAFE: Final = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # C0, DEL, C1
    "\xad\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2"  # soft hyphen, marks that format, a bidi control
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"  # zero width, separators, bidi controls, isolates
    "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"  # fillers and joiners, which are invisible
    "\u180b-\u180f\ufe00-\ufe0f"  # variation selectors, and a separator of vowels
    "\ufff0-\ufffb"  # not assigned, but invisible where they are; annotations
    "\ud800-\udfff"  # surrogates, which UTF-8 cannot encode
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # marks that format
    "\U000e0000-\U000e0fff"  # tags and selectors, which can hide text
    "]"
)


def visible(text: str) -> str:
    """Return text on one line, with control and invisible characters written as escapes."""
    return _UNSAFE.sub(_escaped, text)


def visible_lines(text: str) -> str:
    """Return text of several lines: newlines stay, everything else as in `visible`."""
    return "\n".join(map(visible, text.split("\n")))


def visible_block(text: str) -> str:
    """Return text of several lines, all but the first one indented: no line of a quoted peer looks like ours."""
    return "\n    ".join(map(visible, text.split("\n")))


def visible_json(text: str) -> str:
    """Return JSON text with each such character as \\uXXXX, which means the same to its reader."""
    return _UNSAFE.sub(_json_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code == 0x0A:
        return "\\n"
    if code == 0x09:
        return "\\t"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _json_escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x10000:
        return f"\\u{code:04x}"
    code -= 0x10000
    return f"\\u{0xD800 | code >> 10:04x}\\u{0xDC00 | code & 0x3FF:04x}"
