"""The documented views of a lake in pandas and in Spark, cell by cell: open it as a notebook, or run it.

python examples/lake_notebook.py lake
"""

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from mqtrail.answers import Answers, save_rows


def query(lake: str, text: str) -> pd.DataFrame:
    """Return the rows of one SELECT over the views. It has the types of the view: times, lists, and NULL as unknown."""
    with Answers(Path(lake)).query(text, time.time_ns() // 1_000_000) as answer:
        return pa.Table.from_batches(answer.batches, answer.schema).to_pandas(types_mapper=pd.ArrowDtype)


# %% Which codes are there, and of which severity?
def codes(lake: str) -> pd.DataFrame:
    """Return how many messages have each code."""
    return query(
        lake, "SELECT code, severity, count(*) AS messages FROM verdicts GROUP BY ALL ORDER BY messages DESC, code"
    )


# %% How long do the handlers of each group take?
def handlers(lake: str) -> pd.DataFrame:
    """Return how many handlers of each group succeeded, and how long they took, in ms."""
    found = query(lake, "SELECT group_name, handler_ms FROM group_results WHERE handler_ms IS NOT NULL")
    return found.groupby("group_name")["handler_ms"].agg(["count", "median", "max"])


# %% What do groups still have to read? An unknown number is <NA>, never 0.
def lags(lake: str) -> pd.DataFrame:
    """Return the lag of each group as of the last sample."""
    return query(lake, "SELECT group_name, lag_count, lag_seconds, unknown_queues, trend FROM group_lag").set_index(
        "group_name"
    )


# %% The same views in Spark: their rows are written once as Parquet, which executors read.
def spark_view(spark: SparkSession, lake: str, name: str, folder: str) -> DataFrame:
    """Register a view of the lake with Spark under its name; folder: one that all executors can read."""
    path = Path(folder) / f"{name}.parquet"
    with Answers(Path(lake)).query(f"SELECT * FROM {name}", time.time_ns() // 1_000_000) as answer:
        save_rows(answer, path)
    found = spark.read.parquet(str(path))
    found.createOrReplaceTempView(name)
    return found


def failures(spark: SparkSession) -> DataFrame:
    """Return how often each error occurred in each group, by the registered view `group_results`."""
    return spark.sql(
        "SELECT group_name, error, count(*) AS messages FROM group_results"
        " WHERE failures > 0 GROUP BY group_name, error ORDER BY messages DESC, group_name, error"
    )


if __name__ == "__main__":
    print(codes(sys.argv[1]))
    print(handlers(sys.argv[1]))
    print(lags(sys.argv[1]))
    with TemporaryDirectory() as shared:
        session = SparkSession.builder.appName("lake").getOrCreate()
        spark_view(session, sys.argv[1], "group_results", shared)
        failures(session).show(truncate=False)
        session.stop()
