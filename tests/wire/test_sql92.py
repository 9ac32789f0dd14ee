"""SQL92 expressions, compared with the answers of Apache's own parser and evaluator (sql92_rows.txt)."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.machine import cpu_s, slowness

from mqtrail.wire import SqlExpression, SubscriptionParseFailed, compile_sql, encode_properties
from mqtrail.wire.sql92.grammar import EXPRESSION_LENGTH_MAX, KEYWORDS, parse
from mqtrail.wire.sql92.nodes import DEPTH_MAX, ExpressionError
from mqtrail.wire.sql92.numbers import NotComparable


def rows() -> list[tuple[str, str, str]]:
    """Return (outcome, expression, properties) of each row."""
    found = []
    for line in (Path(__file__).parent / "sql92_rows.txt").read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            outcome, expression, properties = (part.strip(" ") for part in line.split("|"))
            for name, character in (("\\n", "\n"), ("\\t", "\t"), ("\\v", "\v")):
                expression = expression.replace(name, character)
            found.append((outcome, expression, properties))
    return found


def properties_of(text: str) -> bytes:
    pairs = (pair.split("=", 1) for pair in text.split(",") if pair)
    return "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()


def outcome_of(expression: str, properties: bytes) -> str:
    try:
        value = parse(expression).evaluate(properties)
    except ExpressionError:
        return "REFUSED"
    except NotComparable:
        return "ERROR"
    return "NULL" if value is None else str(value).upper()


@pytest.mark.parametrize(("outcome", "expression", "properties"), rows())
def test_as_apache_answers(outcome: str, expression: str, properties: str) -> None:
    """Each row has the same outcome, and only TRUE delivers a message."""
    assert outcome_of(expression, properties_of(properties)) == outcome
    if outcome == "REFUSED":
        with pytest.raises(SubscriptionParseFailed, match=r"Invalid MessageSelector\. found"):
            compile_sql(expression)
    else:
        assert compile_sql(expression).matches(properties_of(properties)) is (outcome == "TRUE")


def test_there_are_rows() -> None:
    """The reader finds the table's rows."""
    assert len(rows()) == 220


NAMES = ("a", "b", "price", "Region", "$x")
VALUES = st.one_of(st.integers(-20, 20).map(str), st.sampled_from(["x", "it's", "", "true", "5.5", "中"]))
Pair = tuple[str, object]  # an expression, and the same as nested tuples


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


BLANKS = st.sampled_from([" ", "  ", "\n", " /* a */ ", "\t", " -- to the end\n "])
WORDS = st.sampled_from([str.upper, str.lower, str.capitalize])
LEAVES: st.SearchStrategy[Pair] = st.one_of(
    st.tuples(st.sampled_from(NAMES), st.integers(0, 9)).map(lambda it: (f"{it[0]}={it[1]}", ("=", *it))),
    st.tuples(st.sampled_from(NAMES), st.integers(0, 9)).map(lambda it: (f"{it[0]}>{it[1]}", (">", *it))),
    st.tuples(st.sampled_from(NAMES), st.sampled_from(["x", "it's", "中"])).map(
        lambda it: (f"{it[0]} = {quoted(it[1])}", ("text", *it))
    ),
    st.sampled_from(NAMES).map(lambda name: (f"{name} IS NULL", ("null", name))),
)


def grown(inner: st.SearchStrategy[Pair]) -> st.SearchStrategy[Pair]:
    two = st.tuples(inner, inner, BLANKS, WORDS)
    return st.one_of(
        two.map(lambda it: (f"({it[0][0]}){it[2]}{it[3]('AND')}{it[2]}({it[1][0]})", ("and", it[0][1], it[1][1]))),
        two.map(lambda it: (f"({it[0][0]}){it[2]}{it[3]('OR')}{it[2]}({it[1][0]})", ("or", it[0][1], it[1][1]))),
        st.tuples(inner, BLANKS, WORDS).map(lambda it: (f"{it[2]('NOT')}{it[1]}({it[0][0]})", ("not", it[0][1]))),
    )


def plainly(tree: object, properties: dict[str, str]) -> bool | None:
    """Evaluate the tuples by SQL's three-valued logic. ValueError where Java throws."""
    assert isinstance(tree, tuple)
    kind, *parts = tree
    if kind in ("and", "or"):
        first = plainly(parts[0], properties)
        if first is (kind == "or"):
            return bool(kind == "or")
        second = plainly(parts[1], properties)
        if second is (kind == "or"):
            return bool(kind == "or")
        return None if first is None or second is None else kind == "and"
    if kind == "not":
        value = plainly(parts[0], properties)
        return None if value is None else not value
    found = properties.get(parts[0])
    if kind == "null":
        return found is None
    if found is None:
        return None
    if kind == "text":
        return bool(found == parts[1])
    return bool(int(found) == parts[1] if kind == "=" else int(found) > parts[1])


@given(st.recursive(LEAVES, grown, max_leaves=8), st.dictionaries(st.sampled_from(NAMES), VALUES))
def test_written_and_read_again(pair: Pair, properties: dict[str, str]) -> None:
    """An expression with any blanks, comments and cases has the meaning of its tree."""
    expression, tree = pair
    properties = {name: value for name, value in properties.items() if value}
    text = "".join(f"{name}\x01{value}\x02" for name, value in properties.items()).encode()
    try:
        expected = plainly(tree, properties)
    except ValueError:
        assert outcome_of(expression, text) == "ERROR"
    else:
        assert outcome_of(expression, text) == ("NULL" if expected is None else str(expected).upper())


