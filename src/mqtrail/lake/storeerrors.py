"""Turns errors of an object store into those of a file system, or one line: found, expected, remedy.

The text of the store is not repeated: stores put access keys and signed requests into it.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from .objects import ObjectPath


class ObjectStoreError(OSError):
    """A request that failed after its retries. The text has what was found, what was expected, and what to do."""


class _Problem(NamedTuple):
    pattern: str  # in the text of an error
    found: str
    remedy: str


_STATUS: Final = r"status(?: code)?: "
_CREDENTIALS: Final = "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
_PROBLEMS: Final = (
    _Problem(
        r"//169\.254\.1\d\d\.|//\[fd00:ec2:|CredentialsNotLoaded",  # where a machine asks for its role
        "no credentials",
        f"set {_CREDENTIALS}, or run where a role gives them",
    ),
    _Problem("NoSuchBucket|bucket does not exist", "no such bucket", "create it, or name another one with --lake"),
    _Problem(
        "ExpiredToken|TokenRefreshRequired|token.{0,20}expired",
        "credentials that have expired",
        f"renew {_CREDENTIALS} and start the command again",
    ),
    _Problem("RequestTimeTooSkewed", "another time than this machine's", "set the clock of this machine"),
    _Problem(
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocationConstraint|redirect without LOCATION"
        rf"|{_STATUS}301\b",
        "a bucket of another region",
        "set AWS_REGION to the region of the bucket",
    ),
    _Problem(
        "InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|InvalidToken|PermissionDenied|Unauthenticated"
        rf"|{_STATUS}40[13]\b",
        "credentials that the store refuses",
        f"check {_CREDENTIALS}, and that they allow to list, read, write and delete there",
    ),
    _Problem(
        rf"<Code>NotImplemented|NotSupported|{_STATUS}501\b",
        "a request that the store does not know",
        "use a store that honours conditional puts (If-None-Match)",
    ),
    _Problem(
        rf"SlowDown|ServiceUnavailable|TooManyRequests|InternalError|{_STATUS}(?:50[0234]|429)\b",
        "a store that is too busy or out of order",
        "try again later, or give the store more capacity",
    ),
    _Problem(
        "BadScheme|URL scheme is not allowed",
        "an endpoint without TLS",
        "set AWS_ENDPOINT_URL to its https address, or AWS_ALLOW_HTTP=true in a network that you trust",
    ),
    _Problem(
        "timed out|TimedOut|(?<!retry_)timeout|deadline",
        "no answer in time",
        "check AWS_ENDPOINT_URL and the network, and try again",
    ),
    _Problem(
        "error sending request|[Cc]onnect|dns|HTTP error|error decoding response|IncompleteMessage|broken pipe|reset",
        "no connection",
        "check AWS_ENDPOINT_URL, AWS_REGION and the network, and try again",
    ),
)
_NAMES: Final = re.compile(r"(https?://[^/\s,]*)[^\s,]*|\b(path|location) \S+")
"""Names of objects in the text of an error: they can contain anything, for example the number 503."""


def store_problem(path: object, text: str) -> str | None:
    """Return the text for an error of the store: found, expected, remedy; None: the error has another cause."""
    if found := re.search("ObjectStoreError: (.+)", text):  # raised through DuckDB
        return found[1]
    text = _NAMES.sub(r"\1\2", text)
    for problem in _PROBLEMS:
        if re.search(problem.pattern, text):
            code = re.search(r"<Code>(\w+)</Code>", text) or re.search(rf"{_STATUS}(\d+)", text)
            why = f" ({code[1]})" if code else ""
            return f"{path}: found {problem.found}{why}, expected an object store that answers: {problem.remedy}"
    return None


@contextmanager
def store_errors(path: ObjectPath, *, is_listing: bool = False) -> Iterator[None]:
    """Raise the errors of the store as those of a file system. is_listing: only a bucket can be missing."""
    from obstore import exceptions

    try:
        yield
    except (exceptions.NotFoundError, FileNotFoundError) as error:
        if is_listing or "NoSuchBucket" in str(error):
            raise ObjectStoreError(store_problem(path.root, "NoSuchBucket")) from None
        raise FileNotFoundError(errno.ENOENT, "no such object", str(path)) from None
    except (exceptions.AlreadyExistsError, exceptions.PreconditionError):
        raise FileExistsError(errno.EEXIST, "there is such an object", str(path)) from None
    except (exceptions.BaseError, OSError) as error:
        if isinstance(error, ObjectStoreError):
            raise
        message = store_problem(path, str(error)) or (
            f"{path}: found an error of the object store ({type(error).__name__}), expected an answer: try again"
        )
        raise ObjectStoreError(message) from None
