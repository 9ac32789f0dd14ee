"""What `binlog run`, `migrate bridge` and `mirror run` share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from .exits import Exit
from .operate import table
from .output import show_json

T = TypeVar("T")


def run_feed(work: Coroutine[Any, Any, T]) -> T:
    """Run what handles messages until it is stopped: like a server, it collects garbage rarely."""
    from mqtrail.net import collected_rarely

    with collected_rarely():
        return asyncio.run(work)


def show_progress(facts: Mapping[str, Any], rows: Sequence[tuple[str, str]], title: str, json: bool) -> int:
    """Show the progress of a feed: its facts as JSON, or rows, with whether it runs and when its state was saved."""
    if json:
        show_json(dict(facts))
        return Exit.OK
    running = ("running", "yes" if facts["is_running"] else "no")
    saved = ("saved", f"{facts['saved_ago_ms'] / 1000:.1f} s ago")
    table(("what", "value"), (running, *rows, saved), title)
    return Exit.OK
