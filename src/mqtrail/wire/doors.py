"""Paths of HTTP doors that are asked by another room than the one that serves them."""

from typing import Final

__all__ = ["OPERATOR_PATH"]

OPERATOR_PATH: Final = "/v1/operator"
"""Below it is the operators' interface of an HTTP door."""
