"""The planner: workers and rows per chunk of a run, or why it cannot be and what would help. Pure.

The task ``plan`` asks it once and writes the decision into the run's folder; ``extract`` only fits that decision to the rows
that were exported (`fixed`); ``nightshift plan`` and ``nightshift render`` ask the same functions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.stored import read
from nightshift.fields.text import minutes, n
from nightshift.formats import DECISION, UnreadableFormat
from nightshift.planner.feasibility import Prices, Sizing, SizingRequest, accelerator_hours, answer, batch, cost, rate
from nightshift.planner.order import order_of
from nightshift.planner.roofline import CannotStart
from nightshift.planner.sizing import chunk_rows
from nightshift.planner.speed import MOST, Basis, Known, Speed, api_servers_of, speed_of
from nightshift.planner.suggestions import Suggestion, suggestions_for
from nightshift.profiles.limits import Limits
from nightshift.run.order import Order
from nightshift.spec.engine_defaults import Hints
from nightshift.spec.limits import COLUMN_BYTES_MAX

if TYPE_CHECKING:
    from nightshift.spec import JobSpec

NO_LIMITS: Final = Limits()
NO_WAY: Final = (
    "No longer deadline (7d at most), other profile bought in the same way, larger quota or other number of workers is known "
    "to help. Divide the query's rows among several jobs, use a smaller model or engine.max_model_len, or choose a profile "
    "that is bought otherwise; if you know that a worker does more, set compute.rows_per_worker_per_second."
)
"""The end of a refusal if no way out fits."""


class NotADecision(ValueError):
    """Not the JSON of a decision that this release reads."""


class Refused(ValueError):
    """The run cannot fit. problems: why. ways: the three cheapest ways out. ranking: by what they are the cheapest. searched:
    ways were looked for, so the message says so if there is none. `nightshift.planner.text.refusal` has it in lines."""

    def __init__(self, problems: tuple[str, ...], ways: tuple[Suggestion, ...], ranking: str, *, searched: bool = True) -> None:
        self.problems, self.ways, self.ranking, self.searched = problems, ways, ranking, searched
        ends = [f"{number}. {way.sentence}." for number, way in enumerate(ways, 1)]
        help_ = f" What would fit, {ranking}: {' '.join(ends)}" if ends else f" {NO_WAY}" if searched else ""
        super().__init__(f"The run does not fit: {'; '.join(problems)}.{help_}")


class SpeedUnknown(ValueError):
    """The speed of a worker is unknown, so no number of them can be planned, and the job does not state one."""

    def __init__(self, rows: int, speed: Speed) -> None:
        super().__init__(
            f"Nothing can be planned for {n(rows, 'row')}: the speed of a worker is {speed.words}. Set "
            "compute.workers (whether they end in time is then not checked), or compute.rows_per_worker_per_second if you know "
            "the speed. For an estimate, let the model's config.json be read, or set compute.weights_gib."
        )


@dataclass(frozen=True)
class Decision:
    """What was decided before any accelerator started. rows: counted by then. deadline_s, usable_s: as the bounds had them.
    work_s, finish_s: None if the speed is unknown. reasons: of the workers; those of the chunks follow when the rows are
    exported. row_tokens: input tokens of a mean row; None if no rows were sampled. order: of the rows; None if nothing was
    decided, as for a redo. weights_bytes: of the model; None if it is unknown. api_servers: of an engine, by profile, where it
    needs more than one. copied_bytes: of a mean row, that are copied into its chunk; 0 if unknown."""

    profile: str
    rows: int
    workers: int
    chunk_rows: int
    deadline_s: float
    usable_s: float
    work_s: float | None
    finish_s: float | None
    speed: Speed
    reasons: tuple[str, ...]
    row_tokens: float | None = None
    order: Order | None = None
    weights_bytes: float | None = None
    api_servers: Mapping[str, int] = field(default_factory=dict)
    copied_bytes: float = 0.0

    @property
    def hints(self) -> Hints:
        """What the manifest of the run's engines must know."""
        return Hints(self.weights_bytes, self.api_servers)

    def to_json(self) -> dict[str, Any]:
        return {**DECISION.stamp(), **asdict(self)}

    @classmethod
    def from_json(cls, value: Any) -> Decision:
        """Inverse of `to_json`; entries that a later release added are passed over. Raises NotADecision."""
        if not isinstance(value, Mapping):
            raise NotADecision("not a JSON object")
        try:
            DECISION.check(value, "the decision")
            return read(cls, value)
        except UnreadableFormat as error:
            raise NotADecision(str(error)) from error
        except ValueError as error:
            raise NotADecision(f"not a valid decision: {error}") from error


