"""Filters: which messages of a topic a group gets, by tags or by an SQL92 expression over properties.

`compile_filter` makes a MessageFilter of a subscription, `compile_sql` an expression of its text; `FilterTable` keeps
the expressions that heartbeats brought, as consumerFilter.json.
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
