"""The pytest plugin with the fixture `mqtrail_broker`.

pytest loads it in every project that has mqtrail installed (entry point), so it imports the broker only when a test
uses the fixture.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .embed import Embedded


@pytest.fixture
def mqtrail_broker() -> Iterator["Embedded"]:
    """A new name server and broker in memory, on free ports, for one test. Clients connect to `.namesrv_address`."""

    from .embed import embedded

    with embedded() as broker:
        yield broker
