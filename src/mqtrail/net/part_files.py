"""Files that are replaced when the new one is complete."""

import os
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


def replace_file(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace a file durably, with this mode: a crash leaves the old file or the new one. OSError."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)  # one of an earlier attempt may have another mode
    with part_file(temporary):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names of new and replaced files in a folder durable. OSError."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
