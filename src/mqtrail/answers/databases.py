"""SQLite files of the data folder that only their owner can read."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final, Literal

WAIT_S: Final = 30.0  # for another process that writes


def open_database(
    path: Path, schema: str, *, isolation_level: Literal["DEFERRED"] | None = "DEFERRED"
) -> sqlite3.Connection:
    """Open a file, with its folder and its tables. sqlite3.Error, OSError.

    schema: SQL that makes what is missing. isolation_level: None: the caller begins its transactions.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    file = sqlite3.connect(path, timeout=WAIT_S, isolation_level=isolation_level)
    try:
        file.executescript(schema)
    except sqlite3.Error:
        file.close()
        raise
    return file
