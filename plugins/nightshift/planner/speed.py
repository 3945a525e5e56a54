"""How fast one worker is, and from where that is known. Every speed that the planner uses names its source."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from nightshift.planner.model import Model
from nightshift.planner.record import Record, workload_of
from nightshift.planner.roofline import CannotStart, Estimate, Tokens, estimate
from nightshift.profiles import WorkerShape

if TYPE_CHECKING:
    from nightshift.run.order import Counts
    from nightshift.spec import JobSpec

INPUT_TOKENS: Final = 256.0
"""Of a row, if no rows were sampled."""
MOST: Final = "the most that the profile allows"
"""Where the time of a start-up is from that no run has measured."""
CHARS_PER_TOKEN: Final = 4.0
"""Of English text; the rule of thumb of tokenizers' makers (https://help.openai.com/en/articles/4936856). Fewer for other
scripts and code."""
SPECIAL_TOKENS: Final = 2.0
"""That a tokenizer puts around a text."""


LOST_MOST: Final = 0.95
FAR: Final = 100.0
"""How many times as fast, or as slow, as its estimate a worker can be. Nothing measured here was off by more than ten."""
ALIKE: Final = 0.25
"""Rows whose mean lengths differ by no more than this share have the recorded speed: samples of 200 rows differ as much by
chance. (Where lengths vary as much as their mean, two such means differ by 10% in one standard deviation.)"""


class Basis(StrEnum):
    """Where a speed is from."""

    MEASURED = "measured"
    STATED = "stated"
    ESTIMATED = "estimate"
    UNKNOWN = "unknown"


_MARGIN: Final[Mapping[Basis, float]] = {Basis.MEASURED: 0.85, Basis.STATED: 0.7, Basis.ESTIMATED: 0.7, Basis.UNKNOWN: 0.7}


@dataclass(frozen=True)
class Speed:
    """Of one worker. rows_per_second: while it works; 0 for a basis of UNKNOWN. words: where it is from.

    start_up_s: from the start of its JobSet to its first request, and start_up_words where that is from.
    preemptions_per_hour: of one worker. input_tokens, output_tokens: for each second; None if unknown.
    """

    rows_per_second: float
    basis: Basis
    words: str
    start_up_s: float
    start_up_words: str
    preemptions_per_hour: float = 0.0
    input_tokens: float | None = None
    output_tokens: float | None = None

    @property
    def margin(self) -> float:
        """The share of a deadline's working time that planned work may fill; the rest is for what goes wrong, wrong speeds
        included."""
        return _MARGIN[self.basis]

    @property
    def lost(self) -> float:
        """The share of a worker's time that preemptions take: each a start-up, and half of a chunk of a minute.

        Starts are preempted too. At `LOST_MOST` a worker does hardly anything else, and the plan shows it by its length.
        """
        return min(LOST_MOST, self.preemptions_per_hour / 3600 * (self.start_up_s + 30))

    def working(self, seconds: float) -> float:
        """How many of these seconds a worker works."""
        return seconds * (1 - self.lost)

    def elapsed(self, work_s: float) -> float:
        """Inverse of `working`: how long that work takes."""
        return work_s / (1 - self.lost)


@dataclass(frozen=True)
class Known:
    """What is known of a job's work besides its file.

    model: None if its config cannot be had; why_not has the reason. tokens: of a mean row. records: the nearest record by the
    name of a profile; a profile that is not in it has none. absent: why no engine will find the model, and what to do; '' as
    far as is known. counts: of the query's rows by the columns whose order may pay; None if they were not counted. shared: what
    the sampled rows' prompts have in common, by the same columns (`nightshift.planner.order.shares`); none if nothing was
    sampled. copied: bytes of a mean row in each column that is copied into a chunk; none if nothing was sampled.
    warnings: of the sampled rows (`nightshift.planner.source.sample_warnings`).
    """

    tokens: Tokens
    model: Model | None = None
    why_not: str = "its config.json was not read"
    records: Mapping[str, Record] | None = None
    absent: str = ""
    counts: Counts | None = None
    shared: tuple[float, ...] = ()
    copied: Mapping[str, float] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def tokens_of(
    spec: JobSpec,
    input_tokens: float | None = None,
    source: str = "",
    output_tokens: float | None = None,
    output_source: str = "as given",
) -> Tokens:
    """Of a mean row. input_tokens, output_tokens: if they are known; source, output_source: from where.

    Else `INPUT_TOKENS`, and as many as the task allows an answer (``max_tokens``): answers are as a rule shorter, so a job that
    generates is estimated slower than it is until a run was recorded.
    """
    most = getattr(spec.request, "max_tokens", 0)
    entering = INPUT_TOKENS if input_tokens is None else input_tokens
    words = source or f"{INPUT_TOKENS:.0f} input tokens per row, assumed" if input_tokens is None else source
    words += _cut(spec, entering)
    if output_tokens is not None:
        words += f"; {output_tokens:,.0f} output tokens per row, {output_source}"
    elif most:
        words += f"; {most:,} output tokens per row, the limit (max_tokens)"
    leaving = float(most if output_tokens is None else output_tokens)
    return Tokens(entering, leaving, words, assumed=input_tokens is None)


def _cut(spec: JobSpec, entering: float) -> str:
    """What becomes of a mean row that is longer than the engine reads; "" for one that is not, or that is read in parts."""
    most = spec.engine.max_model_len
    if most is None or entering <= most or spec.task == "rerank":
        return ""
    fate = "cut" if getattr(spec.request, "overlong", "") == "truncate" else "dead letters"
    return f" (the engine reads at most {most:,}, engine.max_model_len; longer rows are {fate})"


def speed_of(spec: JobSpec, shape: WorkerShape, known: Known) -> Speed:
    """Of one worker of this shape: what the job states of its own profile, else a record, else an estimate.

    What is stated and what was measured is of the job's own worker: one of more or fewer accelerators is estimated. Raises
    `nightshift.planner.roofline.CannotStart` if the estimate shows that the engine cannot start.
    """
    own = _is_the_jobs(spec, shape)
    record = (known.records or {}).get(shape.profile.name) if own else None
    start_up_s, start_up_words = _start_up(shape, record)
    preemptions = record.preemptions_per_hour if record and _bought_alike(record, shape) else 0.0
    speed = partial(Speed, start_up_s=start_up_s, start_up_words=start_up_words, preemptions_per_hour=preemptions)
    stated = spec.compute.rows_per_worker_per_second
    if stated is not None and own and shape.profile.name == spec.compute.profile:
        return speed(stated, Basis.STATED, "stated by the job")
    doubt = _doubt(spec, shape, known, record) if record else ""
    if record is not None and not doubt:
        longer, faster, lengths = _lengths(spec, shape, known, record)
        return speed(
            record.rows_per_second * faster,
            Basis.MEASURED,
            f"measured in run {record.run}{_otherwise(spec, shape, record)}{lengths}",
            input_tokens=record.input_tokens / record.work_s * faster * longer,
            output_tokens=record.output_tokens / record.work_s * faster,
        )
    if known.model is None:
        return speed(0.0, Basis.UNKNOWN, f"unknown: {known.why_not.rstrip('.')}{doubt}")
    found = _estimate(spec, shape, known.model, known.tokens)
    wanted = spec.seats(shape)
    most = f" (more do not fit its memory; max_num_seqs is {wanted:,})" if found.seats < wanted else ""
    how = f"{found.bound}, {found.seats} texts at once{most}, {known.tokens.source}"
    words = f"estimate: roofline from {known.model.source} ({how}){doubt}"
    return speed(
        found.rows_per_second,
        Basis.ESTIMATED,
        words,
        input_tokens=found.input_tokens,
        output_tokens=found.output_tokens,
    )


def _doubt(spec: JobSpec, shape: WorkerShape, known: Known, record: Record) -> str:
    """Why a record is no measure of a worker's speed, as the end of a sentence; '' if it does."""
    if not record.rows_per_second or not record.filled:
        return f"; run {record.run} had less than max_num_seqs rows for each worker, so its speed says little"
    if known.model is None:
        return ""
    then = replace(known.tokens, input=record.row_tokens or known.tokens.input)
    try:
        expected = _estimate(spec, shape, known.model, then).rows_per_second
    except CannotStart:  # It did start, so the formula knows too little of it.
        return ""
    if expected / FAR <= record.rows_per_second <= expected * FAR:
        return ""
    return (
        f"; the record of run {record.run} says {record.rows_per_second:,.3g} rows/s, and {expected:,.3g} were to be expected"
    )


