"""Files that hold keys or passwords: only their owner, and a group that the owner chose, should read them."""

import stat
from pathlib import Path

OTHERS = stat.S_IROTH | stat.S_IWOTH


def mode_open_to_others(path: Path) -> str | None:
    """Return the mode of a file that every user of this machine can read or write, as "644"; None: it is no such."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return None
    return f"{stat.S_IMODE(mode):o}" if mode & OTHERS else None
