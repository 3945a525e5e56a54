"""How the answers of a run are distributed, from a stated number of chunks, beside those of the last published run of its job.

A night whose answers are nearly all cut, empty or equal can be green in every count: `warnings` says so in words.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run.answers.bounded import as_json, cut
from nightshift.run.answers.tally import Tally
from nightshift.run.answers.thresholds import ENOUGH, suspicious
from nightshift.run.chunks import NotAChunk
from nightshift.run.names import RunRef
from nightshift.spec.columns import PREDICTION
from nightshift.status.folder import Chunk, RunFolder, chosen

CHUNKS: Final = 8
LABELS_MOST: Final = 30
"""Different values that are shown with their shares; with more, answers are no labels."""
LABEL_CHARACTERS: Final = 80
BINS: Final = 20
DISTINCT_MOST: Final = 50_000
"""Different answers that are told apart."""


@dataclass(frozen=True)
class Histogram:
    """Bins of equal width from `least` to `most`; counts: of values in each. mean, median: of the values."""

    of: str
    least: float
    most: float
    mean: float
    median: float
    counts: tuple[int, ...]


@dataclass(frozen=True)
class Share:
    value: str
    count: int
    share: float


@dataclass(frozen=True)
class Distribution:
    """Of the answers in `read` of `committed` chunks.

    answers: predictions read; dead letters are not among them. counted: of how many answers cut, empty and equal are: those
    that were read, or all (exact) of a run whose seal has counted them. cut: answers cut at ``max_tokens``. empty:
    texts without a letter, and NULLs in typed answers. equal: how often the most frequent answer occurs; commonest: that
    answer. histograms: of lengths, scores or norms, by what the answers are. labels: the values of an answer, or of a field of
    it, by the field's name ("" for the answer itself), if there are few. tokens_out: of a mean row; None if unknown.
    """

    run: str
    chunks: int
    committed: int
    read: int
    answers: int
    cut: int
    empty: int
    equal: int
    commonest: str | None
    histograms: tuple[Histogram, ...]
    labels: Mapping[str, tuple[Share, ...]]
    tokens_in: float | None
    tokens_out: float | None
    problems: Mapping[str, str]
    counted: int
    exact: bool = False

    @property
    def basis(self) -> str:
        """What it is from, for people."""
        return f"{n(self.answers, 'answer')} from {self.read:,} of {n(self.committed, 'committed chunk')}"

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is suspicious, in words."""
        found = []
        for kind in suspicious(self.counted, self.cut, self.empty, self.equal):
            count, what = {
                "cut": (self.cut, "were cut at max_tokens: raise request.max_tokens, or ask for shorter answers"),
                "empty": (self.empty, "are empty: look at some prompts and at the model"),
                "equal": (self.equal, f"are the same: {self.commonest!r}"),
            }[kind]
            how_many = "All" if count >= self.counted else f"{int(1000 * count / self.counted) / 10:g} % of the"
            found.append(f"{how_many} {'answers' if self.exact else 'answers that were read'} {what}")
        return tuple(found)

    def to_json(self) -> dict[str, Any]:
        return {**as_json(self), "basis": self.basis, "warnings": list(self.warnings)}


@dataclass(frozen=True)
class Compared:
    """A run's answers beside those of an earlier one. earlier: None if no run of the job was published before. differs: the
    sections of the job file that decide answers and were other ones then."""

    now: Distribution
    earlier: Distribution | None
    differs: tuple[str, ...] = ()

    @property
    def changes(self) -> tuple[str, ...]:
        """What is clearly different, in words."""
        return tuple(_changes(self.now, self.earlier)) if self.earlier else ()

    def to_json(self) -> dict[str, Any]:
        return {
            "now": self.now.to_json(),
            "earlier": self.earlier.to_json() if self.earlier else None,
            "changes": list(self.changes),
            "differs": list(self.differs),
        }


