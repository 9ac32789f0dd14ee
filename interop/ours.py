"""Our own name server and broker in the shape that tests with real peers expect of Apache's."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Self


class OurServer:
    """`mqtrail`'s name server and one broker named broker-a, with files below `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        raise NotImplementedError
