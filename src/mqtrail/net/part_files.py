"""Temporary files that replace another one when they are complete."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def part_file(path: Path) -> Iterator[Path]:
    """Yield path. The block writes a file there and renames it; if the block fails, the file is removed."""
    try:
        yield path
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
