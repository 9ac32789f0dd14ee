"""What the HTTP door and the rooms that ask it agree on."""

from typing import Final

__all__ = ["ACTS_FOR_HEADER", "OPERATOR_PATH"]

OPERATOR_PATH: Final = "/v1/operator"
"""Below it is the operators' interface of an HTTP door."""
ACTS_FOR_HEADER: Final = "mqtrail-acts-for"
"""Names the operator for whom a console asks, in percent encoding. The console's token needs `acts_for`."""
