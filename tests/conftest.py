"""What all tests share: the option that renews recorded output."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite", action="store_true", help="write what the scenarios said now into their files; then read the diff"
    )
