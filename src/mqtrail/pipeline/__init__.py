"""PySpark: the rocketmq source, pure DataFrame stages, the job that turns trace into verdicts."""

from mqtrail.pipeline.config import JobConfig, JobFailed, JobReport
from mqtrail.pipeline.engine import SparkEngine
from mqtrail.pipeline.java import JavaNotFound
from mqtrail.pipeline.job import Job
from mqtrail.pipeline.options import OPTIONS, SourceOptionError
from mqtrail.pipeline.reading import DataLoss
from mqtrail.pipeline.session import LONG_SESSION, SHORT_SESSION, SessionConfig, spark_session
from mqtrail.pipeline.source import RocketMQDataSource

__all__ = [
    "LONG_SESSION",
    "OPTIONS",
    "SHORT_SESSION",
    "DataLoss",
    "JavaNotFound",
    "Job",
    "JobConfig",
    "JobFailed",
    "JobReport",
    "RocketMQDataSource",
    "SessionConfig",
    "SourceOptionError",
    "SparkEngine",
    "spark_session",
]
