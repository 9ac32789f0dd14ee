"""Files and names that a crash of the machine does not lose."""

import os
from pathlib import Path

from mqtrail.wire import part_file


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
