"""Periods shorter than a day: their names, and what a job with them needs."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_args

import pytest
from croniter import croniter  # type: ignore[import-untyped]

from nightshift.fields.values import duration_seconds
from nightshift.run.names import RunRef, run_digest
from nightshift.settings import Settings
from nightshift.spec import periods
from nightshift.spec.periods import Every
from nightshift.warehouse import jobs, publications, query, schema
from tests.builders import a_spec
from tests.unit.spec_file import job, mistakes

pytestmark = pytest.mark.unit

NAME = "2026-11-19T0710"
START = datetime(2026, 11, 19, 7, 10, tzinfo=UTC)
QUERY = "SELECT id, text FROM `d.t` WHERE at >= @partition AND at < @partition_end"


class TestNames:
    @pytest.mark.parametrize("every", get_args(Every))
    def test_cron_and_name_agree_on_every_period_of_a_day(self, every: str) -> None:
        length = timedelta(seconds=duration_seconds(every))
        midnight = datetime(2026, 11, 19, tzinfo=UTC)
        moments = croniter(periods.cron(every), midnight - timedelta(seconds=1))
        starts = [moments.get_next(datetime) for _ in range(timedelta(days=1) // length + 1)]

        assert starts == [midnight + n * length for n in range(len(starts))]
        for start in starts:
            name = periods.at(start, every)
            assert periods.bounds(name, every) == (start, start + length)
            assert periods.at(start + length - timedelta(microseconds=1), every) == periods.at(start - length, every)
            assert periods.read(name, every) == name
            assert periods.holding(start, every) == periods.holding(start + length - timedelta(microseconds=1), every) == name
            assert periods.before(periods.after(name, every), every) == name

    def test_a_year_below_1000_has_its_four_digits(self) -> None:
        """It failed the runs of the real periods that were named beside it."""
        assert periods.read("0999-12-31T23:00", "1h") == "0999-12-31T2300"
        assert periods.holding(datetime(1, 1, 1, tzinfo=UTC), "1h") == "0001-01-01T0000"

    def test_days_are_named_as_before(self) -> None:
        assert periods.bounds("2026-11-19", None) == (START.replace(hour=0, minute=0), datetime(2026, 11, 20, tzinfo=UTC))
        assert periods.read("2026-11-19", None) == "2026-11-19"
        assert periods.at(START, None) == "2026-11-18"

    def test_a_name_is_part_of_paths_and_of_job_ids(self) -> None:
        run = RunRef("job", NAME, "0123456789abcdef", 2)

        assert RunRef.from_prefix(run.prefix) == run
        assert jobs.job_id("12345678", run, "extract", 0) == "nightshift-12345678-0123456789abcdef-g2-20261119T0710-extract-0"


class TestWhatBigQueryIsAsked:
    def values(self, parameters: list[object]) -> dict[str, tuple[str, str | None]]:
        return {each.name: (each.type_, each.value) for each in parameters}  # type: ignore[attr-defined]

    def test_the_query_gets_start_and_end(self) -> None:
        spec = a_spec(every="10m", source__query=QUERY)

        assert self.values([*query.parameters(spec, NAME)]) == {
            "partition": ("TIMESTAMP", "2026-11-19T07:10:00+00:00"),
            "partition_end": ("TIMESTAMP", "2026-11-19T07:20:00+00:00"),
        }
        assert self.values([*query.parameters(a_spec(), "2026-11-19")]) == {"partition": ("DATE", "2026-11-19")}

    def test_the_destination_gets_a_timestamp_and_our_tables_day_and_time(self) -> None:
        assert self.values([*schema.partition_parameters(NAME)]) == {
            "partition": ("TIMESTAMP", "2026-11-19T07:10:00+00:00"),
            "partition_date": ("DATE", "2026-11-19"),
            "partition_time": ("TIMESTAMP", "2026-11-19T07:10:00+00:00"),
        }
        assert self.values([*schema.partition_parameters("2026-11-19")]) == {
            "partition": ("DATE", "2026-11-19"),
            "partition_date": ("DATE", "2026-11-19"),
            "partition_time": ("TIMESTAMP", None),
        }

    def test_the_statement_that_removes_foreign_rows_names_the_period(self) -> None:
        spec = a_spec(every="10m", source__query=QUERY, destination__partition_column="period_start")
        foreign = [{"problem": "foreign", "job": None, "run_id": None, "asked_at": None, "row_count": 3}]
        said = publications.describe(spec, RunRef("job", NAME, "0" * 16), Settings("b", "p"), START.isoformat(), foreign)

        assert said is not None
        assert said.endswith("DELETE FROM `p.d.out` WHERE `period_start` = TIMESTAMP '2026-11-19T07:10:00+00:00'")


class TestTheRun:
    def test_a_job_without_periods_has_no_such_entry(self) -> None:
        assert "every" not in a_spec().semantic()

    def test_the_length_of_a_period_is_part_of_what_a_run_is(self) -> None:
        digests = {run_digest("job", NAME, a_spec(every=every, source__query=QUERY).semantic()) for every in ("10m", "20m")}

        assert len(digests) == 2

    def test_what_starts_it_is_not(self) -> None:
        plain = a_spec(every="10m", source__query=QUERY)
        files = a_spec(every="10m", source__query=QUERY, source__watch="gs://shop-uploads/texts", source__settle="2m")

        assert files.semantic() == plain.semantic()
        assert a_spec().semantic()["source"].keys() == {"query", "key"}

    def test_it_is_no_term_that_a_later_file_changes(self) -> None:
        frozen, later = a_spec(every="10m", source__query=QUERY), a_spec(every="20m", source__query=QUERY, deadline="3h")

        assert (frozen.under_terms_of(later).every, frozen.under_terms_of(later).deadline) == ("10m", "3h")


class TestTheFile:
    SELECT = "SELECT name, version, summary, description FROM t WHERE "

    def mistakes_of(self, folder: Path, where: str, **changes: Any) -> list[str]:
        fits = {"schedule": None, "every": "10m", "destination__partition_column": "period_start"}
        return mistakes(folder, job(**{**fits, "source__query": self.SELECT + where, **changes}))

    @pytest.mark.parametrize("where", ["d >= @partition AND d < @partition_end", "d = @partition"])
    def test_one_that_is_right(self, tmp_path: Path, where: str) -> None:
        assert self.mistakes_of(tmp_path, where) == []

    def test_one_whose_periods_come_from_files(self, tmp_path: Path) -> None:
        watched = {"source__watch": "gs://shop-uploads/texts", "source__settle": "10m"}

        assert self.mistakes_of(tmp_path, "d = @partition", **watched) == []

    def test_the_end_is_a_parameter_of_periods_alone(self, tmp_path: Path) -> None:
        (message,) = self.mistakes_of(tmp_path, "d = @partition AND e < @partition_end", every=None)

        assert message.startswith("source.query: The query uses @partition_end. Write @partition, the date of the run")

    def test_the_start_must_be_used(self, tmp_path: Path) -> None:
        (message,) = self.mistakes_of(tmp_path, "d < @partition_end")

        assert message.startswith("source.query: The query does not use @partition, so every run would read the same rows. ")
        assert "WHERE uploaded_at >= @partition AND uploaded_at < @partition_end" in message

    def test_other_parameters_are_refused_with_both(self, tmp_path: Path) -> None:
        (message,) = self.mistakes_of(tmp_path, "d = @partition AND e < @partition_stop")

        assert message.endswith("Write @partition and @partition_end, the start and end of the run's period.")

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"every": "7m"}, "every: every cannot be '7m'. "),
            ({"every": 600}, "every: "),
            (
                {"schedule": "0 2 * * *"},
                "every: The job has a schedule, too, and both say when it runs. Leave one of the two out",
            ),
            (
                {"source__watch": "gs://shop-uploads/texts", "every": None},
                "source.watch: Files start the runs of periods, and the job has none. Add every, for example every: 10m,",
            ),
            (
                {"source__watch": "shop-uploads/texts"},
                "source.watch: 'shop-uploads/texts' is not a folder on Cloud Storage. Write gs://BUCKET/FOLDER",
            ),
            ({"source__settle": "2m"}, "source.settle: There is no folder that is watched. Add source.watch,"),
            (
                {"source__watch": "gs://shop-uploads/texts", "source__settle": "11m"},
                "source.settle: The wait for objects would be longer than a period: 11m is more than 10m. Write 10m",
            ),
            (
                {"source__watch": "gs://shop-uploads/texts", "source__settle": "soon"},
                "source.settle: 'soon' is not a duration.",
            ),
            (
                {"destination__partition_column": None},
                "destination.partition_column: The key is missing: a job with periods has no default for it",
            ),
        ],
    )
    def test_what_does_not_fit_is_said(self, tmp_path: Path, changes: dict[str, Any], said: str) -> None:
        messages = self.mistakes_of(tmp_path, "d = @partition", **changes)

        assert [message for message in messages if message.startswith(said)], messages
