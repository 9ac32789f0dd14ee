"""What the tasks on a Spark session have in common."""

from pyspark.sql import SparkSession


class OnSpark:
    """Base of the classes that run tasks of Spark."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def parallelism(self) -> int:
        """How many tasks run at once. Executors join and leave, so it changes."""
        count: int = self._spark.sparkContext.defaultParallelism
        return count
