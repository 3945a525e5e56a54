"""What the whole night would take: the planner, with the tokens that the engine counted for some of its rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from nightshift.fields.text import n
from nightshift.planner.inputs import known_of
from nightshift.planner.plan import table
from nightshift.planner.speed import Known, tokens_of
from nightshift.planner.speeds import records_if_any
from nightshift.preview.results import NightEstimate
from nightshift.run.pins import UNPINNED

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider, ObjectStore

    from nightshift.planner.costs.prices import Prices
    from nightshift.preview.outcome import Outcome
    from nightshift.spec import JobSpec

WAIT_S: Final = 1.0
"""How long a person waits for the model's config.json after the answers: the Hub may take half a minute to refuse it."""
LATE: Final = "its config.json had not arrived when the answers had"


@dataclass
class Knowing:
    """What the planner knows of a job before any tokens are counted: read aside, while the engine answers."""

    store: ObjectStore
    spec: JobSpec
    environment: Mapping[str, str]
    credentials: GCSCredentialProvider | None
    say: Callable[[str], None]
    _found: list[Known] = field(default_factory=list)

    def __post_init__(self) -> None:
        # A daemon: the process does not wait for what came too late.
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        records = records_if_any(self.store, self.spec, self.say)
        self._found.append(Known(tokens_of(self.spec), None, LATE, records))
        known = known_of(self.spec, UNPINNED, records=records, environment=self.environment, credentials=self.credentials)
        self._found.append(known)

    def known(self) -> Known:
        """As far as it has come, `WAIT_S` from now."""
        self._thread.join(WAIT_S)
        return self._found[-1] if self._found else Known(tokens_of(self.spec), None, LATE)


def night_of(spec: JobSpec, rows: int, outcome: Outcome, known: Known, prices: Prices) -> NightEstimate:
    """rows: of the whole query. outcome: of some of them; those that became no request count as none."""
    sent = sum(row.prompt is not None for row in outcome.rows)
    mean_in, mean_out = (outcome.prompt_tokens / sent, outcome.output_tokens / sent) if sent else (0.0, 0.0)
    share = sent / len(outcome.rows) if outcome.rows else 0.0
    if sent:
        counted = f"{mean_in:,.0f} input tokens per row: the engine's count of {n(sent, 'row')}"
        tokens = tokens_of(spec, mean_in, counted, mean_out, "as those rows had")
        known = replace(known, tokens=replace(tokens, texts=None if spec.task == "rerank" else 1.0))
    of_all = (rows, round(mean_in * share * rows), round(mean_out * share * rows))
    chosen = next((row for row in table(spec, rows, known, prices=prices.machines) if row.chosen), None)
    if chosen is None:
        return NightEstimate(*of_all, profile=spec.compute.profile, currency=prices.currency, speed="unknown")
    return NightEstimate(
        *of_all,
        profile=chosen.profile,
        workers=chosen.workers,
        seconds=chosen.finish_s,
        hours=chosen.hours,
        cost=chosen.cost,
        currency=prices.currency,
        speed=chosen.speed,
        problem=chosen.problem,
        start_up_s=chosen.start_up_s,
        start_up_at_most=chosen.at_most,
    )
