"""One stage for all tests of this folder: both servers, three clients, two admin tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from interop.stage import Stage


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Our server and Apache's 5.3.3, with what plays on them."""
    with Stage(tmp_path_factory.mktemp("stage")) as stage:
        yield stage