def distribution(store: ObjectStore, run: RunRef, *, chunks: int = CHUNKS) -> Distribution:
    """Reads at most `chunks` committed chunks, always the same ones. Raises what `RunFolder` raises."""
    folder = RunFolder(store, run)
    plan = folder.plan
    committed = folder.committed()
    problems: dict[str, str] = {}
    added = _Sum()
    drawn = chosen(committed, chunks, run.run_id)
    for number in drawn:
        try:
            added.add(folder.chunk(number))
        except NotAChunk as error:
            problems[folder.work.chunk_path(number)] = str(error)
    made = added.made(run, plan.chunk_count if plan else 0, len(committed), len(drawn) - len(problems), problems)
    manifest = folder.manifest
    if manifest is not None and manifest.empty is not None and manifest.equal is not None:
        cut_ = min(manifest.truncated, manifest.predictions)
        made = replace(made, counted=manifest.predictions, cut=cut_, empty=manifest.empty, equal=manifest.equal, exact=True)
    return made


def compared(store: ObjectStore, run: RunRef, earlier: RunRef | None, *, chunks: int = CHUNKS) -> Compared:
    """earlier: `nightshift.status.runs.published_before`; None for none."""
    now = distribution(store, run, chunks=chunks)
    if earlier is None:
        return Compared(now, None)
    old, new = (RunFolder(store, each).spec.semantic() for each in (earlier, run))
    differs = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    return Compared(now, distribution(store, earlier, chunks=chunks), tuple(differs))


class _Sum:
    def __init__(self) -> None:
        self._answers = self._cut = self._rows = self._in = self._out = 0
        self._tally = Tally()
        self._values: Counter[str] = Counter()
        self._numbers: dict[str, list[float]] = {}
        self._labels: dict[str, Counter[str]] = {}

    def add(self, chunk: Chunk) -> None:
        column = chunk.table.column(PREDICTION)
        answers = column.filter(pc.is_valid(column)).combine_chunks()
        self._rows += chunk.table.num_rows
        self._answers += len(answers)
        self._cut += min(chunk.truncated, len(answers))
        self._in += chunk.provenance.prompt_tokens_all
        self._out += chunk.provenance.output_tokens_all
        if len(answers):
            self._tally.add(answers)
            self._of(answers)

    def _of(self, answers: pa.Array) -> None:
        kind = answers.type
        if pa.types.is_string(kind):
            self._count(answers)
            self._add("characters", pc.utf8_length(answers).to_pylist())
            self._label("", answers)
        elif pa.types.is_list(kind) and pa.types.is_floating(kind.value_type):
            self._count(pa.array([_vector_name(value) for value in _vectors(answers)], pa.string()))
            self._add("norm", (math.sqrt(sum(each * each for each in value)) for value in _vectors(answers)))
        elif pa.types.is_struct(kind):
            self._struct(answers)
        else:
            self._count(pa.array([json.dumps(value, default=str) for value in answers.to_pylist()], pa.string()))
            self._plain("", answers)

    def _struct(self, answers: pa.Array) -> None:
        values = answers.to_pylist()
        # Of a classifier, the label is the answer: scores are hardly ever equal.
        told = [value.get("label") if "label" in value and "scores" in value else value for value in values]
        self._count(pa.array([each if isinstance(each, str) else json.dumps(each, default=str) for each in told], pa.string()))
        for place in range(answers.type.num_fields):
            field = answers.type.field(place)
            self._plain(field.name, answers.field(place))

    def _plain(self, name: str, values: pa.Array) -> None:
        """One field of the answers, or the answers themselves."""
        if pa.types.is_string(values.type):
            self._label(name, values)
        elif pa.types.is_boolean(values.type) or pa.types.is_integer(values.type):
            self._label(name, values.cast(pa.string()))
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            self._add(name or "value", (each for each in values.to_pylist() if each is not None))

    def _count(self, texts: pa.Array) -> None:
        for pair in pc.value_counts(texts).to_pylist():
            if len(self._values) < DISTINCT_MOST or pair["values"] in self._values:
                self._values[pair["values"]] += pair["counts"]

    def _label(self, name: str, texts: pa.Array) -> None:
        counted = self._labels.setdefault(name, Counter())
        if len(counted) > LABELS_MOST:
            return  # They are no labels.
        for pair in pc.value_counts(texts).to_pylist():
            counted[str(pair["values"] if pair["values"] is not None else "NULL")[: LABEL_CHARACTERS + 1]] += pair["counts"]
            if len(counted) > LABELS_MOST:
                return

    def _add(self, name: str, numbers: Iterable[float]) -> None:
        self._numbers.setdefault(name, []).extend(each for each in numbers if math.isfinite(each))

    def made(self, run: RunRef, chunks: int, committed: int, read: int, problems: Mapping[str, str]) -> Distribution:
        common = self._values.most_common(1)
        return Distribution(
            run.prefix,
            chunks,
            committed,
            read,
            self._answers,
            self._cut,
            self._tally.empty,
            common[0][1] if common else 0,
            cut(common[0][0], LABEL_CHARACTERS) if common else None,
            tuple(_histogram(name, numbers) for name, numbers in self._numbers.items() if numbers),
            {name: _shares(counted) for name, counted in self._labels.items() if _are_labels(counted, self._answers)},
            self._in / self._rows if self._in else None,
            self._out / self._rows if self._out else None,
            problems,
            self._answers,
        )


