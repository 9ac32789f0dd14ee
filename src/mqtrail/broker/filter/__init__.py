"""Filters: which messages of a topic a group receives, by tags or by an SQL92 expression over properties.

`compile_filter` compiles a subscription, `compile_sql` the text of an expression. `FilterTable` keeps the expressions
of heartbeats, in consumerFilter.json.
"""

from .filters import (
    MessageFilter,
    SqlFilter,
    TagFilter,
    compile_expression,
    compile_filter,
    filter_codes,
    is_tag_type,
    require_filter,
)
from .sql import SqlExpression, compile_sql
from .table import FilterTable

__all__ = [
    "FilterTable",
    "MessageFilter",
    "SqlExpression",
    "SqlFilter",
    "TagFilter",
    "compile_expression",
    "compile_filter",
    "compile_sql",
    "filter_codes",
    "is_tag_type",
    "require_filter",
]