def _estimate(spec: JobSpec, shape: WorkerShape, model: Model, tokens: Tokens) -> Estimate:
    return estimate(model, shape, tokens, seqs=spec.seats(shape), length=spec.engine.max_model_len, flags=spec.engine.flags)


def api_servers_of(spec: JobSpec, known: Known) -> dict[str, int]:
    """How many API servers an engine of the job should have, by profile; those that need one are left out.

    Without a sample it is not known that rows are short. Of images each API server keeps some GiB, so it stays alone.
    """
    found: dict[str, int] = {}
    if known.model is None or known.tokens.assumed or spec.task == "image":
        return found
    for profile in spec.compute.profiles:
        try:
            servers = _estimate(spec, spec.compute.worker(profile), known.model, known.tokens).api_servers
        except ValueError:  # An engine that does not fit, or does not start, there.
            continue
        if servers > 1:
            found[profile] = servers
    return found


def _lengths(spec: JobSpec, shape: WorkerShape, known: Known, record: Record) -> tuple[float, float, str]:
    """How many times as long these rows are as the recorded ones, how many times as fast a worker is with them, and that in
    words.

    The roofline gives how speed depends on length; its efficiency factors, which are guesses, cancel out in a ratio. Lengths
    are compared as the planner counted both: what the engine counts includes its chat template.
    """
    if known.tokens.assumed or not record.row_tokens or known.model is None:
        return 1.0, 1.0, ""
    longer = known.tokens.input / record.row_tokens
    if 1 / (1 + ALIKE) <= longer <= 1 + ALIKE:
        return 1.0, 1.0, ""
    then = replace(known.tokens, input=record.row_tokens)
    try:
        slow, fast = (_estimate(spec, shape, known.model, tokens).rows_per_second for tokens in (then, known.tokens))
    except CannotStart:  # It did start, so the formula knows too little of it.
        return 1.0, 1.0, ""
    words = f" with {record.row_tokens:,.0f} input tokens per row, and scaled to {known.tokens.input:,.0f}"
    return longer, fast / slow, words


