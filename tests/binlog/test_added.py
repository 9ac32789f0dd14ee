"""What an ALTER TABLE gives to the rows that are there; tests/databases compares it with MariaDB."""

from __future__ import annotations

from typing import Any

import pytest

from mqtrail.binlog import UnknownValue, added_values


@pytest.mark.parametrize(
    ("added", "values"),
    [
        ("ADD n INT", {}),
        ("ADD n INT DEFAULT NULL", {}),
        ("ADD COLUMN n INT(11) UNSIGNED NOT NULL DEFAULT '7' AFTER id", {"n": 7}),
        ("ADD `n` bigint default -7 comment 'DEFAULT 8', DROP COLUMN m", {"n": -7}),
        ("ADD n TINYINT NOT NULL", {"n": 0}),
        ("add (n BOOL DEFAULT TRUE, INDEX i (n), `t` VARCHAR(9) NOT NULL)", {"n": 1, "t": ""}),
        ("ADD n DECIMAL(10,2) DEFAULT 5, ADD m DECIMAL NOT NULL", {"n": "5.00", "m": "0"}),
        ("ADD n NUMERIC(9,1) DEFAULT -1.25, ADD m DECIMAL(5,2) DEFAULT '-0.001'", {"n": "-1.3", "m": "0.00"}),
        ("ADD n FLOAT DEFAULT 0.1, ADD m DOUBLE PRECISION DEFAULT 1e-3", {"n": 0.10000000149011612, "m": 0.001}),
        ("ADD t VARCHAR(9) CHARACTER SET utf8mb4 DEFAULT 'it''s, (é)' NOT NULL", {"t": "it's, (é)"}),
        ("ADD t CHAR(9) DEFAULT 'x  ', ADD s TEXT DEFAULT 5", {"t": "x", "s": "5"}),
        ("ADD e ENUM('a','b,c''') NOT NULL DEFAULT 'b,c'''", {"e": "b,c'"}),
        ("ADD d DATE DEFAULT '2026-01-02', ADD m DATETIME(3) DEFAULT '2026-01-02 03:04:05.5'",
         {"d": "2026-01-02", "m": "2026-01-02T03:04:05.500"}),
        ("ADD m DATETIME DEFAULT '2026-01-02'", {"m": "2026-01-02T00:00:00"}),
        ("NOWAIT ADD COLUMN IF NOT EXISTS n INT, ADD UNIQUE KEY u (n), ADD CONSTRAINT c CHECK (n > 1)", {}),
        ("ADD ts TIMESTAMP NULL, ADD INDEX (n), MODIFY m INT NOT NULL DEFAULT 3, RENAME COLUMN a TO b", {}),
        ("ADD PERIOD FOR p (a, b), ADD SYSTEM VERSIONING, ADD PARTITION (PARTITION p VALUES LESS THAN (9))", {}),
    ],
)  # fmt: skip
def test_literals(added: str, values: dict[str, Any]) -> None:
    """As messages have them."""
    assert added_values("ALTER TABLE", f"ALTER TABLE `shop`.orders {added}") == values
    assert (
        added_values("ALTER TABLE", f"/* c */ alter online table orders wait 5 {added.removeprefix('NOWAIT')}")
        == values
    )


@pytest.mark.parametrize(
    ("added", "what"),
    [
        ("ADD m TIMESTAMP", "perhaps the time of the statement in the column m"),
        ("ADD m TIMESTAMP NOT NULL DEFAULT '2026-01-02 03:04:05'", "the default '2026-01-02 03:04:05'"),
        ("ADD m DATETIME DEFAULT CURRENT_TIMESTAMP", "the default CURRENT_TIMESTAMP in the column m"),
        ("ADD m DATETIME DEFAULT now()", "an expression in the column m"),
        ("ADD m DATETIME DEFAULT '2026-01-02 03:04:05.5'", "the default"),
        ("ADD n INT DEFAULT (1 + 1)", "an expression"),
        ("ADD n INT AS (id + 1) VIRTUAL", "computed values in the column n"),
        ("ADD n INT GENERATED ALWAYS AS (id) STORED", "computed values"),
        ("ADD n INT NOT NULL AUTO_INCREMENT UNIQUE", "computed values"),
        ("ADD n SERIAL", "computed values"),
        ("ADD COLUMN IF NOT EXISTS n INT DEFAULT 5", "IF NOT EXISTS, so it may have been there in the column n"),
        ("ADD t VARCHAR(9) DEFAULT 'a\\n'", "a default with a backslash"),
        ('ADD t VARCHAR(9) DEFAULT "a"', "an expression"),
        ("ADD t VARCHAR(9) CHARSET binary DEFAULT 'a'", "the default 'a'"),
        ("ADD t BLOB DEFAULT 'a'", "the default 'a'"),
        ("ADD t BINARY(3) NOT NULL", "an implicit default"),
        ("ADD b BIT(3) DEFAULT b'101'", "the default b"),
        ("ADD s SET('a') DEFAULT 'a'", "the default 'a'"),
        ("ADD e ENUM('a') DEFAULT 'A'", "the default 'A'"),
        ("ADD d DATE NOT NULL", "an implicit default"),
        ("ADD n INT DEFAULT '1.5'", "the default '1.5'"),
        ("ADD n INT DEFAULT 1.5", "the default 1.5"),
        ("ADD n POINT NOT NULL", "an implicit default"),
    ],
)
def test_what_is_not_known(added: str, what: str) -> None:
    """It is refused rather than guessed."""
    with pytest.raises(UnknownValue) as error:
        added_values("ALTER TABLE", f"ALTER TABLE orders {added}")
    assert what in str(error.value)


def test_other_statements() -> None:
    """They add no columns."""
    assert added_values("CREATE TABLE", "CREATE TABLE orders (n INT DEFAULT 5)") == {}
    assert added_values("ALTER TABLE", "ALTER") == {}
