"""Filters: which messages of a topic a group receives, by tags or by an SQL92 expression over properties.

`compile_filter` compiles a subscription. `FilterTable` keeps the expressions of heartbeats, in consumerFilter.json. The
language of expressions is `mqtrail.wire`'s.
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
from .table import FilterTable

__all__ = [
    "FilterTable",
    "MessageFilter",
    "SqlFilter",
    "TagFilter",
    "compile_expression",
    "compile_filter",
    "filter_codes",
    "is_tag_type",
    "require_filter",
]
