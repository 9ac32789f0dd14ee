"""The pytest plugin: `mqtrail_broker`, a name server and a broker of our own for tests.

Registered as an entry point, so pytest loads it in every project that has mqtrail installed: it imports nothing of
the broker until a test asks for the fixture.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .embed import Embedded


@pytest.fixture
def mqtrail_broker() -> Iterator["Embedded"]:
    """A fresh name server and broker on free ports, in memory, gone after the test; `.namesrv_address` is its door."""
    from .embed import embedded

    with embedded() as broker:
        yield broker
