"""The rules that every consensus of this room follows, whatever its messages are."""

from collections.abc import Iterable
from typing import Final

from .errors import RaftIdentityError

GROUP_SIZES: Final = (1, 3, 5)


def check_members(self_id: str, members: tuple[str, ...], group: str) -> None:
    """RaftIdentityError: the members are no group, or self_id is not one of them."""
    if len(members) not in GROUP_SIZES or len(set(members)) != len(members):
        raise RaftIdentityError(
            f"found the members {', '.join(members) or 'none'} of group {group}, expected 1, 3 or 5 different "
            "ids: correct the list of peers"
        )
    if self_id not in members:
        raise RaftIdentityError(
            f"found the own id {self_id!r}, expected one of {', '.join(members)}: correct the own id or the "
            "list of peers"
        )


def majority_of(members: tuple[str, ...]) -> int:
    """Return how many members decide."""
    return len(members) // 2 + 1


def reached_by(values: Iterable[int], count: int) -> int:
    """Return the highest value that so many members have reached."""
    return sorted(values, reverse=True)[count - 1]


def is_as_new(term: int, index: int, own_term: int, own_index: int) -> bool:
    """Whether a candidate's log, of which this is the last entry, has every entry that may be committed."""
    return (term, index) >= (own_term, own_index)


def commits_by_count(entry_term: int | None, term: int) -> bool:
    """Whether a majority that has an entry commits it: a later leader could replace one of an earlier term."""
    return entry_term == term
