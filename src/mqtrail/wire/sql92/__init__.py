"""SQL92 expressions over message properties, as brokers evaluate them: the language of filters."""

from .expressions import SqlExpression, compile_sql

__all__ = ["SqlExpression", "compile_sql"]