@dataclass(frozen=True)
class Row:
    """A line of the table. hours: of accelerators. problem: why it does not fit, or ''. start_up_s: of finish_s. at_most:
    whether that is what the profile allows, because no run has measured it."""

    profile: str
    workers: int
    chosen: bool
    finish_s: float | None
    hours: float | None
    cost: float | None
    fits: bool | None
    problem: str
    speed: str
    start_up_s: float | None = None
    at_most: bool = False


def question_of(spec: JobSpec, rows: int, known: Known, limits: Limits, profile: str | None = None) -> SizingRequest:
    """profile: instead of the job's own. Raises `nightshift.planner.roofline.CannotStart`."""
    shape = spec.compute.worker(profile)
    return SizingRequest(
        rows=rows,
        seqs=spec.seats(shape),
        deadline_s=spec.deadline_seconds,
        shape=shape,
        speed=speed_of(spec, shape, known),
        workers=spec.compute.workers,
        chunk_rows=spec.chunk_rows,
        request_rows=spec.rows_per_request,
        limits=limits.of(shape.profile.name),
    )


def decide(
    spec: JobSpec, rows: int, known: Known, limits: Limits = NO_LIMITS, prices: Prices | None = None, currency: str = ""
) -> Decision:
    """For the job's own profile. Raises Refused, with the three cheapest ways out, for what cannot fit, and SpeedUnknown.

    currency: of the prices.
    """
    question, decision, problems = weigh(spec, rows, known, limits)
    if not_sealed := _not_sealed(known, min(rows, decision.chunk_rows)):
        raise Refused(not_sealed, (), "", searched=False)
    if problems:
        ways = suggestions_for(question, spec, known, prices, currency)
        raise Refused(problems, ways, _ranking(ways))
    if rows and spec.compute.workers is None and decision.speed.basis is Basis.UNKNOWN:
        raise SpeedUnknown(rows, decision.speed)
    return decision


def weigh(
    spec: JobSpec, rows: int, known: Known, limits: Limits = NO_LIMITS
) -> tuple[SizingRequest, Decision, tuple[str, ...]]:
    """As `decide`, but with what was asked and what is wrong beside the decision: for those who only want to see it."""
    cannot_start = None
    try:
        question = question_of(spec, rows, known, limits)
    except CannotStart as error:
        cannot_start = str(error)
        question = question_of(spec, rows, replace(known, model=None, why_not=cannot_start), limits)
    found = answer(question)
    copied = sum(known.copied.values())
    chunk, _ = chunk_rows(spec, rows, found.workers, question.speed.rows_per_second, copied=copied)
    order = order_of(spec, rows, known)
    weights = known.model.weights_bytes if known.model else None
    servers = api_servers_of(spec, known)
    engine = spec.defaults(question.shape, hints=Hints(weights, servers)).words
    more = [f"engine, by default for {spec.compute.profile}: {engine}"] if engine else []
    decision = Decision(
        profile=spec.compute.profile,
        rows=rows,
        workers=_busy(found.workers, rows, chunk),
        chunk_rows=chunk,
        deadline_s=question.deadline_s,
        usable_s=question.usable_s,
        work_s=found.work_s,
        finish_s=found.finish_s,
        speed=question.speed,
        reasons=(*_reasons(question, found), *more, *([order.why] if order else [])),
        row_tokens=None if known.tokens.assumed else known.tokens.input,
        order=order,
        weights_bytes=weights,
        api_servers=servers,
        copied_bytes=copied,
    )
    return question, decision, (cannot_start,) if cannot_start and rows else found.problems


def _not_sealed(known: Known, chunk: int) -> tuple[str, ...]:
    """Why a chunk of so many rows would not be sealed, as far as the sampled rows show it."""
    return tuple(
        f"a chunk of {n(chunk, 'row')} would have {size * chunk / 2**20:,.0f} MiB of the column {name}, which is copied, and "
        f"at most {COLUMN_BYTES_MAX >> 20} MiB can be sealed: set chunk_rows to {max(1, int(COLUMN_BYTES_MAX / size / 2)):,}"
        for name, size in known.copied.items()
        if size * chunk > COLUMN_BYTES_MAX
    )


