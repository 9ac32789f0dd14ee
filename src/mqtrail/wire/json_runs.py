"""One large object in a JSON text, cut into runs of whole members, which are read one at a time.

A run ends where a member's value ends and another member begins. A few places that look like an end are tried: the text
before a real end is an object by itself. The text after the last run is kept behind a mark and read at the end. The
mark shows whether the runs came from the expected object and not from a text or another object.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

RUN_SIZE: Final = 256 * 1024
REST_SIZE: Final = 2 * 1024 * 1024  # a text that is not larger is not cut
ENDS_TRIED_MAX: Final = (
    8  # a topic of an Apache broker has two that look like one: its own end, and its attributes' end
)
MARK: Final = "\0"  # no name of a member

_ENDS: Final = re.compile(rb"\}[ \t\r\n]*(,)[ \t\r\n]*\"")
_ENDS_SIZE: Final = 8 * 1024  # bytes at the end of a run that are searched for an end first
_cut = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class JsonRuns:
    """Yields the members of the object that is the value of name, some at a time.

    rest: afterwards, the text without the members that were yielded. is_cut: whether there were any; then MARK is a
    member of the object in rest.
    """

    def __init__(self, text: bytes, name: bytes) -> None:
        self.rest = text
        self.is_cut = False
        self._name = name

    def __iter__(self) -> Iterator[dict[str, msgspec.Raw]]:
        text = self.rest
        if len(text) <= REST_SIZE:
            return
        found = re.search(rb'"%b"[ \t\r\n]*:[ \t\r\n]*\{' % re.escape(self._name), text)
        if found is None:
            return
        first = found.end()
        while len(text) - first > REST_SIZE and (run := _run(text, first)) is not None:
            members, first = run
            yield members
        if first > found.end():
            self.is_cut = True
            self.rest = b'%b"\\u0000":{},%b' % (text[: found.end()], text[first:])


def _run(text: bytes, first: int) -> tuple[dict[str, msgspec.Raw], int] | None:
    """Return the members of the run that begins at first, and where the next one begins; None: it does not end."""
    for end in _ends(text, first):
        try:
            return _cut(b"{%b}" % text[first:end]), end + 1
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            continue
    return None


def _ends(text: bytes, first: int) -> list[int]:
    """Return the last places in a run where a member may end: those of the commas behind."""
    last = first + RUN_SIZE
    for start in (max(first, last - _ENDS_SIZE), first):
        if ends := [match.start(1) for match in _ENDS.finditer(text, start, last)]:
            return ends[: -ENDS_TRIED_MAX - 1 : -1]
    return []
