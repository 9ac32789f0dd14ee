"""Loggers: structlog's, imported when the first event is logged.

Importing structlog imports half of rich, which takes 0.2 s, and most processes log nothing in their first second. If
the application has configured structlog, that configuration applies. Otherwise events go to standard error, and debug
events are dropped.
"""

import sys
from collections.abc import MutableMapping
from io import StringIO
from typing import Any, TextIO

from mqtrail.wire import visible, visible_lines


def log_processors(*, colors: bool) -> list[Any]:
    """Return structlog processors for readable lines.

    Tracebacks are plain, because structlog's own ones show local variables, which may be message bodies. Control
    characters in values (names, ids, remarks from peers) are escaped.
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
        else:  # stdout belongs to the command, and a library must not configure structlog for its application
            logger = structlog.wrap_logger(
                structlog.PrintLogger(sys.stderr), processors=log_processors(colors=sys.stderr.isatty())
            )
        getattr(logger, level)(event, **{**self._keys, **keys})
