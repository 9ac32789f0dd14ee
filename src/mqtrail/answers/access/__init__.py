"""Accounts of the console: who sends a request, with which roles, and what these allow.

`AccessDesk` knows users, sessions, API tokens and proxies, and says who sends a request. `SeenSources` are the
sources as that person sees them: pages and the HTTP API ask only through it, so each right is checked in one place.
"""

from .accounts import Accounts, AccountsFailed, ApiToken, UserAccount
from .config import AccessConfig
from .desk import AccessDesk, TooManyTries
from .model import (
    IN_CLUSTER,
    LOCAL,
    Grant,
    InvalidAccount,
    NotAllowed,
    Person,
    PersonRole,
    Right,
    SignedOut,
    Visitor,
)
from .saved import (
    SEARCH_NAME_SIZE_MAX,
    SEARCHES_FILE,
    InvalidSearch,
    NotSaved,
    SavedSearch,
    SavedSearches,
    SearchesFailed,
)
from .seen import KnownClusters, SeenCluster, SeenSources

__all__ = [
    "IN_CLUSTER",
    "LOCAL",
    "SEARCHES_FILE",
    "SEARCH_NAME_SIZE_MAX",
    "AccessConfig",
    "AccessDesk",
    "Accounts",
    "AccountsFailed",
    "ApiToken",
    "Grant",
    "InvalidAccount",
    "InvalidSearch",
    "KnownClusters",
    "NotAllowed",
    "NotSaved",
    "Person",
    "PersonRole",
    "Right",
    "SavedSearch",
    "SavedSearches",
    "SearchesFailed",
    "SeenCluster",
    "SeenSources",
    "SignedOut",
    "TooManyTries",
    "UserAccount",
    "Visitor",
]
