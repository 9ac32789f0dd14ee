"""What Python and libraries write on standard error: escaped, cut, and at most LINES_A_WINDOW lines of each logger.

A traceback or a record of asyncio may quote a peer, and a peer may cause it as often as it likes.
"""

import logging
import sys
import threading
import traceback
from types import TracebackType

from mqtrail.wire import visible_block

from .log import TRACEBACK_LENGTH_MAX, cut, left_out_lines, log_line


def guard_stderr() -> None:
    """Guard this process. Call it once, at its start."""
    logging.basicConfig(handlers=[_Records()])
    sys.excepthook = _show
    threading.excepthook = _show_of_thread


class _Records(logging.Handler):
    """Writes the records of other libraries as log events."""

    def emit(self, record: logging.LogRecord) -> None:
        left_out = left_out_lines(f"library.{record.name}")
        if left_out is None:
            return
        keys: dict[str, object] = {"logger": record.name, "message": _message(record)}
        if left_out:
            keys["left_out"] = left_out
        level = "error" if record.levelno >= logging.ERROR else "warning"
        line = log_line(level, "library.message", keys, colors=sys.stderr.isatty())
        if record.exc_info and record.exc_info[0] is not None:
            line += "\n" + _traceback(*record.exc_info)
        sys.stderr.write(line + "\n")
        sys.stderr.flush()


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # its arguments do not fit its format: the standard handler would print them as they are
        return str(record.msg)


def _traceback(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> str:
    text = "".join(traceback.format_exception(kind, error, where)).rstrip("\n")
    return visible_block(cut(text, TRACEBACK_LENGTH_MAX))


def _show(kind: type[BaseException], error: BaseException | None, where: TracebackType | None) -> None:
    sys.stderr.write(_traceback(kind, error, where) + "\n")


def _show_of_thread(found: threading.ExceptHookArgs) -> None:
    if found.exc_type is not SystemExit:
        _show(found.exc_type, found.exc_value, found.exc_traceback)
