"""Shared parts of all tests: coroutines, options to renew recorded output or to shake loops, distribution over
processes."""

import gc
import inspect
import os
import re
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import cast

import pytest
import structlog
from hypothesis import HealthCheck, settings
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from mqtrail.net.log import bursts

from .loops import LoopFactory, run
from .shaking import shake

# The duration of an example depends on the machine's load. pytest's own limits find hanging tests.
# Each run tries other examples, but in CI (where the variable CI is set) each tries the same. --hypothesis-profile
# thorough tries twenty times as many; see also `thorough` below.
settings.register_profile("mqtrail", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.register_profile("thorough", settings.get_profile("mqtrail"), max_examples=1_000)
settings.load_profile("mqtrail")


SUITES = frozenset({"slow", "spark", "cycles", "browser", "databases", "interop"})
ALL_BUT = re.compile(r"not \w+(?: and not \w+)*")  # a choice of tests that names suites to leave out
WHOLE_FILE = re.compile(r"^pytestmark = \[?pytest\.mark\.(\w+)", re.MULTILINE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect tests without garbage collection, which would take a fifth of the time: nearly all of it stays.

    What is there then is left out of the collections during the tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let the interpreter free what it would report as leaked."""
    gc.unfreeze()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import a file that has no test of the suites asked for: to import all files takes 10 s of each process.

    With -m spark that is a file whose text does not name the marker; with -m "not spark and not slow", as by default,
    one whose mark for all its tests is one of these.
    """
    if not collection_path.name.startswith("test_") or collection_path.suffix != ".py":
        return None
    suites = config.getoption("markexpr")
    if suites.isidentifier():
        return True if suites not in _text(collection_path) else None
    if ALL_BUT.fullmatch(suites) and (mark := WHOLE_FILE.search(_text(collection_path))) is not None:
        return True if f"not {mark[1]}" in suites.split(" and ") else None
    return None


@cache
def _text(path: Path) -> str:
    return path.read_text().lower()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a test whose file does not name its marker, and one whose examples have a deadline."""
    for item in items:
        for marker in item.iter_markers():
            if marker.name in SUITES and marker.name not in _text(item.path):
                raise pytest.UsageError(
                    f"found {item.nodeid} in the suite {marker.name}, expected that word in its file: "
                    f"-m {marker.name} looks for it"
                )
        own = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
        if own is not None and own.deadline is not None:
            raise pytest.UsageError(
                f"found {item.nodeid} with a deadline of {own.deadline} for each example, expected none: load the "
                'profile "mqtrail" before the test is made'
            )


@pytest.fixture
def thorough() -> bool:
    """Whether a test takes all its seeds and histories: the suites of CI take some of them."""
    return settings.get_current_profile_name() == "thorough"


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """A command that ran in this process configured logging for itself: undo that after the test."""
    yield
    structlog.reset_defaults()
    bursts.clear()


@pytest.fixture(scope="session", autouse=True)
def _own_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A home folder for the tests, where clients keep their spool and their offsets."""
    home = tmp_path_factory.mktemp("home")
    before = os.environ.get("HOME")
    os.environ["HOME"] = str(home)
    yield home
    if before is None:
        del os.environ["HOME"]
    else:
        os.environ["HOME"] = before


@pytest.fixture(scope="session", autouse=True)
def _no_servers_left() -> Iterator[None]:
    """End the database servers that tests of this process started."""
    yield
    servers = sys.modules.get("tests.databases.servers")
    if servers is not None:
        servers.end_servers()


@pytest.fixture(autouse=True)
def _shaken(request: pytest.FixtureRequest) -> Iterator[None]:
    """Shake the event loops if --shake is given; each test differently."""
    seed = request.config.getoption("--shake")
    with pytest.MonkeyPatch.context() as patch:
        if seed is not None:
            shake(patch, f"{seed} {request.node.nodeid}")
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Run an `async def test_…` on a new loop, made by `loop_factory` if a conftest sets one."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    run(pyfuncitem.obj(**arguments), cast(LoopFactory, pyfuncitem.funcargs.get("loop_factory")))
    return True


USES_SPARK = re.compile(r"[\[-]spark[\]-]")  # the parameter of the fixture
# With a session of their own, in the process that would wait for the others. It takes a third of the tests' time.
SECOND_SESSION = ("tests/pipeline/test_sink_spark.py", "tests/pipeline/test_source.py")
SERVER_KIND = re.compile(r"\[(mqtrail|apache-[\d.]+)[-\]]")
# In the folder of the shared stage, but with servers of another version.
OWN_STAGE = ("tests/interop/features/test_mqadmin_4_9_commands.py",)


# Tests that share what takes seconds to make: a lake, a cluster, a judgement.
TOGETHER = (
    "tests/answers/",
    "tests/broker/test_turns.py",
    "tests/cli/test_operators.py",
    "tests/lake/test_damage.py",
    "tests/lake/test_lookup.py",
    "tests/pipeline/test_shares.py",
    "tests/pipeline/test_spark_cluster.py",
    "tests/test_house.py",
    "tests/trail/test_judge.py",
    "tests/trail/test_properties.py",
)


class SharedServers(LoadGroupScheduling):
    """Gives each test to a free process, but all tests that share something slow to start to one process.

    For the tests that use Spark's session it is Spark, in two processes; they go first. For the real peers it is the
    servers of a folder or of a file, and one kind of server if the tests are parametrized with it.

    xdist's own groups (loadgroup) have no effect here: this pytest does not read the name that carries the group.
    """

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        if file.startswith("tests/pipeline/") and USES_SPARK.search(nodeid):
            return "second spark" if file in SECOND_SESSION else "spark"
        if file.startswith("tests/interop/features/") and file not in OWN_STAGE:
            return "stage"
        if shared := next((place for place in TOGETHER if file.startswith(place)), None):
            return shared
        if not file.startswith("tests/interop/"):
            return nodeid
        kind = SERVER_KIND.search(nodeid)
        return file + kind[1] if kind else file

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        """Count what a process still has to run. Finished groups are dropped: xdist counts all of them at each test."""
        for scope in [scope for scope, tests in workload.items() if all(tests.values())]:
            del workload[scope]
        return sum(list(tests.values()).count(False) for tests in workload.values())


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> SharedServers:
    """Where several processes run the tests."""
    return SharedServers(config, log)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--rewrite",
        action="store_true",
        help="write the current output of the scenarios into their files; then read the diff",
    )
    parser.addoption("--shake", metavar="SEED", help="have event loops stall, and see what is ready late (shaking.py)")
