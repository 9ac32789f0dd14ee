"""Java's .properties format, used by broker.conf, tls.properties and the bodies of settings requests.

    # or ! begins a comment          a line that ends with \\ continues in the next one
    key=value  key: value  key value     \\t \\n \\r \\f \\uXXXX, and \\ before any other character, are escapes

Source: java.util.Properties.load.
"""

import re

__all__ = [
    "properties_of",
    "read_properties",
]

_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
_LINE_BREAK = re.compile(r"\r\n|\r|\n")  # other line breaks of Unicode are part of a value
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_KEY = re.compile(r"((?:\\.|[^\\=:\s]++)*+)\s*+[=:]?\s*+", re.DOTALL)
"""Possessive: the places that a match could go back to take 140 bytes a character."""


def read_properties(text: str) -> list[tuple[int, str, str]]:
    """Return (line number, key, value) in the file's order; a repeated key is returned twice."""
    found = []
    lines = _LINE_BREAK.split(text)
    number = 0
    while number < len(lines):
        first = number
        line = lines[number].lstrip()
        number += 1
        if not line or line[0] in "#!":
            continue
        parts = []
        while _is_continued(line) and number < len(lines):
            parts.append(line[:-1])
            line = lines[number].lstrip()
            number += 1
        line = "".join((*parts, line))
        match = _KEY.match(line)
        assert match is not None  # it matches at least the empty text
        found.append((first + 1, _plain(match[1]), _plain(line[match.end() :]).rstrip()))
    return found


def properties_of(text: str) -> dict[str, str]:
    """Return key -> value; if a key comes twice, the last value counts."""
    return {key: value for _, key, value in read_properties(text)}


def _is_continued(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _plain(text: str) -> str:
    def one(match: re.Match[str]) -> str:
        escaped = match[1]
        return chr(int(escaped[1:], 16)) if len(escaped) == 5 else _NAMED.get(escaped, escaped)

    if "\\" not in text:
        return text
    # Two escaped surrogates become one character; a lone one has no UTF-8, so it is replaced as Java's encoder does.
    return _ESCAPE.sub(one, text).encode("utf-16-be", "surrogatepass").decode("utf-16-be", "replace")
