"""The permission matrix: every code, every way to name a resource, every path into the broker, both kinds of ACL."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from mqtrail.broker import OWN_PORT_CODES
from mqtrail.broker.requests import REQUESTS
from mqtrail.wire import RequestCode, decode_head

from .matrix import CASES, CHANGES, CONSUMES, NAMINGS, WAYS, Case, Naming, World, expected


def test_every_code_has_a_row() -> None:
    """The broker, the permission table and this matrix have the same codes."""
    served = World("users", Case()).broker._handlers.keys()
    assert served == REQUESTS.keys() == CASES.keys()


def test_a_code_without_a_row_is_refused() -> None:
    """Both kinds of access control refuse it, for every code."""
    for kind in ("users", "files"):
        world = World(kind, CONSUMES)
        for code in (*(set(RequestCode) - REQUESTS.keys()), 4711, -1):
            assert not world.general(world.request(code, NAMINGS[0])), code


@pytest.mark.parametrize("kind", ["users", "files"])
@pytest.mark.parametrize("code", sorted(CASES))
def test_matrix(kind: str, code: int) -> None:
    """A request is allowed if the user may use everything that it names or refers to, on every path."""
    case = CASES[code]
    world = World(kind, case)
    if kind == "files" and world.admin:
        return  # an admin is asked for, see below: it may do so with all topics and groups
    for naming in NAMINGS:
        for way in WAYS:
            if way is World.by_fast_port and code in OWN_PORT_CODES:
                continue  # refused there by its code
            let_in = way(world, world.request(code, naming))
            assert let_in is expected(code, case, naming), (naming.title, way.__name__)


@pytest.mark.parametrize("kind", ["users", "files"])
@pytest.mark.parametrize("code", sorted(CASES))
def test_every_need_counts(kind: str, code: int) -> None:
    """A request on the user's own resources is refused if any one of the needed permissions is missing."""
    for case in _reduced(CASES[code]):
        world = World(kind, case)
        if kind == "files" and world.admin:
            continue  # one of them is a change, and all changes take the same
        assert not world.general(world.request(code, NAMINGS[0])), case


def _reduced(case: Case) -> Iterator[Case]:
    for name in ("topic", "group", "cluster", "also"):
        if getattr(case, name):
            full_but_one: dict[str, Any] = {"retry": "", name: ""}
            yield replace(case, **full_but_one)


@pytest.mark.parametrize("code", [code for code, case in CASES.items() if case.cluster or case.topic in CHANGES])
def test_an_admin_of_acl_files_changes_things(code: int) -> None:
    """Create, Update, Delete and all cluster requests need admin: true, whatever permissions a client has."""
    admin = World("files", CASES[code])
    assert admin.general(admin.request(code, NAMINGS[0]))
    everything = World("files", Case("Sub", "Sub"))
    assert not everything.general(everything.request(code, NAMINGS[0]))


@pytest.mark.parametrize("kind", ["users", "files"])
@pytest.mark.parametrize("code", [code for code, case in CASES.items() if case.retry == "Sub"])
def test_own_retry_topics(kind: str, code: int) -> None:
    """A group's retry topics belong to the group: they need Sub on it, and on the topic if they hold pops of one."""
    case = CASES[code]
    world = World(kind, Case(case.topic, case.retry, also=case.also))
    assert world.general(world.request(code, Naming("own retry", "%RETRY%g")))
    if case is CONSUMES:
        for topic in ("%RETRY%g_orders", "%RETRY%g+orders"):
            assert world.general(world.request(code, Naming("own pop retry", topic)))


@pytest.mark.parametrize("kind", ["users", "files"])
@pytest.mark.parametrize(("code", "opened"), [(33, True), (37, True), (36, True), (41, True), (28, None), (25, False)])
def test_a_setting_opens_what_is_open_at_apache(kind: str, code: int, opened: bool | None) -> None:
    """aclLikeApache: the record that a request names is not checked; changes of settings stay forbidden."""
    case = CASES[code] if not CASES[code].cluster else CONSUMES
    world = World(kind, case, acl_like_apache=True)
    naming = Naming("record of another topic", record="secret")
    assert world.general(world.request(code, naming)) is (True if opened is None else opened)
    assert world.general(world.request(4711, naming))  # and the broker says that it has no such request


def test_a_record_is_read_by_no_one_who_is_refused_for_what_he_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check that reads the log comes last: a refusal by name costs no read."""
    world = World("users", Case())
    reads: list[int] = []
    read_at = world.store.read_at

    def counted(physical_offset: int) -> bytes:
        reads.append(physical_offset)
        return read_at(physical_offset)

    monkeypatch.setattr(world.store, "read_at", counted)
    for code in (33, 36, 37, 309, 323):
        assert not world.general(world.request(code, NAMINGS[0]))
    assert not reads
    assert decode_head(read_at(world.places["orders"])).topic == "orders"
