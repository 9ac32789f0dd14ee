"""The garbage collector of a run that handles messages."""

from __future__ import annotations

import gc

from mqtrail.net import collected_rarely


def test_for_the_time_of_a_run() -> None:
    """Rarely, without what existed before; then as before."""
    known = gc.get_threshold()
    with collected_rarely():
        assert gc.get_threshold()[0] > 10 * known[0]
        assert gc.get_freeze_count() > 0
    assert (gc.get_threshold(), gc.get_freeze_count()) == (known, 0)
