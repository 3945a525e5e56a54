"""How the answers of a run are distributed, and what is said of a night whose answers are nearly all cut, empty or equal."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import obstore
import pyarrow as pa
import pytest
from obstore.store import MemoryStore

from nightshift.run import chunks
from nightshift.run.answers.tally import Tally
from nightshift.run.answers.thresholds import ENOUGH
from nightshift.run.chunks import Result
from nightshift.run.names import canonical_json
from nightshift.status import distributions
from nightshift.status.distributions import Distribution, compared, distribution
from tests.chat_run import ChatRun, a_chat_run

pytestmark = pytest.mark.unit

CLASSIFIED = pa.struct([("label", pa.string()), ("score", pa.float32()), ("scores", pa.list_(pa.float32()))])
VECTORS = pa.list_(pa.float32())


def chat(answer: Callable[[int], str | None], *, rows: int = 100, truncated: int = 0, **more: Any) -> ChatRun:
    """A run in one chunk."""
    run = a_chat_run(MemoryStore(), rows=rows, chunk_rows=rows, **more)
    run.commit(0, answer, truncated=truncated)
    return run


def of(run: ChatRun) -> Distribution:
    return distribution(run.store, run.run)


def with_answers(kind: pa.DataType, answers: list[Any]) -> Distribution:
    """Of a run of another task, whose answers have this type."""
    run = a_chat_run(MemoryStore(), rows=len(answers), chunk_rows=len(answers))
    results = [Result(row, answer, None, None, 1) for row, answer in enumerate(answers)]
    keys = pa.table({"id": pa.array(range(len(answers)), pa.int64())})
    run.put(run.work.chunk_path(0), chunks.encode(keys, results, kind, run.provenance(0, len(answers), 0)))
    return of(run)


class TestTexts:
    def test_their_lengths_and_what_they_are_from(self) -> None:
        found = of(chat(lambda row: None if row < 10 else "x" * row))

        assert found.basis == "90 answers from 1 of 1 committed chunk"
        [lengths] = found.histograms
        assert (lengths.of, lengths.least, lengths.most, lengths.mean, lengths.median) == ("characters", 10, 99, 54.5, 55)
        assert (sum(lengths.counts), len(lengths.counts)) == (90, distributions.BINS)
        assert (found.tokens_in, found.tokens_out) == (12.0, 5.0)
        assert (found.labels, found.warnings) == ({}, ())

    def test_few_short_answers_are_labels_with_shares(self) -> None:
        found = of(chat(lambda row: "yes" if row % 4 else "no"))

        assert [(each.value, each.count, each.share) for each in found.labels[""]] == [("yes", 75, 0.75), ("no", 25, 0.25)]
        assert found.warnings == ()

    def test_many_or_long_answers_are_no_labels(self) -> None:
        assert of(chat(lambda row: f"answer {row % 40}")).labels == {}
        assert of(chat(lambda row: f"{row % 2}" * 100)).labels == {}
        assert of(chat(lambda row: f"answer {row}", rows=25)).labels == {}

    def test_so_many_chunks_are_read_and_always_the_same(self) -> None:
        run = a_chat_run(MemoryStore(), rows=200)
        for number in range(20):
            run.commit(number)

        first, again = (distribution(run.store, run.run, chunks=3) for _ in range(2))

        assert (first.read, first.committed, first.answers) == (3, 20, 30)
        assert first == again

    def test_a_chunk_that_cannot_be_read_is_told(self) -> None:
        run = chat(str)
        path = run.work.chunk_path(0)
        run.put(path, bytes(obstore.get(run.store, path).bytes())[:-9])

        found = of(run)

        assert (found.read, found.answers, list(found.problems)) == (0, 0, [path])


class TestWarnings:
    @pytest.mark.parametrize(
        ("cut", "warned"), [(0, []), (89, []), (90, ["90 % of the answers that were read were cut"]), (100, ["All answers"])]
    )
    def test_nearly_all_cut(self, cut: int, warned: list[str]) -> None:
        found = of(chat(str, truncated=cut))

        assert [words[: len(start)] for words, start in zip(found.warnings, warned, strict=True)] == warned

    def test_nearly_all_empty(self) -> None:
        found = of(chat(lambda row: " \n" if row < 95 else str(row)))

        assert [words.partition(":")[0] for words in found.warnings] == ["95 % of the answers that were read are empty"]

    @pytest.mark.parametrize(
        ("kind", "answer"),
        [(pa.struct([("name", pa.string()), ("parts", pa.list_(pa.string()))]), {"name": " ", "parts": []}), (VECTORS, [])],
    )
    def test_an_open_run_has_as_many_empty_answers_as_its_seal_will_count(self, kind: pa.DataType, answer: Any) -> None:
        tally = Tally()
        tally.add(pa.array([answer] * ENOUGH, kind))

        assert with_answers(kind, [answer] * ENOUGH).empty == tally.empty == ENOUGH

    def test_all_empty_is_said_once(self) -> None:
        assert [words.partition(":")[0] for words in of(chat(lambda row: "")).warnings] == [
            "All answers that were read are empty"
        ]

    def test_nearly_all_equal(self) -> None:
        assert of(chat(lambda row: "no" if row < 98 else "yes")).warnings == (
            "98 % of the answers that were read are the same: 'no'",
        )
        assert of(chat(lambda row: "no" if row < 97 else "yes")).warnings == ()

    def test_a_few_answers_say_nothing(self) -> None:
        assert of(chat(lambda row: "no", rows=ENOUGH - 1)).warnings == ()
        assert of(chat(lambda row: "no", rows=ENOUGH)).warnings != ()


class TestOtherTasks:
    def test_a_classifier_has_labels_and_scores(self) -> None:
        answers = [{"label": "ab"[row % 2], "score": 0.25 + row % 2 / 2, "scores": [0.75, 0.25]} for row in range(40)]

        found = with_answers(CLASSIFIED, answers)

        assert {each.value: each.share for each in found.labels["label"]} == {"a": 0.5, "b": 0.5}
        assert [(each.of, each.least, each.most) for each in found.histograms] == [("score", 0.25, 0.75)]
        assert (found.equal, found.commonest) == (20, "a")

    def test_a_classifier_that_always_says_the_same_is_told(self) -> None:
        answers = [{"label": "a", "score": row / 100, "scores": [row / 100]} for row in range(40)]

        assert with_answers(CLASSIFIED, answers).warnings == ("All answers that were read are the same: 'a'",)

    def test_vectors_have_norms(self) -> None:
        found = with_answers(VECTORS, [array("f", [3.0, 4.0 * (row % 2)]) for row in range(30)])

        [norms] = found.histograms
        assert (norms.of, norms.least, norms.most, norms.mean) == ("norm", 3.0, 5.0, 4.0)
        assert (found.equal, found.labels) == (15, {})

    def test_equal_vectors_are_told(self) -> None:
        found = with_answers(VECTORS, [array("f", [3.0, 4.0])] * 30)

        assert found.warnings[0].startswith("All answers that were read are the same: 'vector ")

    def test_vectors_that_begin_alike_differ(self) -> None:
        found = with_answers(VECTORS, [array("f", [3.0, 4.0, row]) for row in range(30)])

        assert (found.equal, found.warnings) == (1, ())

    def test_scores_are_a_histogram(self) -> None:
        found = with_answers(pa.float32(), [row / 100 for row in range(50)])

        assert [(each.of, each.least) for each in found.histograms] == [("value", 0.0)]
        assert found.labels == {}

    def test_typed_answers_have_a_distribution_for_each_field(self) -> None:
        kind = pa.struct([("topic", pa.string()), ("stars", pa.int64()), ("sure", pa.bool_())])
        answers = [{"topic": "xy"[row % 2], "stars": row % 5, "sure": None if row < 4 else True} for row in range(40)]

        found = with_answers(kind, answers)

        assert {name: len(shares) for name, shares in found.labels.items()} == {"topic": 2, "stars": 5, "sure": 2}
        assert found.labels["sure"][1].value == "NULL"
        assert [each.of for each in found.histograms] == ["stars"]


class TestCompared:
    def test_what_is_clearly_different_is_said(self) -> None:
        then = chat(lambda row: "yes" if row % 2 else "no")
        now = chat(lambda row: "yes" if row % 10 else "perhaps I do not know", truncated=40)

        both = distributions.Compared(of(now), of(then))

        assert both.changes == (
            "cut: 40% of the answers, 0% before",
            "equal: 90% of the answers, 50% before",
            "label 'no': 0% of the answers, 50% before",
            "label 'yes': 90% of the answers, 50% before",
            "characters: 4.8 on average, 2.5 before",
        )

    def test_the_same_answers_are_no_change(self) -> None:
        run = chat(lambda row: "yes" if row % 2 else "no")

        found = compared(run.store, run.run, run.run)

        assert found.earlier == found.now
        assert found.changes == ()

    def test_without_an_earlier_run(self) -> None:
        run = chat(str)

        found = compared(run.store, run.run, None)

        assert (found.earlier, found.changes, found.to_json()["earlier"]) == (None, (), None)

    def test_few_answers_are_not_compared(self) -> None:
        few = replace(of(chat(str, rows=10)), cut=10)

        assert distributions.Compared(few, of(chat(str))).changes == ()


def test_a_sealed_run_has_the_exact_counts_of_its_seal() -> None:
    """Of the chunks that are read here, 75 % are the same; of all of them 82 %."""
    run = a_chat_run(MemoryStore(), rows=200)
    for number in range(20):
        run.commit(number, str)
    manifest = replace(run.seal(), truncated=11, empty=3, equal=164)
    run.put(run.run.manifest_path, canonical_json(manifest.to_json()))

    found = distribution(run.store, run.run, chunks=3)

    assert (found.answers, found.counted, found.exact) == (30, 200, True)
    assert (found.cut, found.empty, found.equal) == (11, 3, 164)
    before = replace(found, equal=20)
    assert compared_with(found, before) == ("equal: 82% of the answers, 10% before",)
    assert replace(found, equal=200).warnings[0].startswith("All answers are the same")


def compared_with(now: Distribution, then: Distribution) -> tuple[str, ...]:
    return distributions.Compared(now, then).changes
