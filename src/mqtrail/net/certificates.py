"""The validity period of a PEM certificate, which the ssl module does not return.

    Certificate ::= SEQUENCE { tbs SEQUENCE { [0] version, serial, algorithm, issuer, validity SEQUENCE { from, to } …

Source: RFC 5280 §4.1; times are UTCTime (two digits of the year, 50 and above are 19xx) or GeneralizedTime.
"""

import re
import ssl
from datetime import UTC, datetime

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18


def validity(pem: str) -> tuple[datetime, datetime]:
    """Return (not before, not after) of the first certificate in a PEM text. ValueError: there is none."""
    match = _PEM.search(pem)
    if match is None:
        raise ValueError("found no -----BEGIN CERTIFICATE-----")
    der = ssl.PEM_cert_to_DER_cert(match[0])
    _, certificate, _ = _element(der, 0)
    _, tbs, _ = _element(certificate, 0)
    position = 0
    kind, _, after = _element(tbs, position)
    if kind == _VERSION:
        position = after
    for _ in range(3):  # serial, algorithm, issuer
        _, _, position = _element(tbs, position)
    kind, times, _ = _element(tbs, position)
    if kind != _SEQUENCE:
        raise ValueError(f"found tag {kind:#x} where the validity is expected")
    first, value, after = _element(times, 0)
    second, until, _ = _element(times, after)
    return _time(first, value), _time(second, until)


def _element(data: bytes, position: int) -> tuple[int, bytes, int]:
    """Return the tag, the content and the end of the element at position. ValueError: it is truncated."""
    if position + 2 > len(data):
        raise ValueError("found a truncated certificate")
    kind, size = data[position], data[position + 1]
    position += 2
    if size & 0x80:
        count = size & 0x7F
        size = int.from_bytes(data[position : position + count])
        position += count
    if position + size > len(data):
        raise ValueError("found a truncated certificate")
    return kind, data[position : position + size], position + size


def _time(kind: int, value: bytes) -> datetime:
    text = value.decode("ascii", "replace")
    if kind == _UTC_TIME:
        text = ("19" if text >= "50" else "20") + text
    elif kind != _GENERALIZED_TIME:
        raise ValueError(f"found tag {kind:#x} where a time is expected")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)
