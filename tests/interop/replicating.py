"""Servers that replicate a log, and the log itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def killed(*servers: Any) -> Iterator[None]:
    try:
        yield
    finally:
        for server in servers:
            server.kill()


def log_of(store: Path) -> bytes:
    """Return the whole log without the zeros after its end."""
    return b"".join(path.read_bytes() for path in sorted((store / "commitlog").iterdir())).rstrip(b"\0")
