"""The servers, clients and admin tools that all tests of this folder share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interop.stage import Stage


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Our server and Apache's 5.3.3, with clients and admin tools."""
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage
