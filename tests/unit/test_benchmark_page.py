"""The page of measures holds one section of each: the latest."""

from __future__ import annotations

import pytest

from benchmarks.report import replaced

pytestmark = pytest.mark.unit

PAGE = "# Benchmarks\n\n## Results\n\n### P1, monday\n\nold\n\n### P11, monday\n\nstays\n\n### P1, tuesday\n\nold too\n"


def test_a_new_section_takes_the_place_of_the_old_ones() -> None:
    """And only of its own measure's: P11 begins like P1."""
    page = replaced(PAGE, "P1", "### P1, today\n\nnew\n\n")

    assert page == "# Benchmarks\n\n## Results\n\n### P1, today\n\nnew\n\n### P11, monday\n\nstays\n"


def test_a_measure_without_a_section_goes_to_the_end() -> None:
    page = replaced("# Benchmarks\n\n### P2, monday\n\nstays\n", "P3", "### P3, today\n\nnew\n")

    assert page == "# Benchmarks\n\n### P2, monday\n\nstays\n\n### P3, today\n\nnew\n"
