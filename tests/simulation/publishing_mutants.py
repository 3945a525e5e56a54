"""Publishing with one mistake in it: what `publishing` must notice.

publishing_mutants.json names a schedule for each, as mutants.json does for the driver's (`mutants`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from nightshift.run import opening, sealed_objects
from nightshift.run.manifest import RunManifest
from nightshift.run.record import RunRecord
from nightshift.settings import Settings
from nightshift.warehouse import client as warehouse_client
from nightshift.warehouse import dead_letters, errors, jobs, publications, publish
from nightshift.warehouse.failed_nights import FailedNights
from nightshift.warehouse.statements import Statements
from tests.simulation.mutants import Mutant
from tests.simulation.publishing import simulate
from tests.simulation.replaced import Change

SEEDS_FILE: Final = Path(__file__).with_suffix(".json")


def seeds() -> dict[str, int]:
    return dict(json.loads(SEEDS_FILE.read_text()))


def caught(mutant: Mutant, seed: int) -> str | None:
    """What the schedule finds wrong with the mutant, if it is the mutant's kind of wrong."""
    return next(iter(mutant.broken(simulate, seed)), None)


def search(tried: range) -> Iterator[tuple[Mutant, int | None, str]]:
    """For each mutant the first schedule that catches it."""
    for mutant in PUBLISHING_MUTANTS:
        found = ((seed, what) for seed in tried if (what := caught(mutant, seed)))
        seed, what = next(found, (None, "NOT CAUGHT"))
        yield mutant, seed, what


def _does_not_ask(question: str) -> tuple[Change, ...]:
    """The transaction does without one of its questions."""
    refusals = publications.refusals

    def others(*arguments: Any) -> dict[str, str]:
        return {said: rows for said, rows in refusals(*arguments).items() if said != question}

    return ((publications, "refusals", others),)


def _not_asked_by(caller: str) -> tuple[Change, ...]:
    """The objects are not compared with the seal in one of the two places."""
    check_whole = sealed_objects.check_whole

    def check(*arguments: Any) -> None:
        if sys._getframe(1).f_code.co_name != caller:
            check_whole(*arguments)

    return ((sealed_objects, "check_whole", check),)


def _redo_published_alone() -> tuple[Change, ...]:
    """The partition would show the few rows of the redo as all there are."""
    whole = sealed_objects.whole

    def alone(*arguments: Any) -> RunManifest:
        return replace(whole(*arguments), completes=(), earlier=())

    return ((sealed_objects, "whole", alone),)


def _earlier_run_not_compared() -> tuple[Change, ...]:
    """The runs that a redo completes are published whatever became of their objects."""
    return ((sealed_objects, "check_whole", sealed_objects.check_sealed),)


def _order_of_clocks() -> tuple[Change, ...]:
    return ((RunRecord, "opened", property(lambda record: opening._NEVER)),)


def _nothing_deleted_from(tables: str, **always: bool) -> tuple[Change, ...]:
    publish_script = publish.publish_script

    def script(*arguments: Any, **options: Any) -> str:
        lines = publish_script(*arguments, **options | always).splitlines()
        return "\n".join(line for line in lines if not line.startswith(f"DELETE FROM `{tables}"))

    return ((publish, "publish_script", script),)


def _one_job_for_all_who_ask() -> tuple[Change, ...]:
    return ((warehouse_client, "_publish_step", lambda manifest, asked_at: warehouse_client._step("publish", manifest)),)


def _dropped_staging_is_final() -> tuple[Change, ...]:
    retryable = jobs._retryable

    def strict(error: Mapping[str, Any]) -> bool:
        return error.get("reason") != "notFound" and retryable(error)

    return ((jobs, "_retryable", strict),)


def _dropped_staging_is_an_error() -> tuple[Change, ...]:
    return ((Statements, "rows_if_there", Statements.rows),)


def _collision_is_final() -> tuple[Change, ...]:
    return ((errors, "CONFLICTS", ()),)