PIECES = [*KEYWORDS, "a", "b1", "5", "5L", "1.5", ".5", "'x'", "''", "'", "(", ")", ",", "=", "<>", "<", ">=", "-", "+"]
GARBAGE = st.one_of(
    st.text(max_size=60),
    st.lists(st.sampled_from([*PIECES, "--", "/*", "*/", "\n", "!", "é", "\x00"]), max_size=20).map(" ".join),
)


@given(GARBAGE, st.binary(max_size=60))
@settings(max_examples=150)
def test_garbage_gives_the_one_error(expression: str, properties: bytes) -> None:
    """Any text either is an expression, which accepts any bytes, or is refused with the one error."""
    try:
        compiled = compile_sql(expression)
    except SubscriptionParseFailed:
        return
    assert compiled.matches(properties) in (True, False)


def test_properties_that_are_no_utf_8_are_read_as_java_reads_them() -> None:
    """An invalid byte means U+FFFD, and the last of two equal names counts."""
    assert compile_sql("s = '�'").matches(b"s\x01\xff\x02")
    assert compile_sql("s = '2'").matches(b"s\x011\x02s\x012\x02")
    assert not compile_sql("s = '1'").matches(b"xs\x011\x02")


def test_expressions_are_bounded() -> None:
    """Neither a long nor a deep expression exhausts the broker's time or stack; a long chain is not deep."""
    with pytest.raises(SubscriptionParseFailed, match="characters, expected at most"):
        compile_sql("a = 1 OR " * 4_000 + "a = 1")
    with pytest.raises(SubscriptionParseFailed, match=f"nested more than {DEPTH_MAX} levels deep"):
        compile_sql("NOT " * (DEPTH_MAX + 10) + "a")
    chain = " OR ".join(f"a={number}" for number in range(350))
    assert len(chain) <= EXPRESSION_LENGTH_MAX
    assert compile_sql(chain).matches(b"a\x01349\x02")
    assert compile_sql("(" * 100 + "a = 1" + ")" * 100).matches(b"a\x011\x02")


def test_an_expression_is_compiled_once() -> None:
    """The next pull uses the compiled one."""
    assert compile_sql("once = 1") is compile_sql("once = 1")


def test_an_expression_keeps_its_text() -> None:
    """Error texts and tools can show it."""
    assert SqlExpression("a = 1", parse("a = 1").evaluate).text == "a = 1"


@pytest.mark.parametrize("text", ["a > " + "9" * 5_000, "a = " + "9" * 5_000 + "L", "a < " + "1" * 400 + ".5"])
def test_numbers_of_any_length_are_refused(text: str) -> None:
    """A number that Java's parser refuses is refused, however many digits it has."""
    with pytest.raises(SubscriptionParseFailed, match="found the number"):
        compile_sql(text)


def test_the_size_of_an_expression_has_a_bound() -> None:
    """Comparisons cost time when compiled and for every message; the texts of an IN list hardly do."""
    with pytest.raises(SubscriptionParseFailed, match="expected fewer"):
        compile_sql(" or ".join(["a=1"] * 400))
    with pytest.raises(SubscriptionParseFailed, match="expected fewer"):
        compile_sql("(" * 800 + "a=1" + ")" * 800)
    assert compile_sql(" or ".join(["a=1"] * 300)).matches(b"a\x011\x02")
    assert compile_sql("a in (" + ",".join(["'x'"] * 4_000) + ")").matches(b"a\x01x\x02")


LIST = ",".join(["''"] * 5_400)


@pytest.mark.timed
@pytest.mark.parametrize(
    "text",
    [
        f"a IN ({LIST})",
        f"a NOT IN (/* all */{LIST} -- end\n)",
        f"a IN ({LIST}",
        "a = " + "-" * 16_000,
        "a IN " + "(--" * 5_000,
        "a=--1 AND " * 1_500,
        "(" * 16_000,
        "NOT " * 4_000,
        "--\n" * 5_000 + "a=1",
        "a IN ('" + "'" * 16_000,
    ],
    ids=lambda text: text[:12],
)
def test_compiling_costs_no_turn(text: str) -> None:
    """The longest expressions, whatever they repeat, are compiled or refused in the CPU time of a turn."""

    def compiled() -> None:
        with contextlib.suppress(ExpressionError):
            parse(text)

    parse("a = 1")  # the parser itself is made once
    assert min(cpu_s(compiled) for _ in range(5)) < 0.05 * slowness()


def test_a_list_has_the_same_meaning_however_it_is_written() -> None:
    """Comments, blanks and doubled quotes make no difference; a list in the wrong place ends or invalidates the
    expression."""
    expression = compile_sql("a IN ( 'x' , 'it''s' --'c\n,/* 'q', */ 'z')")
    for value, expected in (("x", True), ("it's", True), ("z", True), ("q", False), ("c", False)):
        assert expression.matches(f"a\x01{value}\x02".encode()) is expected
    assert compile_sql("a = 'x', 'y'").matches(b"a\x01x\x02")
    assert compile_sql("a = 'x' ('y', 'z')").matches(b"a\x01x\x02")
    for text in ("a = ('x', 'y')", "a IN ('x', 'y'", "a IN ('x' 'y')", "a IN ('x', )"):
        with pytest.raises(SubscriptionParseFailed):
            compile_sql(text)


@pytest.mark.parametrize("digits", [20, 4_000, 4_400, 30_000])
def test_numbers_of_any_length_in_properties_match_nothing(digits: int) -> None:
    """Python refuses to convert very long texts: that is no error of the pull, and no reason to end its connection."""
    for sign in ("", "-"):
        properties = encode_properties({"a": sign + "9" * digits}).encode()
        assert not compile_sql("a BETWEEN 1 AND 5").matches(properties)
        assert not compile_sql("a = 5").matches(properties)
