"""Redos with one mistake in them: what `completing` must notice.

completing_mutants.json names a schedule for each, as mutants.json does for the driver's (`mutants`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import obstore

from nightshift.operators import redo as redo_task
from nightshift.run import opening, seal, sealed_objects
from nightshift.run.manifest import RunManifest, load_completed, load_manifest
from nightshift.run.names import RunRef
from nightshift.run.opening import load_run
from nightshift.run.plan import load_plan
from nightshift.run.redo import corrected_rows, redo_rows
from nightshift.run.redo.redo import Redo
from nightshift.warehouse import publications, publish
from tests.simulation.completing import simulate
from tests.simulation.mutants import Mutant
from tests.simulation.replaced import Change

SEEDS_FILE: Final = Path(__file__).with_suffix(".json")


def seeds() -> dict[str, int]:
    return dict(json.loads(SEEDS_FILE.read_text()))


def search(tried: range) -> Iterator[tuple[Mutant, int | None, str]]:
    """For each mutant the first schedule that catches it."""
    for mutant in COMPLETING_MUTANTS:
        found = ((seed, what) for seed in tried for what in mutant.broken(simulate, seed)[:1])
        seed, what = next(found, (None, "NOT CAUGHT"))
        yield mutant, seed, what


def _late_chunks_count() -> tuple[Change, ...]:
    """What a failed run has committed by the time of publishing belongs to it, whoever computes these rows."""

    def now(store: Any, run: RunRef, digest: str) -> RunManifest | None:
        found = load_completed(store, run, digest)
        if found is None or not found.unanswered:
            return found
        spec, record = load_run(store, run)
        plan = load_plan(store, run)
        assert plan is not None
        closing = seal.close(store, run, spec, plan, record.pins, record.redo)
        return replace(closing, digest=digest)

    return ((sealed_objects, "load_completed", now),)


def _closing_is_a_manifest() -> tuple[Change, ...]:
    return ((RunRef, "closed_path", lambda self, digest: self.manifest_path),)


def _rows_without_a_result_are_lost() -> tuple[Change, ...]:
    left_rows = redo_rows.left_rows

    def dead_alone(store: Any, run: Any, plan: Any, manifest: RunManifest, keys: Any = ()) -> Iterator[Any]:
        committed = {entry.chunk for entry in manifest.chunks}
        return ((chunk, table) for chunk, table in left_rows(store, run, plan, manifest, keys) if chunk in committed)

    return (
        (redo_rows, "left_rows", dead_alone),
        (corrected_rows, "left_rows", dead_alone),
        (Redo, "left", property(lambda self: self.dead_letters)),
    )


def _tolerance_of_its_rows_alone() -> tuple[Change, ...]:
    return ((Redo, "terms", lambda self, spec: spec),)


def _tolerance_is_not_asked() -> tuple[Change, ...]:
    return ((seal, "_judge", lambda *_: None),)


def _not_asked(name: str) -> tuple[Change, ...]:
    return ((corrected_rows, name, lambda *_: None),)


def _refused_export_is_used_again() -> tuple[Change, ...]:
    def every(store: Any, run: RunRef, attempt: int) -> list[str]:
        found = [each["path"] for each in obstore.list(store, run.source_folder).collect()]
        return sorted(path for path in found if path.endswith(".parquet"))

    return ((corrected_rows, "exported", every),)


def _any_export_counts() -> tuple[Change, ...]:
    """Files of an attempt that was refused beside those of a later one."""
    exported = corrected_rows.exported

    def every(store: Any, run: RunRef, attempt: int) -> list[str]:
        if not exported(store, run, attempt):
            return []
        found = [each["path"] for each in obstore.list(store, run.source_folder).collect()]
        return sorted(path for path in found if path.endswith(".parquet"))

    return ((corrected_rows, "exported", every),)


def _never_too_many() -> tuple[Change, ...]:
    """A redo of a night that may go on."""
    return ((redo_task, "_may_go_on", lambda *_: False),)


def _overtaken_is_redone() -> tuple[Change, ...]:
    """A redo that failed, and that another run has overtaken."""
    return ((redo_task, "_is_overtaken", lambda *_: False),)


def _same_name_for_another_job() -> tuple[Change, ...]:
    return ((opening, "run_digest", lambda job, partition, semantic, project="": "0" * 16),)


def _anything_may_change() -> tuple[Change, ...]:
    return ((redo_task, "_same_shape", lambda *_: None),)


def _same_rows_by_another_job() -> tuple[Change, ...]:
    return ((redo_task, "_same_answers", lambda *_: None),)


def _joined_however_asked() -> tuple[Change, ...]:
    of = Redo.of.__func__  # type: ignore[attr-defined]
    return ((Redo, "of", classmethod(lambda cls, entry: (found := of(cls, entry)) and replace(found, corrected=False))),)


def _in_place_of_anything() -> tuple[Change, ...]:
    """If the day showed nothing, a redo replaces whatever is published meanwhile."""
    rows = publications._OVERTAKING_ROWS.replace("@shown = '' OR ", "@shown != '' AND ")
    return ((publications, "_OVERTAKING_ROWS", rows),)


def _only_in_place_of_what_it_completes() -> tuple[Change, ...]:
    """A fresh run that failed has never been shown: its redo could replace nothing."""
    rows = publications._OVERTAKING_ROWS.replace("@shown", "@completes")
    return ((publications, "_OVERTAKING_ROWS", rows),)


def _whole_run_is_expected_of_a_closing() -> tuple[Change, ...]:
    assertions = publish.assertions
    return ((publish, "assertions", lambda *arguments: assertions(*arguments).replace("@planned", "@rows")),)


def _closing_is_not_found() -> tuple[Change, ...]:
    def sealed(store: Any, run: RunRef, digest: str) -> RunManifest | None:
        found = load_manifest(store, run)
        return found if found and found.digest == digest else None

    return ((sealed_objects, "load_completed", sealed),)


def _of(*names: str) -> frozenset[str]:
    return frozenset(names)


COMPLETING_MUTANTS: Final = (
    Mutant("chunks that are committed after the closing count", _of("rows", "refusal", "whole"), _late_chunks_count),
    Mutant("a failed run gets a manifest", _of("tolerance", "redo", "refusal"), _closing_is_a_manifest),
    Mutant(
        "rows that a failed run had not committed are lost", _of("match", "whole", "refusal"), _rows_without_a_result_are_lost
    ),
    Mutant("the tolerance is one of the redo's rows", _of("tolerance"), _tolerance_of_its_rows_alone),
    Mutant("the seal does not judge", _of("tolerance"), _tolerance_is_not_asked),
    Mutant("a key that the night has twice is not noticed", _of("match"), lambda: _not_asked("_check_night")),
    Mutant("a key that the source lacks or has twice is not noticed", _of("match"), lambda: _not_asked("_check_source")),
    Mutant("an export that was refused is used again", _of("match"), _refused_export_is_used_again),
    Mutant("files of a refused export count", _of("match"), _any_export_counts),
    Mutant("a night that may go on is redone", _of("redo"), _never_too_many),
    Mutant("a redo that was overtaken is redone", _of("redo"), _overtaken_is_redone),
    Mutant("a redo of another job has no name of its own", _of("answers"), _same_name_for_another_job),
    Mutant("a corrected job may change the model", _of("answers"), _anything_may_change),
    Mutant("a redo of the same rows may be of another job", _of("answers"), _same_rows_by_another_job),
    Mutant("an open redo is joined however it was asked for", _of("answers", "match", "whole"), _joined_however_asked),
    Mutant("a redo of a day without a run replaces what came since", _of("redo"), _in_place_of_anything),
    Mutant("a redo replaces only the run that it completes", _of("redo", "refusal"), _only_in_place_of_what_it_completes),
    Mutant("a closing is asserted as a whole run", _of("refusal"), _whole_run_is_expected_of_a_closing),
    Mutant("a closing is not found again", _of("refusal"), _closing_is_not_found),
)
