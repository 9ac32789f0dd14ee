"""From a trace topic to a table of verdicts with Spark, cell by cell: open it as a notebook, or run it.

python examples/trace_notebook.py 127.0.0.1:9876 /tmp/trace
"""

import sys

from pyspark.sql import DataFrame, SparkSession

from mqtrail.clock import now_ms
from mqtrail.pipeline import (
    TRACE_SCHEMA,
    RocketMQDataSource,
    attempts,
    decoded,
    rejected,
    spark_session,
    trajectories,
    verdicts,
)

TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC"


# %% Follow the trace topic: each run reads what came since the last one, from its checkpoint.
def collect(spark: SparkSession, namesrv: str, folder: str) -> None:
    """Append the attempts recorded in the trace topic to <folder>/attempts."""
    spark.dataSource.register(RocketMQDataSource)
    messages = (
        spark.readStream.format("rocketmq")
        .schema(TRACE_SCHEMA)
        .option("nameServer", namesrv)
        .option("topic", TRACE_TOPIC)
        .load()
    )
    query = (
        attempts(decoded(messages, "my-cluster"))
        .writeStream.option("checkpointLocation", f"{folder}/checkpoint")
        .trigger(availableNow=True)
        .start(f"{folder}/attempts", format="parquet")
    )
    query.awaitTermination()


# %% Judge everything that was collected, as of now.
def judge(spark: SparkSession, folder: str) -> DataFrame:
    """Return how many messages each group has in each state, and how long its handler took."""
    found = verdicts(spark.read.parquet(f"{folder}/attempts"), now_ms())
    found.createOrReplaceTempView("verdicts")
    return spark.sql(
        "SELECT group_name, state, count(*) AS messages, max(handler_ms) AS slowest_ms FROM verdicts"
        " GROUP BY group_name, state ORDER BY group_name, state"
    )


# %% One message: where it went.
def path_of(spark: SparkSession, folder: str, msg_id: str) -> DataFrame:
    """Return the events of a message, in order."""
    found = trajectories(spark.read.parquet(f"{folder}/attempts"), now_ms())
    return found.filter(found.msg_id == msg_id).selectExpr("inline(events)")


# %% What could not be decoded, read once as a batch.
def unreadable(spark: SparkSession, namesrv: str) -> DataFrame:
    """Return the records of the trace topic that cannot be read, with the reason."""
    messages = (
        spark.read.format("rocketmq")
        .schema(TRACE_SCHEMA)
        .option("nameServer", namesrv)
        .option("topic", TRACE_TOPIC)
        .load()
    )
    return rejected(messages, "my-cluster").select("queue_id", "queue_offset", "record_no", "reason")


if __name__ == "__main__":
    with spark_session() as session:
        collect(session, sys.argv[1], sys.argv[2])
        judge(session, sys.argv[2]).show(truncate=False)
        unreadable(session, sys.argv[1]).show(truncate=False)
