"""Facets of a search: how many matches have each value of a field. A click adds the value to the search."""

from __future__ import annotations

from mqtrail import trail
from mqtrail.answers import FacetsAnswer

from .frame import PageReader, bounds, link, tag
from .looks import count
from .texts import code_text


def draw_facets(reader: PageReader, answer: FacetsAnswer, query: str) -> None:
    """Draw a list for each field. query: the search that the facets are of."""
    is_least = answer.counted_count < answer.matched_count
    tag("h2", reader.say("facets"))
    tag("p", reader.say("facets_text"), "quiet")
    if is_least:
        counted, matched = count(answer.counted_count), count(answer.matched_count)
        tag("p", reader.say("facets_cut", counted=counted, matched=matched), "quiet")
    for facet in answer.facets:
        if not facet.values:
            continue
        tag("h3", reader.say(f"facet_{facet.field}"))
        with tag("ul", classes="facet"):
            for one in facet.values:
                with tag("li"):
                    if one.term:
                        made = link(one.value, "/search", q=f"{query} {one.term}".strip())
                    else:
                        made = tag("span", one.value)
                    if one.value in trail.CODES:
                        made.props.update({"title": code_text(one.value, reader.language)})
                    tag("span", count(one.message_count, is_lower_bound=is_least), "number")
        left = facet.value_count - len(facet.values)
        if left:
            tag("p", reader.say("facet_rest", count=count(left)), "quiet")
    bounds(reader, answer.scope)
