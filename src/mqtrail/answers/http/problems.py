"""Maps errors of the lake and the cluster to HTTP problems."""

from __future__ import annotations

from http import HTTPStatus

from mqtrail.gateway import Problem
from mqtrail.wire import MQError, NoMessage

from ..access import (
    AccountsFailed,
    InvalidAccount,
    InvalidSearch,
    NotAllowed,
    SearchesFailed,
    SignedOut,
    TooManyTries,
)
from ..alerts import AlertsFailed
from ..changes import AuditFailed, ChangedMeanwhile, InvalidChange, NothingToChange
from ..cluster import InvalidPlace, UnknownMember
from ..handling import HandlingFailed, InvalidAct, UnknownIncident
from ..masters import UnknownBroker
from ..sources import NoSource


def problem_of(error: MQError) -> Problem:
    """Return the problem of an error of lake or cluster: there is no such source, or it could not be queried."""
    if isinstance(error, NoSource | NothingToChange | NoMessage | UnknownBroker | UnknownIncident | UnknownMember):
        return Problem(HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, TooManyTries):
        return Problem(HTTPStatus.TOO_MANY_REQUESTS, str(error))
    if isinstance(error, InvalidChange | InvalidPlace | InvalidAccount | InvalidAct | InvalidSearch):
        return Problem(HTTPStatus.UNPROCESSABLE_ENTITY, str(error))
    if isinstance(error, SignedOut):
        return Problem(HTTPStatus.UNAUTHORIZED, str(error))
    if isinstance(error, NotAllowed):
        return Problem(HTTPStatus.FORBIDDEN, str(error))
    if isinstance(error, ChangedMeanwhile):
        return Problem(HTTPStatus.CONFLICT, str(error))
    if isinstance(error, AuditFailed | AccountsFailed | AlertsFailed | HandlingFailed | SearchesFailed):
        return Problem(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
    from mqtrail.lake import LakeError  # late: it imports DuckDB

    from ..lakeview import UnknownCluster

    if isinstance(error, UnknownCluster):
        return Problem(HTTPStatus.NOT_FOUND, str(error))
    if isinstance(error, LakeError):
        return Problem(HTTPStatus.BAD_GATEWAY, f"lake: {error}")
    return Problem(HTTPStatus.BAD_GATEWAY, f"cluster: {error}")
