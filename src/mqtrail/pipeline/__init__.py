"""PySpark: the rocketmq source, pure DataFrame stages, the job that turns trace into verdicts."""

from mqtrail.pipeline.java import JavaNotFound
from mqtrail.pipeline.session import SessionConfig, spark_session

__all__ = ["JavaNotFound", "SessionConfig", "spark_session"]
