"""The broker's tables on disk: `config/<name>` as JSON, the one before it as `config/<name>.bak`.

Source: ConfigManager, apache/rocketmq common/.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqtrail.store.base import StoreError
from mqtrail.store.disk import Disk
from mqtrail.wire import BodyError, dumps_fastjson, loads_file

FOLDER = "config"


class ConfigFileStore:
    """Loads and saves JSON documents whole. A crash leaves the old or the new one, and the one before as .bak."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.report: list[str] = []  # what was found damaged and taken from its .bak, for the operator

    def load(self, name: str) -> dict[str, Any] | None:
        """Return the document, or its .bak when it is absent or unreadable; None where there is neither.

        StoreError: one of them is there and neither can be read.
        """
        failures = []
        for path in (f"{FOLDER}/{name}", f"{FOLDER}/{name}.bak"):
            data = self._disk.read(path)
            if not data:
                continue
            try:
                document = loads_file(data)
            except (BodyError, ValueError) as error:
                failures.append(f"{path}: {error}")
                continue
            if isinstance(document, dict):
                if failures:
                    self.report.append(f"{failures[0]}: {path} is taken, as it was one save earlier")
                return document
            failures.append(f"{path}: found a {type(document).__name__}, expected an object")
        if failures:
            raise StoreError(
                f"cannot read {'; '.join(failures)}; repair one of them by hand, or remove both to start anew"
            )
        return None

    def save(self, name: str, value: Mapping[Any, Any]) -> None:
        """Replace the document, keeping the one before as .bak."""
        path = f"{FOLDER}/{name}"
        before = self._disk.read(path)
        if before and _is_document(before):  # a damaged one must not displace the good .bak
            self._disk.replace(f"{path}.bak", before)
        self._disk.replace(path, dumps_fastjson(dict(value)))


def _is_document(data: bytes) -> bool:
    try:
        return isinstance(loads_file(data), dict)
    except (BodyError, ValueError):
        return False
