"""The stores of the brokers that clients are tried with."""

from pathlib import Path

import pytest


@pytest.fixture(params=["commitlog", pytest.param("tables", marks=pytest.mark.slow)])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new database; "" for a CommitLog."""
    return f"sqlite:///{tmp_path / 'messages.db'}" if request.param == "tables" else ""
