"""What all tests share: the option that renews recorded output."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command that ran in this process configured logging for itself: that goes with the test and its stream."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder of the tests' own: clients keep their spool and their offsets below it."""
    home = tmp_path_factory.mktemp("home")
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["HOME"]
    else:
        os.environ["HOME"] = before


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what the scenarios said now into their files; then read the diff"
    )
