"""What `binlog run`, `migrate bridge` and `mirror run` share."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_feed(work: Coroutine[Any, Any, T]) -> T:
    """Run what handles messages until it is stopped: like a server, it collects garbage rarely."""
    from mqtrail.net import collected_rarely

    with collected_rarely():
        return asyncio.run(work)
