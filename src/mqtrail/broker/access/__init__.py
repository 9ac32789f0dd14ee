"""Access control: ACL files of 4.9, users and policies of 5.x. Pure: it takes and returns texts of files.

`Access` checks every request for the broker. The permission table is part of the table of request codes
(`broker.requests`): needs has the terms of its rows, scene looks up what a request touches. plain has the rules of
plain_acl.yml, plain_requests the codes 50 to 54 that change them; policies and auth have users, policies and checks of
5.x, auth_requests the codes 3001 to 3010. keys gives a name server the keys that may sign requests.
"""

from .access import Access
from .auth import USERS_FILE, inner_credentials
from .auth_requests import AuthRequests
from .keys import Key, keys_of, read_users
from .plain import PlainRules, read_rules
from .plain_requests import AclFiles
from .policies import User
from .scene import Permission, Scene

__all__ = [
    "USERS_FILE",
    "Access",
    "AclFiles",
    "AuthRequests",
    "Key",
    "Permission",
    "PlainRules",
    "Scene",
    "User",
    "inner_credentials",
    "keys_of",
    "read_rules",
    "read_users",
]
