"""PySpark: the rocketmq source, pure DataFrame stages, the job that turns trace into verdicts."""

from mqtrail.pipeline.java import JavaNotFound
from mqtrail.pipeline.job import Job, JobConfig, JobReport
from mqtrail.pipeline.options import OPTIONS, SourceOptionError
from mqtrail.pipeline.reading import DataLoss
from mqtrail.pipeline.session import SessionConfig, spark_session
from mqtrail.pipeline.source import RocketMQDataSource

__all__ = [
    "OPTIONS",
    "DataLoss",
    "JavaNotFound",
    "Job",
    "JobConfig",
    "JobReport",
    "RocketMQDataSource",
    "SessionConfig",
    "SourceOptionError",
    "spark_session",
]
