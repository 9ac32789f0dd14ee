"""Names of the groups of members: in a broadcast group each member consumes through a group of its own.

The name tells the group that the member is of, so that its rules hold, and that the group ends with the member. The
digest tells members apart whose labels are equal, and keeps the name from being one that somebody chose.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from mqtrail.wire import RETRY_PREFIX

LABEL_LENGTH: Final = 15
_DIGEST_LENGTH: Final = 12  # of hexadecimal digits
_OTHER: Final = re.compile(r"[^A-Za-z0-9]+")
_SUFFIX: Final = rf"_[A-Za-z0-9-]{{1,{LABEL_LENGTH}}}-member-[0-9a-f]{{{_DIGEST_LENGTH}}}"
_GROUP_OF_MEMBER: Final = re.compile(f"(.+){_SUFFIX}")
_BEGIN: Final = re.compile(f"({_SUFFIX})[_+]")


def member_group(group: str, member: str) -> str:
    """Return the group of a member: the same for the same name of a member, so that it goes on after a restart."""
    label = _OTHER.sub("-", member.partition("|")[0]).strip("-")[:LABEL_LENGTH] or "x"
    digest = hashlib.sha256(f"{group}\n{member}".encode()).hexdigest()[:_DIGEST_LENGTH]
    return f"{group}_{label}-member-{digest}"


def origin_of(group: str) -> str:
    """Return the group whose member this one is of; the group itself if it is of none."""
    found = _GROUP_OF_MEMBER.fullmatch(group)
    return group if found is None else found[1]


def is_of_member(group: str) -> bool:
    """Return whether a group is of one member."""
    return _GROUP_OF_MEMBER.fullmatch(group) is not None


def taker_of(group: str, retry: str) -> str:
    """Return who of a group a retry topic is of: the group of a member, or the group itself."""
    name = retry.removeprefix(RETRY_PREFIX)
    found = _BEGIN.match(name.removeprefix(group)) if name.startswith(group) and name != retry else None
    return group if found is None else group + found[1]
