"""What a job wants of its rows, without a warehouse: sentences, counts in a sample, and what each door makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pytest

from nightshift.planner.source import Unfit, check_keys, check_rows, sample_warnings
from nightshift.spec import JobSpec
from tests.builders import a_spec

pytestmark = pytest.mark.unit

DAY = "2026-11-20"


def wants(nulls: str | None = None, **source: Any) -> JobSpec:
    query = "SELECT id, title, note FROM `d.t` WHERE day = @partition"
    request = {"input": "{{ id }} {{ title }}: {{ note }}", "nulls": nulls}
    return a_spec(source={"query": query, "key": ["id"], **source}, request=request)


@dataclass
class Keys:
    """The warehouse's answers, and how often it was asked."""

    found: tuple[int, int, Sequence[str]] = (0, 0, ())
    scanned: int | None = 2 * 10**9
    asked: list[str] = field(default_factory=list)

    def bytes_scanned(self, spec: JobSpec, partition: str) -> int | None:
        return self.scanned

    def repeated(self, spec: JobSpec, partition: str) -> tuple[int, int, Sequence[str]]:
        self.asked.append(partition)
        return self.found


class TestRows:
    @pytest.mark.parametrize("empty", [None, "publish", "fail"])
    @pytest.mark.parametrize("rows_min", [None, 5])
    def test_enough_rows_are_not_mentioned(self, empty: str | None, rows_min: int | None) -> None:
        assert check_rows(wants(empty=empty, rows_min=rows_min), DAY, 5) == ""

    def test_fewer_than_the_least_number_are_refused_but_none_are_left_to_empty(self) -> None:
        with pytest.raises(
            Unfit, match=r"^The query has 4 rows for 2026-11-20, and source\.rows_min is 5: nothing is computed"
        ):
            check_rows(wants(rows_min=5), DAY, 4)
        assert check_rows(wants(rows_min=5), DAY, 0).startswith("The query has no rows for 2026-11-20: the partition will be")

    def test_none_are_refused_published_or_warned_of(self) -> None:
        with pytest.raises(
            Unfit, match=r"^The query has no rows for 2026-11-20, and source\.empty is fail: nothing is published"
        ):
            check_rows(wants(empty="fail"), DAY, 0)
        assert "Write source.empty" in check_rows(wants(), DAY, 0)
        assert "Write source.empty" not in check_rows(wants(empty="publish"), DAY, 0)


class TestKeys:
    @pytest.mark.parametrize("unique", [None, False])
    def test_are_not_counted_unless_the_job_asks(self, unique: bool | None) -> None:
        keys, said = Keys((1, 2, ["{}"])), list[str]()
        check_keys(wants(unique=unique), DAY, keys, said.append)

        assert (keys.asked, said) == ([], [])

    @pytest.mark.parametrize(("scanned", "size"), [(2 * 10**9, "2.000 GB"), (None, "an unknown number of bytes")])
    def test_what_is_scanned_is_said_before(self, scanned: int | None, size: str) -> None:
        keys, said = Keys(scanned=scanned), list[str]()
        check_keys(wants(unique=True), DAY, keys, said.append)

        assert keys.asked == [DAY]
        assert said == [f"The keys are counted (source.unique), which scans {size} by a dry run"]

    def test_some_of_those_that_stand_in_several_rows_are_named(self) -> None:
        named = ['{"id":1}', '{"id":2}', '{"id":null}']
        with pytest.raises(
            Unfit, match=r'^4 keys of 2026-11-20 stand in 9 rows, .*: {"id":1}, {"id":2}, {"id":null}, \.\.\.\.'
        ):
            check_keys(wants(unique=True), DAY, Keys((4, 9, named)), lambda _: None)


class TestSample:
    ROWS: ClassVar[list[dict[str, Any]]] = [
        {"id": 1, "title": "a", "note": "n"},
        {"id": 2, "title": "b", "note": None},
        {"id": 2, "title": None, "note": None},
        {"id": 3, "title": "d", "note": None},
    ]

    def test_counts_rows_of_which_a_template_writes_a_null_by_the_first_column(self) -> None:
        (nulls,) = sample_warnings(wants(unique=False), self.ROWS)

        assert nulls.startswith(
            "3 rows of 4 sampled would be asked without a value, because a template writes a NULL as nothing"
        )
        assert "(note in 2, title in 1)" in nulls

    @pytest.mark.parametrize("nulls", ["empty", "dead_letter"])
    def test_says_nothing_of_what_the_job_decides(self, nulls: str) -> None:
        assert list(sample_warnings(wants(nulls, unique=False), self.ROWS)) == []

    @pytest.mark.parametrize(("unique", "remedy"), [(None, "Write source.unique: true"), (True, "plan will refuse the run")])
    def test_names_keys_that_stand_twice(self, unique: bool | None, remedy: str) -> None:
        (twice,) = sample_warnings(wants("empty", unique=unique), self.ROWS)

        assert twice.startswith(f'1 key of 4 sampled rows stands in several: {{"id": 2}}. {remedy}')

    def test_a_sample_without_the_keys_columns_says_nothing_of_them(self) -> None:
        rows = [{"title": "a", "note": "n"}] * 2

        assert list(sample_warnings(wants("empty"), rows)) == []
        assert list(sample_warnings(wants(), [])) == []
