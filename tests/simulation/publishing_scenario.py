"""The schedules of `publishing`: who asks for which run, and what goes wrong, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final

from nightshift.run.plan import ExportedSource
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from tests.builders import a_spec
from tests.simulation.failed_nights import with_failures

DAYS: Final = ("2026-11-20", "2026-11-21")
SOURCE: Final = ExportedSource({"id": "INT64", "text": "STRING", "rating": "INT64"}, ("p.d.t",))
RATING: Final = 10
"""Of a row for each 1 of its id: the column that is passed through."""

_ALPHA: Final = a_spec(
    job="alpha", task="chat", request={"user": "{{ text }}"}, dead_letters__tolerate="100%", source__pass_through=["rating"]
)
SPECS: Final = (
    _ALPHA,
    _ALPHA.model_copy(update={"model": _ALPHA.model.model_copy(update={"revision": "r2"})}),
    _ALPHA.model_copy(update={"job": "beta"}),
)
"""A job, the same edited, and another job with the same destination."""


@dataclass(frozen=True)
class Asked:
    """A DAG run. pace: how often its turn comes. skew_s: how far its clock is ahead. again: it shows a sealed run again.
    redo: it computes only the dead letters again."""

    settings: Settings
    spec: JobSpec
    day: str
    start_s: float
    pace: float
    skew_s: float
    fresh: bool
    again: bool
    rows: int
    chunk_rows: int
    dead: frozenset[int]
    redo: bool = False


@dataclass(frozen=True)
class Scenario:
    """unavailable, lost_reply, lost_job: probabilities, at each call, of each submit and at each step of a job.

    events: (step, what). calm: the step after which nothing goes wrong. failures: nights of a run that fail while another
    one publishes it.
    """

    seed: int
    asked: tuple[Asked, ...]
    unavailable: float
    lost_reply: float
    lost_job: float
    events: tuple[tuple[int, str], ...]
    calm: int
    failures: int = 0


def draw(seed: int) -> Scenario:
    rng = random.Random(f"publishing {seed}")
    places = [Settings(bucket="a", project="p", dataset="own")]
    if rng.random() < 0.25:
        places.append(Settings(bucket="b", project="p", dataset=rng.choice(("own", "own_b"))))
    specs = SPECS[: rng.choice((1, 2, 2, 3))]
    days = DAYS[: rng.choice((1, 1, 2))]
    skewed = rng.random() < 0.3
    asked = tuple(_asked(rng, places, specs, days, skewed=skewed) for _ in range(rng.choice((2, 2, 3, 4, 5))))
    rough = rng.random() < 0.6
    names = ("kill", "kill", "again", "again", "overwrite", "delete")
    scenario = Scenario(
        seed=seed,
        asked=asked,
        unavailable=rng.choice((0.0, 0.005, 0.02)) * rough,
        lost_reply=rng.choice((0.0, 0.1, 0.3)) * rough,
        lost_job=rng.choice((0.0, 0.01, 0.05)) * rough,
        events=tuple(sorted((rng.randrange(600), rng.choice(names)) for _ in range(rng.choice((0, 1, 2, 4))))),
        calm=600,
    )
    if seed % 4 == 3:
        scenario = _with_redos(random.Random(f"redos {seed}"), scenario)
    if seed % 4 == 1:
        scenario = with_failures(random.Random(f"failures {seed}"), scenario)
    return _overtaken(random.Random(f"overtaken {seed}"), scenario) if seed % 8 == 7 else scenario


def _asked(
    rng: random.Random, places: list[Settings], specs: tuple[JobSpec, ...], days: tuple[str, ...], *, skewed: bool
) -> Asked:
    rows = rng.choice((0, 1, 3, 5))
    dead = frozenset(ordinal for ordinal in range(rows) if rng.random() < 0.2)
    if len({place.dataset for place in places}) > 1:
        # Their runs may have one id, and they do not see each other's publications. Where one of them has left no rows, it
        # takes the other's for its own (docs/operate/warehouse.md).
        rows, dead = max(rows, 1), dead - {0}
    return Asked(
        settings=rng.choice(places),
        spec=rng.choice(specs),
        day=rng.choice(days),
        start_s=rng.choice((0.0, 0.0, rng.uniform(0, 200.0))),
        pace=rng.choice((0.01, 0.2, 1.0, 1.0, 4.0)),
        skew_s=rng.uniform(-3600, 3600) * skewed,
        fresh=rng.random() < 0.5,
        # A person's clock is the scheduler's: beside clocks that differ, who asked later is not defined.
        again=not skewed and rng.random() < 0.25,
        rows=rows,
        chunk_rows=rng.choice((1, 2, 5)),
        dead=dead,
    )


def _with_redos(rng: random.Random, scenario: Scenario) -> Scenario:
    """More dead letters, DAG runs that want only these again, and chunks that are altered late."""
    nights = tuple(
        replace(each, dead=each.dead | {n for n in range(1, each.rows) if rng.random() < 0.5}) if each.rows else each
        for each in scenario.asked
    )
    again = [replace(rng.choice(nights), start_s=rng.uniform(5.0, 300.0), again=False, redo=True) for _ in range(3)]
    asked = (*nights, *(replace(each, chunk_rows=rng.choice((1, 2, 5))) for each in again))
    late = [(rng.randrange(100, 600), rng.choice(("overwrite", "delete", "again"))) for _ in range(rng.choice((0, 2, 4)))]
    return replace(scenario, asked=asked, events=tuple(sorted((*scenario.events, *late))))


def _overtaken(rng: random.Random, scenario: Scenario) -> Scenario:
    """A redo, shortly before which somebody has asked for a fresh run of its day: either may be published first."""
    redo = replace(rng.choice([each for each in scenario.asked if each.redo]), pace=0.2)
    fresh = replace(redo, redo=False, fresh=True, pace=1.0, rows=max(redo.rows, 1), start_s=redo.start_s - rng.uniform(0, 5.0))
    return replace(scenario, asked=(*scenario.asked, fresh, redo))
