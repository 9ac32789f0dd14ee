"""Log events, each a name and keys: for structlog, or as lines.

If the application has configured structlog, that configuration applies. Otherwise events go to standard error as lines
that look like those of structlog's console, and debug events are dropped. These lines do not need structlog: it imports
half of rich, which takes 0.2 s and 6 MiB, and a server's first event would block its event loop for that time.
"""

import re
import sys
import time
import traceback
from collections.abc import Mapping, MutableMapping
from io import StringIO
from typing import Any, Final, TextIO

from mqtrail.wire import visible, visible_block

_DIM, _BOLD, _CYAN, _MAGENTA, _PLAIN = "\x1b[2m", "\x1b[1m", "\x1b[36m", "\x1b[35m", "\x1b[0m"
_COLORS: Final = {"info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m"}
LINES_A_WINDOW: Final = 20  # lines of one event that peers can cause
WINDOW_S: Final = 10.0
VALUE_LENGTH_MAX: Final = 4_000  # characters of a value: a remark of a server may have millions
TRACEBACK_LENGTH_MAX: Final = 20_000  # characters: the text of an exception may quote a peer too
_QUOTED: Final = re.compile(r"""[\s="']""")  # a value with one of these is written in quotes


def log_processors(*, colors: bool) -> list[Any]:
    """Return structlog processors for lines as `log_line` makes them.

    Tracebacks are plain, because structlog's own ones show local variables, which may be message bodies. Control
    characters in values (names, ids, remarks from peers) are escaped.
    """
    import structlog

    def plain_traceback(sio: TextIO, exc_info: Any) -> None:
        text = StringIO()
        structlog.dev.plain_traceback(text, exc_info)
        sio.write("\n" + visible_block(cut(text.getvalue().strip("\n"), TRACEBACK_LENGTH_MAX)))

    return [
        _made_visible,
        structlog.processors.add_log_level,
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain_traceback),
    ]


def _made_visible(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if key not in ("exc_info", "stack_info"):
            event[key] = _visible_value(value)
    return event


def _visible_value(value: object) -> str | float | None:
    if isinstance(value, int | float | None):
        return value
    return visible(cut(value if isinstance(value, str) else repr(value), VALUE_LENGTH_MAX))


def cut(text: str, length_max: int) -> str:
    """Return the beginning of a long text, and how many characters it has."""
    return text if len(text) <= length_max else f"{text[:length_max]}… ({len(text)} characters)"


def log_line(level: str, event: str, keys: Mapping[str, object], *, colors: bool) -> str:
    """Return an event as a line; an exception's traceback follows it. Control characters are escaped."""
    is_exception = level == "exception"
    level = "error" if is_exception else level
    dim, bold, cyan, magenta, plain = (_DIM, _BOLD, _CYAN, _MAGENTA, _PLAIN) if colors else ("",) * 5
    color = _COLORS.get(level, "") if colors else ""
    when = time.strftime("%Y-%m-%d %H:%M:%S")
    parts = [f"{dim}{when}{plain} [{color}{bold}{level:<9}{plain}] {bold}{visible(event):<30}{plain}"]
    for key in sorted(keys):
        value = _visible_value(keys[key])
        text = repr(value) if isinstance(value, str) and _QUOTED.search(value) else str(value)
        parts.append(f"{cyan}{visible(key)}{plain}={magenta}{text}{plain}")
    line = " ".join(parts).rstrip(" ")
    return (
        f"{line}\n{visible_block(cut(traceback.format_exc().rstrip(), TRACEBACK_LENGTH_MAX))}" if is_exception else line
    )


class _Burst:
    """Lines of one event in the current window."""

    __slots__ = ("began_s", "left_out", "written")

    def __init__(self) -> None:
        self.began_s = -WINDOW_S
        self.written = self.left_out = 0

    def take(self) -> int | None:
        """Count a line; return how many were omitted since the last written one; None: omit this one too."""
        now_s = time.monotonic()
        if now_s - self.began_s >= WINDOW_S:
            self.began_s, self.written = now_s, 0
        if self.written >= LINES_A_WINDOW:
            self.left_out += 1
            return None
        self.written += 1
        left_out, self.left_out = self.left_out, 0
        return left_out


bursts: dict[str, _Burst] = {}  # by event: their names are in the source, so they are few


def left_out_lines(event: str) -> int | None:
    """Count a line of an event; return how many were omitted since the last written one; None: omit this one too."""
    return bursts.setdefault(event, _Burst()).take()


class Log:
    """`log.info("event.name", key=value)`, a name and keys; `bind` returns a logger that repeats keys.

    `log.sparse.warning(...)`: for events that a peer can cause as often as it likes. This process writes at most
    LINES_A_WINDOW lines of each event in WINDOW_S; the next line says how many were omitted.
    """

    __slots__ = ("_is_sparse", "_keys")

    def __init__(self, **keys: Any) -> None:
        self._keys = keys
        self._is_sparse = False

    @property
    def sparse(self) -> "Log":
        made = Log(**self._keys)
        made._is_sparse = True
        return made

    def bind(self, **keys: Any) -> "Log":
        return Log(**{**self._keys, **keys})

    def debug(self, event: str, **keys: Any) -> None:
        self._write("debug", event, keys)

    def info(self, event: str, **keys: Any) -> None:
        self._write("info", event, keys)

    def warning(self, event: str, **keys: Any) -> None:
        self._write("warning", event, keys)

    def error(self, event: str, **keys: Any) -> None:
        self._write("error", event, keys)

    def exception(self, event: str, **keys: Any) -> None:
        """Log an error with the traceback of the exception being handled."""
        self._write("exception", event, keys)

    def _write(self, level: str, event: str, keys: dict[str, Any]) -> None:
        if self._is_sparse:
            left_out = left_out_lines(event)
            if left_out is None:
                return
            if left_out:
                keys["left_out"] = left_out
        if "structlog" in sys.modules:
            import structlog

            if structlog.is_configured():
                getattr(structlog.get_logger(), level)(event, **{**self._keys, **keys})
                return
        if level != "debug":  # stdout belongs to the command
            line = log_line(level, event, self._keys | keys, colors=sys.stderr.isatty())
            print(line, file=sys.stderr, flush=True)
