"""Files that are replaced when the new one is complete. The only file operation of this room: net and lake share it."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

__all__ = ["part_file"]


@contextmanager
def part_file(path: Path) -> Iterator[Path]:
    """Yield path. The block writes a file there and renames it; if the block fails, the file is removed."""
    try:
        yield path
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
