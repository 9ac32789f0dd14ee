"""Texts exist in every language, and values look the same on every page."""

from __future__ import annotations

import ast
import csv
import io
import re
import string
from pathlib import Path

import pytest

from mqtrail import console
from mqtrail.answers import (
    CHANGE_TEXTS,
    DOCTOR_FINDINGS,
    ELECTION_REASONS,
    FACETS,
    FIELDS,
    DoctorFinding,
    FreshSource,
    IncidentActKind,
    LatencySegment,
    NeighbourRelation,
)
from mqtrail.answers.access import NotSaved
from mqtrail.answers.changes import Fate
from mqtrail.console.advice import (
    CAUSES,
    CODE_ADVICE,
    FINDINGS,
    SYMPTOMS,
    cause_words,
    code_advice,
    findings_words,
    symptom_words,
)
from mqtrail.console.looks import count, csv_text, duration, moment, zone_of
from mqtrail.console.message import hex_dump
from mqtrail.console.texts import CODE_TEXTS, TEXTS, Language, code_text, language_of, text
from mqtrail.trail import CODES
from mqtrail.trail.incidents import INCIDENT_CAUSES
from mqtrail.trail.incidents import SYMPTOMS as KNOWN_SYMPTOMS
from tests.answers.test_handling import incident

ROOM = Path(console.__file__).parent


def _fields(words: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(words) if name}


def test_every_text_has_both_languages_and_the_same_values() -> None:
    for name, (english, chinese) in TEXTS.items():
        assert english, name
        assert chinese, name
        assert _fields(english) == _fields(chinese), name


def test_all_advice_has_both_languages() -> None:
    """Of verdicts that need something to be done, and of causes of incidents."""
    assert set(CODE_ADVICE) == {code for code, known in CODES.items() if known.advice}
    for code, known in CODES.items():
        assert code_advice(code, Language.EN) == known.advice
        assert bool(code_advice(code, Language.ZH)) == bool(known.advice)
    assert set(CAUSES) == {*INCIDENT_CAUSES, "NO_SINGLE_CAUSE"}
    assert set(SYMPTOMS) == {one.name for one in KNOWN_SYMPTOMS}
    chinese = [*CODE_ADVICE.values(), *SYMPTOMS.values(), *(words for both in CAUSES.values() for words in both)]
    assert all(re.search("[\u4e00-\u9fff]", words) for words in chinese)


def test_the_cause_of_an_incident_in_both_languages() -> None:
    """A cause of a later version is shown as that of no single one, as answers do."""
    known = INCIDENT_CAUSES["BAD_HOST"]
    one = incident(cause="BAD_HOST", explanation=known.text, advice=known.advice)
    assert cause_words(one, Language.EN) == (known.text, known.advice)
    assert cause_words(one, Language.ZH) == CAUSES["BAD_HOST"]
    assert cause_words(incident(cause="NEW"), Language.ZH) == CAUSES["NO_SINGLE_CAUSE"]
    two = incident(symptoms=("WAITS", "NEW"), what=("messages wait", "messages are NEW"))
    assert symptom_words(two, Language.EN) == "messages wait; messages are NEW"
    assert symptom_words(two, Language.ZH) == f"{SYMPTOMS['WAITS']}；NEW"


def test_every_sentence_of_the_doctor_has_both_languages_and_the_same_values() -> None:
    assert set(FINDINGS) == set(DOCTOR_FINDINGS)
    for name, words in FINDINGS.items():
        assert re.search("[\u4e00-\u9fff]", words), name
        assert _fields(words) == _fields(DOCTOR_FINDINGS[name]), name
    two = [DoctorFinding("no_topics"), DoctorFinding("trace_topic_unknown", {"topic": "{T}"})]
    assert findings_words(two, Language.EN) == "there is no business topic yet; topic {T} could not be queried"
    assert findings_words(two, Language.ZH) == "还没有业务主题；无法查询主题 {T}"


def test_every_verdict_has_a_chinese_explanation() -> None:
    assert set(CODE_TEXTS) == set(CODES)
    for code in CODES:
        assert code_text(code, Language.EN) == CODES[code].explanation
        assert re.search("[\u4e00-\u9fff]", code_text(code, Language.ZH)), code


