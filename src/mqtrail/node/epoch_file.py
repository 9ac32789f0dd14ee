"""The epochs of a broker's log on its disk: read at a start, written durably at each change."""

from mqtrail.broker import EPOCH_FILE, EpochError, Epochs, decode_epochs
from mqtrail.store import Disk


def read_epochs(disk: Disk) -> Epochs:
    """Return the epochs; none if there is no file. EpochError: neither the file nor its .bak can be read."""
    failures = []
    for path in (EPOCH_FILE, f"{EPOCH_FILE}.bak"):
        data = disk.read(path)
        if data is None:
            continue
        try:
            return decode_epochs(data)
        except EpochError as error:
            failures.append(f"{path}: {error}")
    if failures:
        raise EpochError(
            f"{'; '.join(failures)}. Restore the file from a copy, or remove it with the rest of the folder: the log "
            "is copied from the master again"
        )
    return Epochs()


def write_epochs(disk: Disk, epochs: Epochs) -> None:
    """Write the epochs; the previous ones stay as .bak."""
    disk.keep(EPOCH_FILE, f"{EPOCH_FILE}.bak")
    disk.replace(EPOCH_FILE, epochs.encode())