def fixed(decision: Decision, spec: JobSpec, rows: int, input_bytes: int) -> tuple[int, int, tuple[str, ...]]:
    """(workers, rows of a chunk, reasons) for the rows that were exported; input_bytes: of their files.

    The workers stay as decided, less those for whom no chunk is left. The query may have found more or fewer rows than were
    counted before: they are computed by the same workers, if these still end in time. Raises Refused if they would not.
    """
    reasons = list(decision.reasons)
    speed = decision.speed.rows_per_second
    if rows != decision.rows:
        reasons.append(f"{n(rows, 'row')} exported, but {decision.rows:,} had been counted: the workers stay as decided")
        work_s = _as_exported(decision, spec, rows) / speed if speed else None
        if work_s is not None and rows > decision.rows and work_s > decision.usable_s:
            problem = (
                f"the plan has {n(decision.workers, 'worker')} for {n(decision.rows, 'row')}; for {n(rows, 'exported row')} "
                f"each would need {minutes(work_s)}, but the deadline leaves {minutes(decision.usable_s)}"
            )
            raise Refused((problem + ". Clear the task 'plan', which counts again",), (), "", searched=False)
    chunk, why = chunk_rows(spec, rows, decision.workers, speed, input_bytes, decision.copied_bytes)
    workers = _busy(decision.workers, rows, chunk)
    if workers < decision.workers:
        reasons.append(f"{n(decision.workers, 'worker')} reduced to {workers}: there are no more chunks")
    return workers, chunk, (*reasons, *why)


def table(spec: JobSpec, rows: int, known: Known, limits: Limits = NO_LIMITS, prices: Prices | None = None) -> tuple[Row, ...]:
    """The job's profile and its fallbacks, each with the planned workers, half and twice as many; with none where the speed is
    unknown and the job states no workers."""
    found = []
    for profile in spec.compute.profiles:
        try:
            question = question_of(spec, rows, known, limits, profile)
        except CannotStart as error:
            found.append(Row(profile, 0, False, None, None, None, False, str(error), ""))
            continue
        if question.workers is None and question.speed.basis is Basis.UNKNOWN:
            found.append(Row(profile, 0, False, None, None, None, None, "", question.speed.words))
            continue
        planned = answer(question)
        for workers in sorted({max(1, planned.workers // 2), planned.workers, 2 * planned.workers}):
            chosen = workers == planned.workers
            other = question if chosen else replace(question, workers=workers)
            reply = planned if chosen else answer(other)
            problem = "; ".join(reply.problems)
            if not chosen and workers > other.useful:
                problem = problem or f"fewer rows each than {batch(other)}"
            if not chosen and spec.compute.workers is None and 0 < limits.workers_max < workers:
                problem = problem or f"the deployment allows {limits.workers_max:,}"
            fits = None if reply.finish_s is None and not problem else not problem
            hours, price = accelerator_hours(other, reply), cost(other, reply, prices or {})
            chosen = chosen and profile == spec.compute.profile
            speed = question.speed
            start_up = (speed.start_up_s, speed.start_up_words == MOST)
            row = Row(profile, workers, chosen, reply.finish_s, hours, price, fits, problem, speed.words, *start_up)
            found.append(row)
    return tuple(found)


def _as_exported(decision: Decision, spec: JobSpec, rows: int) -> int:
    """Rows of the worker that has the most of them."""
    portion = spec.chunk_rows or spec.rows_per_request
    return min(rows, math.ceil(math.ceil(rows / portion) / decision.workers) * portion)


def _ranking(ways: tuple[Suggestion, ...]) -> str:
    priced = [way.cost is not None for way in ways]
    if not any(priced):
        return "the fewest accelerator hours first (no price is known for these machines)"
    return "the cheapest first" if all(priced) else "the cheapest first, and last what has no price"


def _busy(workers: int, rows: int, chunk: int) -> int:
    """Workers that have a chunk."""
    return max(1, min(workers, math.ceil(rows / chunk)))


def _reasons(question: SizingRequest, found: Sizing) -> list[str]:
    speed = question.speed
    stated = " (the job says so)" if question.workers is not None else ""
    if speed.basis is Basis.UNKNOWN:
        unknown = ": its speed is unknown, so the deadline was not checked"
        first = stated or f"{unknown}; set compute.workers, or compute.rows_per_worker_per_second if you know the speed"
        reasons = [f"{n(found.workers, 'worker')}{first}", f"speed {speed.words}"]
    else:
        work = f"{minutes(found.work_s or 0)} at {rate(speed.rows_per_second)} rows/s each ({speed.words})"
        allowed = f"the deadline of {minutes(question.deadline_s)} allows {minutes(question.usable_s)} of work"
        after = f"after {minutes(speed.start_up_s)} of start-up ({speed.start_up_words})"
        reasons = [f"{n(found.workers, 'worker')}{stated} x {work}; {allowed} {after}"]
    shape = question.shape
    if shape.engines > 1:
        shared = "accelerator" if shape.machine else "CPUs and memory"
        reasons.append(f"each worker has {shape.engines} engines (compute.engines), which share its {shared}")
    if shape.paid and shape.shares:
        machines = shape.machines_of(found.workers)
        size = f"{shape.paid.name}, {n(shape.paid.accelerators, 'accelerator')}"
        each = n(shape.accelerators, "accelerator")
        reasons.append(f"the cost is of {n(machines, 'whole machine')} ({size}); a worker uses {each} of one")
    return reasons