def test_pages_use_texts_that_exist() -> None:
    """`say("…")` and the tuples of headings name rows of the table; every row is used by a page."""
    used = set()
    for path in ROOM.glob("*.py"):
        if path.name == "texts.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "say":
                first = node.args[0]
                if isinstance(first, ast.Constant):
                    assert first.value in TEXTS, f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                used.add(node.value)
    of_values = {
        "DRAINS",
        "GROWS",
        "STEADY",
        "EMPTY",
        "UNKNOWN",
        "HANDLED",
        "SEND",
        "STORED",
        "SENT_BACK",
        "DEAD_LETTERED",
    }
    of_values |= (
        {f"same_{name}" for name in NeighbourRelation}
        | {f"part_{name}" for name in LatencySegment}
        | {fate.value for fate in Fate}
        | {f"act_{kind}" for kind in IncidentActKind}
        | {f"fresh_{source}" for source in FreshSource}
        | {f"offset_{name}" for name in ("source", "topic", "queue", "offset")}
        | {f"election_{reason}" for reason in ELECTION_REASONS}
        | {f"event_{name}" for name in CHANGE_TEXTS}
        | {f"field_{name}" for name in FIELDS}
        | {f"facet_{name}" for name in FACETS}
        | {f"unsaved_{why}" for why in NotSaved}
        | {f"about_{code.about}" for code in CODES.values()}
        | {f"need_{need}" for code in CODES.values() for need in code.needs}
    )
    assert set(TEXTS) - used - of_values - {code.severity for code in CODES.values()} == set()


@pytest.mark.parametrize(
    ("chosen", "accepted", "expected"),
    [
        (None, "", Language.EN),
        (None, "zh-CN,zh;q=0.9,en;q=0.8", Language.ZH),
        (None, "fr, de", Language.EN),
        ("en", "zh-CN", Language.EN),
        ("xx", "zh", Language.ZH),
    ],
)
def test_language_of_a_reader(chosen: str | None, accepted: str, expected: Language) -> None:
    """The reader's choice overrides the browser's."""
    assert language_of(chosen, accepted) is expected


def test_unknown_is_never_zero() -> None:
    assert [count(None), duration(None), moment(None)] == ["?", "?", "?"]
    assert [count(0), duration(0)] == ["0", "0 ms"]
    assert count(1_234, is_lower_bound=True) == "≥ 1,234"
    assert [duration(999), duration(1_500), duration(90_000), duration(7_200_000)] == [
        "999 ms",
        "1.5 s",
        "1.5 min",
        "2 h",
    ]
    assert [duration(96_000_000_000), duration(86_400_000 * 999.6)] == ["1,111 d", "1,000 d"]  # not 1.11e+03 d
    assert text("ago", Language.EN, time=duration(1_500)) == "1.5 s ago"


@pytest.mark.parametrize(
    ("zone", "expected"),
    [
        ("Asia/Shanghai", "2026-11-23 08:00:00.007"),
        ("America/St_Johns", "2026-11-22 20:30:00.007"),
        ("UTC", "2026-11-23 00:00:00.007"),
        ("Nowhere/Never", "2026-11-23 00:00:00.007"),
        ("../../etc/passwd", "2026-11-23 00:00:00.007"),
        ("Asia", "2026-11-23 00:00:00.007"),
        ("a\0b", "2026-11-23 00:00:00.007"),
        ("", "2026-11-23 00:00:00.007"),
        (None, "2026-11-23 00:00:00.007"),
    ],
)
def test_a_time_in_the_zone_of_a_browser(zone: str | None, expected: str) -> None:
    """A name that is no zone counts as UTC: it comes from a cookie."""
    assert moment(1_795_392_000_007, zone_of(zone)) == expected


def test_a_spreadsheet_runs_no_cell() -> None:
    """A key that begins like a formula, also in full width, gets an apostrophe; CSV's own marks are escaped."""
    rows = [["=HYPERLINK(1)", "+1", "-1", "@x", "\uff1d1+1", 'a"b', "a,b", 5, "ok"]]
    cells = '"\'=HYPERLINK(1)","\'+1","\'-1","\'@x","\'\uff1d1+1","a""b","a,b",5,"ok"'
    assert csv_text(["a"], rows) == f'"a"\r\n{cells}\r\n'


@pytest.mark.parametrize("separator", [",", ";"])
def test_no_text_begins_a_cell_or_a_line_of_its_own(separator: str) -> None:
    """Also in a spreadsheet of a country that separates cells by semicolons, and in a terminal."""
    evil = ['x;=HYPERLINK("http://evil")', "\t=1", "\r=1", "\n=1", "x\r\n=1;=1", "\x1b]0;x\x07\u202e\x9b"]
    text = csv_text(["a"], [[one] for one in evil])
    assert {one for one in text if not one.isprintable()} == {"\r", "\n"}
    read = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator))
    assert [len(row) for row in read] == [1] * 7
    assert not [cell for row in read for cell in row if cell.startswith("=")]


def test_hex_dump() -> None:
    dump = hex_dump(b"<b>\x00" + bytes(range(40, 58)))
    assert dump.splitlines()[0].startswith("00000000  3c 62 3e 00 28")
    assert dump.splitlines()[0].endswith("<b>.()*+,-./0123")
    assert dump.splitlines()[1].startswith("00000010  34 35")


def test_the_fields_of_a_search_have_their_own_words() -> None:
    """Another form of the console has fields of the same names."""
    assert {name: TEXTS[f"field_{name}"][0] for name in FIELDS} == {
        name: field.meaning for name, field in FIELDS.items()
    }