def _vectors(answers: pa.Array) -> Iterable[Any]:
    from array import array

    for value in answers:
        yield array("f", value.values.to_pylist())


def _vector_name(value: Any) -> str:
    """By a digest of all its numbers."""
    return f"vector {hashlib.blake2b(value.tobytes(), digest_size=8).hexdigest()}"


def _are_labels(counted: Counter[str], answers: int) -> bool:
    """Few, short, and each of them more than once on average."""
    short = all(len(value) <= LABEL_CHARACTERS for value in counted)
    return 0 < len(counted) <= LABELS_MOST and short and (len(counted) * 2 <= answers or len(counted) == 1)


def _shares(counted: Counter[str]) -> tuple[Share, ...]:
    total = counted.total()
    return tuple(Share(value, count, count / total) for value, count in counted.most_common())


def _histogram(name: str, numbers: Sequence[float]) -> Histogram:
    ordered = sorted(numbers)
    least, most = ordered[0], ordered[-1]
    counts = [0] * (BINS if most > least else 1)
    for each in ordered:
        place = int((each - least) / (most - least) * BINS) if most > least else 0
        counts[min(place, len(counts) - 1)] += 1
    mean, middle = sum(ordered) / len(ordered), ordered[len(ordered) // 2]
    return Histogram(name, float(least), float(most), mean, float(middle), tuple(counts))


def _changes(now: Distribution, then: Distribution) -> Iterable[str]:
    """Shares that differ by more than 10 points, and means that differ by half."""
    if min(now.answers, then.answers) < ENOUGH:
        return
    for what, count, before in (("cut", now.cut, then.cut), ("empty", now.empty, then.empty), ("equal", now.equal, then.equal)):
        new, old = count / now.counted, before / then.counted
        if abs(new - old) > 0.1:
            yield f"{what}: {new:.0%} of the answers, {old:.0%} before"
    for name in now.labels.keys() & then.labels.keys():
        new_shares, old_shares = ({each.value: each.share for each in of.labels[name]} for of in (now, then))
        for value in sorted(new_shares.keys() | old_shares.keys()):
            new, old = new_shares.get(value, 0.0), old_shares.get(value, 0.0)
            if abs(new - old) > 0.1:
                yield f"{name or 'label'} {value!r}: {new:.0%} of the answers, {old:.0%} before"
    means = {each.of: each.mean for each in then.histograms}
    for each in now.histograms:
        if (mean := means.get(each.of)) and abs(each.mean - mean) > 0.5 * abs(mean):
            yield f"{each.of}: {each.mean:,.3g} on average, {mean:,.3g} before"
