"""Failures of Spark, without a JVM."""

from py4j.protocol import Py4JJavaError


class SparkFailed(Py4JJavaError):  # type: ignore[misc]  # py4j has no types
    """A failure of Spark itself, as collect() raises it."""

    def __init__(self, text: str) -> None:
        Exception.__init__(self, text)

    def __str__(self) -> str:
        return f"An error occurred while calling o1.collectToPython.\n: org.x.SparkException: {self.args[0]}\n\tat x"