def _failed_script(change: Callable[[str], str]) -> tuple[Change, ...]:
    """The script of a failed night, altered."""
    failed_script = dead_letters.failed_script
    return ((dead_letters, "failed_script", lambda *arguments: change(failed_script(*arguments))),)


def _nothing_deleted(script: str) -> str:
    return "\n".join(line for line in script.splitlines() if not line.startswith("DELETE"))


def _nobody_looks_afterwards() -> tuple[Change, ...]:
    """A run's rows of both states stay; test_failed_nights.py has each of the two who look."""
    return ((FailedNights, "remove_published", lambda nights, run: 0),)


def _failed_rows_are_counted() -> tuple[Change, ...]:
    count_statement = publish.count_statement

    def count(*arguments: Any) -> str:
        return count_statement(*arguments).replace(f" AND {dead_letters.IS_PUBLISHED}", "")

    return ((publish, "count_statement", count),)


def _failed_rows_survive_a_publication() -> tuple[Change, ...]:
    of_partition = dead_letters.of_partition

    def published(settings: Settings) -> str:
        here = of_partition(settings)
        by_publish = sys._getframe(1).f_code.co_name in ("publish_script", "_has_dead_letters")
        return f"{here} AND {dead_letters.IS_PUBLISHED}" if by_publish else here

    return ((dead_letters, "of_partition", published),)


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


PUBLISHING_MUTANTS: Final = (
    Mutant("the transaction does not ask whose rows it replaces", _of("owner"), lambda: _does_not_ask(publications.FOREIGN)),
    Mutant("the transaction does not ask for later runs", _of("order"), lambda: _does_not_ask(publications.LATER)),
    Mutant("the transaction does not ask what a redo replaces", _of("redo"), lambda: _does_not_ask(publications.OVERTAKEN)),
    Mutant("the seal is not compared before the load", _of("load"), lambda: _not_asked_by("execute")),
    Mutant("the seal is not compared after the load", _of("rows"), lambda: _not_asked_by("replace_partition")),
    Mutant("a redo is published without the run that it completes", _of("rows"), _redo_published_alone),
    Mutant("the run that a redo completes is not compared", _of("load", "rows"), _earlier_run_not_compared),
    Mutant("runs are ordered by the openers' clocks", _of("order", "refusal"), _order_of_clocks),
    Mutant("the partition is not emptied", _of("rows"), lambda: _nothing_deleted_from("p.d.out`")),
    Mutant("dead letters of the last run stay", _of("rows"), lambda: _nothing_deleted_from("p.own", stale=True)),
    Mutant("all who ask for a run share a job", _of("green", "refusal"), _one_job_for_all_who_ask),
    Mutant("a staging table that another try drops before the transaction is final", _of("refusal"), _dropped_staging_is_final),
    Mutant("a staging table that is dropped while it is looked for is an error", _of("refusal"), _dropped_staging_is_an_error),
    Mutant("two transactions that collide are final", _of("refusal"), _collision_is_final),
    Mutant(
        "dead letters of a failed night pass for published ones",
        _of("rows"),
        lambda: _failed_script(lambda script: script.replace("'failed', ", "'published', ")),
    ),
    Mutant(
        "a failed night does not replace what its run has left before",
        _of("failed"),
        lambda: _failed_script(_nothing_deleted),
    ),
    Mutant(
        "a failed night removes the dead letters of other runs",
        _of("failed", "rows"),
        lambda: _failed_script(lambda script: script.replace(" AND run_id = @run_id AND state = 'failed'", "")),
    ),
    Mutant("nobody looks whether a run has rows of both states", _of("failed"), _nobody_looks_afterwards),
    Mutant("dead letters of failed nights count as shown", _of("refusal", "green", "liveness"), _failed_rows_are_counted),
    Mutant("dead letters of failed nights survive a publication", _of("failed"), _failed_rows_survive_a_publication),
)
