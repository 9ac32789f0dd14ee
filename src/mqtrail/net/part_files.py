"""Files that are written beside another one, to take its place."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def part_file(path: Path) -> Iterator[Path]:
    """Yield path, where the block writes a file and then renames it. If the block fails, remove what it wrote."""
    try:
        yield path
    except BaseException:
        with suppress(OSError):
            path.unlink(missing_ok=True)
        raise
