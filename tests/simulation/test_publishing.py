"""Schedules of publishing, each held to the invariants of `publishing`, and mutants that they catch.

`make test` runs GATE_SEEDS, always the same; `make test-all` runs random ones too, and prints them.
"""

from __future__ import annotations

from collections import Counter

import pytest

from nightshift.warehouse import schema
from tests.simulation.bigquery import BigQuery
from tests.simulation.mutants import Mutant
from tests.simulation.publishing import BEGAN, Report, outcome, simulate
from tests.simulation.publishing_mutants import PUBLISHING_MUTANTS, seeds
from tests.simulation.runner import PARTS, random_part

pytestmark = pytest.mark.simulation

GATE_SEEDS = range(160)
RANDOM = 50
SLICE = 80
HINT = "to see one: PYTHONPATH=plugins python -m tests.simulation --publishing --seed N --trace"


def slices(of: range) -> list[range]:
    return [of[at : at + SLICE] for at in range(0, len(of), SLICE)]


def must_keep_every_invariant(of: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    failed = []
    for found in map(outcome, of):
        if isinstance(found, Report):
            seen += found.seen
        else:
            failed.append(found)
    assert not failed, "\n".join([*failed[:5], f"{len(failed)} failed; {HINT}"])
    return seen


@pytest.mark.gate
@pytest.mark.parametrize("of", slices(GATE_SEEDS), ids=lambda of: f"from-{of.start}")
def test_every_schedule_of_publishing_keeps_every_invariant(of: range) -> None:
    seen = must_keep_every_invariant(of)

    wanted = {"published", "refused", "retries", "deferrals", "lost jobs", "kill", "again", "overwrite", "delete", "redos"}
    assert wanted - set(seen) == set(), "what is worth simulating happens"


@pytest.mark.parametrize("part", range(PARTS))
def test_random_schedules_of_publishing_keep_every_invariant(part: int) -> None:
    must_keep_every_invariant(random_part(RANDOM, part))


@pytest.mark.gate
@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(789691262114, id="of two deployments, the one whose clock is behind is refused"),
        pytest.param(959419313191, id="a run whose staging table another try has created again is not refused"),
        pytest.param(381835066703, id="a night that finds an open redo continues it"),
    ],
)
def test_a_schedule_that_once_failed_keeps_every_invariant(seed: int) -> None:
    must_keep_every_invariant(range(seed, seed + 1))


@pytest.mark.gate
@pytest.mark.parametrize("mutant", PUBLISHING_MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_mutant_of_publishing_is_caught(mutant: Mutant) -> None:
    seed = seeds()[mutant.name]

    hint = "`--mutants` searches the seeds again"
    assert mutant.broken(simulate, seed), f"seed {seed} does not break {set(mutant.breaks)}; {hint}"


@pytest.mark.gate
def test_the_schedules_of_the_mutants_of_publishing_are_run_without_them_too() -> None:
    assert set(seeds().values()) <= set(GATE_SEEDS)


@pytest.mark.gate
def test_a_seed_is_one_schedule_of_publishing() -> None:
    first: list[str] = []
    again: list[str] = []
    simulate(9, first.append)
    simulate(9, again.append)

    assert first == again
    assert len(first) > 10


class TestTransactions:
    """The rules of `bigquery.Database` that the invariants rest on, as test_dml.py has them of the emulator."""

    @pytest.fixture
    def service(self) -> BigQuery:
        service = BigQuery({}, lambda: BEGAN)
        service.database.create("p.d.t", schema.scalar_fields({"a": "INT64"}))
        return service

    def run(self, service: BigQuery, *scripts: str) -> list[str | None]:
        """Runs the scripts in turn, a statement each; why each of them failed."""
        jobs = [service.submit(str(number), service.script(script, {})) for number, script in enumerate(scripts)]
        while service.running():
            for job in service.running():
                job.step()
        return [None if job.error_result is None else job.error_result["message"] for job in jobs]

    def shown(self, service: BigQuery) -> list[int]:
        return sorted(row["a"] for row in service.database.tables.run('SELECT a FROM "p.d.t"'))

    @pytest.mark.gate
    def test_two_that_delete_from_one_table_are_not_both_committed(self, service: BigQuery) -> None:
        script = (
            "BEGIN TRANSACTION;\nDELETE FROM `p.d.t` WHERE a > 0;\nINSERT INTO `p.d.t` (a) VALUES ({});\nCOMMIT TRANSACTION;"
        )
        first, second = self.run(service, script.format(1), script.format(2))

        assert first is None
        assert "aborted due to concurrent update" in str(second)
        assert self.shown(service) == [1]

    @pytest.mark.gate
    def test_two_that_insert_are_both_committed_and_do_not_see_each_other(self, service: BigQuery) -> None:
        script = (
            "BEGIN TRANSACTION;\nINSERT INTO `p.d.t` (a) VALUES ({});\n"
            "SELECT IF((SELECT COUNT(*) FROM `p.d.t`) = 1, NULL, ERROR('saw more'));\nCOMMIT TRANSACTION;"
        )

        assert self.run(service, script.format(1), script.format(2)) == [None, None]
        assert self.shown(service) == [1, 2]

    @pytest.mark.gate
    def test_an_error_rolls_back(self, service: BigQuery) -> None:
        script = "BEGIN TRANSACTION;\nINSERT INTO `p.d.t` (a) VALUES (1);\nSELECT ERROR('no');\nCOMMIT TRANSACTION;"

        assert self.run(service, script) == ["no"]
        assert self.shown(service) == []

    @pytest.mark.gate
    def test_an_assertion_about_no_rows(self, service: BigQuery) -> None:
        assert self.run(service, "ASSERT (SELECT COUNTIF(a IS NULL) FROM `p.d.t`) = 0\n  AS 'not zero';") == [None]
        assert self.run(BigQuery({}, lambda: BEGAN), "ASSERT (SELECT 1) = 2\n  AS 'not two';") == ["not two"]

    @pytest.mark.gate
    def test_a_transaction_takes_documented_statements_alone(self, service: BigQuery) -> None:
        with pytest.raises(NotImplementedError, match="Create in a transaction"):
            self.run(service, "BEGIN TRANSACTION;\nCREATE TABLE IF NOT EXISTS `p.d.x` (a INT64);\nCOMMIT TRANSACTION;")
