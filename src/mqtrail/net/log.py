"""The loggers of the doors and shells: structlog's, imported at the first line logged.

structlog brings half of rich with it, 0.2 s of a start-up that is promised to be short; most processes log nothing in
their first second. Whoever configures structlog decides where lines go; else they go to standard error, debug ones
nowhere.
"""

import sys
from collections.abc import MutableMapping
from io import StringIO
from typing import Any, TextIO

from mqtrail.wire import visible, visible_lines


def log_processors(*, colors: bool) -> list[Any]:
    """Return how a line is made for people to read. Tracebacks are plain: structlog's own show every local variable,
    and among these are message bodies. What others chose (names, ids, remarks) is made visible.
    """
    import structlog

    def traceback(sio: TextIO, exc_info: Any) -> None:
        text = StringIO()
        structlog.dev.plain_traceback(text, exc_info)
        sio.write(visible_lines(text.getvalue()))

    return [
        _made_visible,
        structlog.processors.add_log_level,
        structlog.dev.set_exc_info,
        structlog.processors.TimeStamper(fmt="%Y-%m-%d %H:%M:%S", utc=False),
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=traceback),
    ]


def _made_visible(_logger: Any, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = visible(value)
        elif key not in ("exc_info", "stack_info") and not isinstance(value, int | float | None):
            event[key] = visible(repr(value))
    return event


class Log:
    """`log.info("event.name", key=value)`, a name and keys; `bind` returns a logger that repeats keys."""

    __slots__ = ("_keys",)

    def __init__(self, **keys: Any) -> None:
        self._keys = keys

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
        """An error with the traceback of the exception being handled."""
        self._write("exception", event, keys)

    def _write(self, level: str, event: str, keys: dict[str, Any]) -> None:
        import structlog

        if structlog.is_configured():
            logger = structlog.get_logger()
        elif level == "debug":
            return
        else:  # standard output is the command's; and a library does not configure for its host
            logger = structlog.wrap_logger(
                structlog.PrintLogger(sys.stderr), processors=log_processors(colors=sys.stderr.isatty())
            )
        getattr(logger, level)(event, **{**self._keys, **keys})
