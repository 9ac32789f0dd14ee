"""Which code a request is answered with when it fails.

Source: 5.3.3's processors; 4.9's where a client is older than 5.0 (docs/reference/compatibility.md).
"""

from mqtrail.wire import FlowControl, InvalidParameter, MQError, Refusal, ResponseCode, version_of

VERSION_5 = version_of(5, 0, 0)


def response_code(error: MQError, version: int) -> int:
    """Return the code for an error, as a client of that version knows it.

    Clients before 5.0 do not know 29 and are told 1, as a 4.9 broker tells them; nor 215, and are told 2. What is no
    Refusal (a body or a record that cannot be read) is 1, as Java answers an exception.
    """
    if not isinstance(error, Refusal):
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, InvalidParameter) and version < VERSION_5:
        return ResponseCode.SYSTEM_ERROR
    if isinstance(error, FlowControl) and version < VERSION_5:
        return ResponseCode.SYSTEM_BUSY
    return error.response_code
