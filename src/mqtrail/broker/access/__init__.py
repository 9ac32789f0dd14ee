"""Access control: ACL files of 4.9, users and policies of 5.x. It receives and returns file contents, without I/O.

`Access` checks every request for the broker.

    needs                   terms of the permission table, which is part of the table of requests (`broker.requests`)
    context                 look-ups that permission checks need
    plain, plain_requests   rules of plain_acl.yml; the codes 50 to 54 that change them
    policies, auth          users, policies and checks of 5.x
    auth_requests           the codes 3001 to 3010 that change them
    keys                    for a name server: the keys that may sign requests
"""

from .access import Access
from .auth import USERS_FILE, inner_credentials, read_credentials
from .auth_requests import AuthRequests
from .context import AccessContext, Permission
from .keys import Key, keys_of, read_users
from .plain import PlainRules, read_rules
from .plain_requests import AclFiles
from .policies import User

__all__ = [
    "USERS_FILE",
    "Access",
    "AccessContext",
    "AclFiles",
    "AuthRequests",
    "Key",
    "Permission",
    "PlainRules",
    "User",
    "inner_credentials",
    "keys_of",
    "read_credentials",
    "read_rules",
    "read_users",
]