def _otherwise(spec: JobSpec, shape: WorkerShape, record: Record) -> str:
    """How the recorded run was set up differently, in words; '' if it was not."""
    ours, theirs = workload_of(spec, shape.profile.name), record.workload
    # A setting that the record does not have came later, and then had its default.
    differ = {
        name: _plain(value)
        for name, value in sorted(theirs.performance.items())
        if _plain(value) != _plain(ours.performance.get(name))
    }
    if theirs.engines != ours.engines:
        differ["engines"] = str(theirs.engines)
    return f" (which had {', '.join(f'{name}: {value}' for name, value in differ.items())})" if differ else ""


def _plain(value: Any) -> str:
    """A record's values are from JSON."""
    return json.dumps(value, sort_keys=True)


def _is_the_jobs(spec: JobSpec, shape: WorkerShape) -> bool:
    try:
        return spec.compute.worker(shape.profile.name) == shape
    except ValueError:  # What the job states of its own profile does not fit this one.
        return False


def _bought_alike(record: Record, shape: WorkerShape) -> bool:
    """Another profile of the same hardware is as fast, but is waited for, and preempted, at another pace."""
    return record.profile in ("", shape.profile.name)


def _start_up(shape: WorkerShape, record: Record | None) -> tuple[float, str]:
    """A record whose run did not see the weights being loaded is worth less than the profile, and so is one that has more than
    the profile allows: then a worker that waited for its machine is the exception."""
    most = float(shape.start_seconds)
    alike = record and _bought_alike(record, shape) and record.workload.engines == shape.engines
    if record and alike and record.start_up_s.get("weights"):
        measured = sum(record.start_up_s.values())
        if measured <= most:
            return measured, f"measured in run {record.run}"
    return most, MOST
