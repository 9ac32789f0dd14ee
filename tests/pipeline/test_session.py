"""The Spark session that the other tests of this room use."""

from pathlib import Path

import pytest
from pyspark import SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from mqtrail.pipeline import spark_session
from mqtrail.pipeline.masters import SparkNotStarted
from mqtrail.pipeline.session import SessionConfig

pytestmark = pytest.mark.spark


def test_settings(spark: SparkSession) -> None:
    """The session uses UTC, opens no port for a browser, and accepts blanks in its paths."""
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(3).repartition(2).count() == 3


def test_a_second_session_is_refused(spark: SparkSession) -> None:
    """The settings of the existing session would silently apply to the second one."""
    with pytest.raises(RuntimeError, match="already active"), spark_session():
        pass


@pytest.mark.parametrize("error", [EOFError(), ConnectionResetError(), ValueError("odd")])
def test_a_jvm_that_hangs_up(spark: SparkSession, capsys: pytest.CaptureFixture[str], error: Exception) -> None:
    """The end of a connection is not printed; all other errors are."""
    server = getattr(spark.sparkContext, "_accumulatorServer")  # noqa: B009
    try:
        raise error
    except type(error):
        server.handle_error(None, ("127.0.0.1", 1))
    assert ("odd" in capsys.readouterr().err) == isinstance(error, ValueError)


def test_a_busy_machine_has_time(spark: SparkSession) -> None:
    """A Python process that starts late is waited for longer than by Spark's defaults."""
    assert spark.conf.get("spark.python.authenticate.socketTimeout") == "120s"
    assert spark.conf.get("spark.network.timeout") == "600s"


def test_a_jvm_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is one line with a remedy, not a traceback of the launcher."""

    def refuse(*_: object) -> SparkSession:
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", refuse)
    with pytest.raises(SparkNotStarted, match="JAVA_GATEWAY_EXITED"), spark_session(SessionConfig(scratch=tmp_path)):
        pass
    assert not list(tmp_path.iterdir())
