"""Previews without an engine: results, comparisons, the text for a terminal, the JobSet of a warm engine."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from obstore.store import MemoryStore

from nightshift.fields.terminal import Written
from nightshift.formats import UnreadableFormat
from nightshift.jobset.observation import Observation
from nightshift.planner.costs.prices import Prices
from nightshift.run.answers import compare
from nightshift.settings import Settings
from nightshift.store import ObjectStorage
from nightshift.trial import engine_jobset, keeper
from nightshift.trial.engine_folder import EngineFolder, is_id, new_id
from nightshift.trial.engine_jobset import JobSetEngines, NoEngine, folder_of, manifest_of, same_engine
from nightshift.trial.outcomes import EngineTaken
from nightshift.trial.preview import results
from nightshift.trial.preview.preview_text import lines
from nightshift.trial.preview.previews import Question, preview
from nightshift.trial.preview.results import NightEstimate, Preview, PreviewRow, Variant, result_path
from nightshift.trial.rows import kept_rows, rows_path
from nightshift.trial.world import World
from tests.builders import a_spec

pytestmark = pytest.mark.unit

SETTINGS = Settings(bucket="b", project="p", runtime="local:/state")
NIGHT = NightEstimate(2_000, 50_000, 4_000, "cpu", 1, 600.0, 0.2, None, "USD", "stated")


def variant(*rows: PreviewRow, file: str = "a.yaml") -> Variant:
    return Variant(file, "job", "m", "0" * 16, rows, 10, 4, "0.32.0", 1.5, NIGHT)


def row(id_: int, answer: Any = "yes", **more: Any) -> PreviewRow:
    return PreviewRow(key={"id": id_}, **{"prompt": f"Is {id_} odd?", "answer": answer, "finish_reason": "stop", **more})


def a_preview(*variants: Variant, **changes: Any) -> Preview:
    pairs = compare.pairs(*(each.rows for each in variants)) if len(variants) == 2 else ()
    return Preview(new_id(), "job", "2026-11-20", "2026-11-20T08:00:00+00:00", "me", variants, pairs, **changes)


def test_a_result_is_read_as_it_was_written() -> None:
    store = MemoryStore()
    made = a_preview(variant(row(1), row(2)), variant(row(1, "no"), row(2), file="b.yaml"), seconds={"engine": 1.5})

    results.save(store, made)

    assert results.load(store, "job", made.id) == made
    assert (made.changed_answers, made.changed_prompts) == (1, 0)
    assert results.load(store, "job", new_id()) is None
    assert results.load(store, "job", "../job/2026-11-20") is None


def test_the_newest_come_first_and_what_cannot_be_read_is_passed_over() -> None:
    store = MemoryStore()
    made = [a_preview(variant(row(number))) for number in range(3)]
    for each in made:
        results.save(store, each)
    obstore.put(store, result_path("job", "29990101T000000000Z-000000"), b"[]")
    obstore.put(store, result_path("job", "rows/0.parquet"), b"not a result")
    obstore.put(store, result_path("job-2", new_id()), b"another job's")

    assert results.newest(store, "job", 3) == sorted(made, key=lambda each: each.id, reverse=True)[:2]
    assert results.newest(store, "nobody", 3) == []


def test_a_result_of_a_later_release_is_refused_and_a_new_entry_is_not() -> None:
    body = a_preview(variant(row(1))).to_json()

    assert Preview.from_json({**body, "novelty": 1}).variants[0].rows[0].answer == "yes"
    with pytest.raises(UnreadableFormat):
        Preview.from_json({**body, "version": 99, "written_by": "9.9.9"})


def test_rows_that_the_release_before_kept_are_found() -> None:
    store, spec, said = (
        MemoryStore(),
        a_spec(),
        {"of_night": 2_000, "query_bytes": None, "read_at": "2026-11-20T08:00:00+00:00"},
    )
    body = io.BytesIO()
    pq.write_table(pa.table({"id": [1]}).replace_schema_metadata({b"nightshift.preview": json.dumps(said).encode()}), body)
    obstore.put(store, rows_path(spec, "2026-11-20", 20, "p"), body.getvalue())

    kept = kept_rows(store, spec, "2026-11-20", 20, "p")

    assert kept is not None
    assert (len(kept.table), kept.of_night, kept.kept) == (1, 2_000, True)


def test_values_are_kept_with_a_bounded_size_and_a_key_of_bytes_whole() -> None:
    kept = results.bounded({"id": bytes(range(20)), "text": "a" * 8_002, "vector": [0.5] * 20, "score": float("nan")})

    assert kept["id"] == bytes(range(20)).hex()
    assert kept["text"] == "a" * 8_000 + "... 2 more characters"
    assert kept["vector"] == [0.5] * 16 + ["... 4 more"]
    assert kept["score"] == "nan"


def test_ids_sort_by_time() -> None:
    assert is_id(new_id())
    assert not is_id("20261120T080000Z")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("yes", "yes", True),
        ("yes", "Yes", False),
        ([0.12345, -1.0], [0.12346, -1.0], True),
        ([0.12345, -1.0], [0.2, -1.0], False),
        ([1.0], [1.0, 2.0], False),
        ({"label": "a", "score": 0.51}, {"label": "a", "score": 0.5100001}, True),
        ({"label": "a"}, {"label": "b"}, False),
        (None, "", False),
    ],
)
def test_answers_that_differ_by_rounding_alone_are_the_same(one: Any, other: Any, same: bool) -> None:
    assert compare.alike(one, other) is same


def test_a_diff_is_by_words_and_has_all_of_both_texts() -> None:
    one, other = "The app crashes on start.", "The app is slow on start."

    found = compare.diff(one, other)

    assert found == (("=", "The app"), ("-", " crashes"), ("+", " is slow"), ("=", " on start."))
    assert "".join(text for kind, text in found if kind != "+") == one
    assert "".join(text for kind, text in found if kind != "-") == other


def test_a_row_that_becomes_a_dead_letter_counts_as_changed_and_a_row_of_one_file_alone_is_not_compared() -> None:
    dead = row(1, None, reason="too_long", message="9,000 tokens", finish_reason=None)

    (pair,) = compare.pairs((row(1), row(2)), (dead, row(3)))

    assert pair.answer is not None
    assert ("+", "dead letter, too_long: 9,000 tokens") in pair.answer


def test_the_text_shows_rows_dead_letters_and_the_night_and_no_control_characters() -> None:
    shown = written(
        lines(
            a_preview(
                variant(
                    row(1, "a\x1b[2Jb", finish_reason="length"), row(2, None, prompt=None, reason="bad_input", message="empty")
                )
            ),
            width=80,
        )
    )

    assert "2 rows of 2,000" in shown
    assert "a\N{REPLACEMENT CHARACTER}[2Jb" in shown
    assert "bad_input: empty" in shown
    assert "1 answered, 1 cut, 1 dead letter (1 bad_input)" in shown
    assert "about 10 min with 1 worker (cpu), there is no price for its machines; NIGHTSHIFT_PRICES or --prices" in shown


def test_a_struct_is_shown_in_the_order_of_its_schema_and_quoted() -> None:
    """Also one that an engine's keeper or the bucket has passed on as JSON."""
    answer = {"zebra": "Rome, Italy", "article": None, "count": 2, "tags": ["b, c", "a"]}
    made = a_preview(variant(row(1, answer)))
    store = MemoryStore()
    results.save(store, made)

    for each in (made, results.load(store, made.job, made.id), Preview.from_json(json.loads(results.ordered(made.to_json())))):
        assert each is not None
        assert 'zebra: "Rome, Italy", article: null, count: 2, tags: ["b, c", "a"]' in written(lines(each, width=200))
    assert list(made.to_json()["variants"][0]["rows"][0]["answer"]) == list(answer)


def test_two_files_are_side_by_side_within_the_width() -> None:
    made = a_preview(
        variant(row(1, "the quick brown fox jumps over the lazy dog " * 3)),
        variant(row(1, "the quick brown cat jumps over the lazy dog " * 3), file="b.yaml"),
    )

    for colour in (False, True):
        found = written(lines(made, colour=colour, width=80)).splitlines()
        sides = [line for line in found if " | " in line]
        assert any(("[-fox-]" in line or "\x1b[31mfox" in line) for line in sides)
        assert all(len(compare_width(line)) <= 80 for line in sides)


def test_a_change_of_the_template_is_shown_once_and_rows_then_have_answers_alone() -> None:
    files = [
        variant(*(row(number, prompt=f"{ask} the mood of ticket {number}?") for number in (1, 2)), file=file)
        for ask, file in (("What is", "a.yaml"), ("Name", "b.yaml"))
    ]

    shown = "\n".join(lines(a_preview(*files), width=100))

    assert shown.count("[-What is-]{+Name+} the mood of ticket 1?") == 1
    assert "the mood of ticket 2" not in shown
    assert "every prompt differs in the same words" in shown


def test_of_a_night_that_is_nearly_all_start_up_the_text_says_so() -> None:
    night = replace(NIGHT, start_up_s=570.0, start_up_at_most=True)
    shown = "\n".join(lines(a_preview(replace(variant(row(1)), night=night))))

    assert "at most 10 min, nearly all of it start-up, with 1 worker (cpu)" in shown
    measured = replace(night, start_up_at_most=False, start_up_s=400.0)
    assert "about 10 min, most of it start-up, with" in "\n".join(lines(a_preview(replace(variant(row(1)), night=measured))))


def test_a_model_that_no_engine_will_find_is_said_before_a_row_is_read(tmp_path: Path) -> None:
    def no(*_: Any) -> Any:
        raise AssertionError("it was asked")

    environment = {"HF_HUB_OFFLINE": "1", "NIGHTSHIFT_RUNTIME": "local:/state", "HF_HOME": str(tmp_path)}
    question = Question((("a.yaml", a_spec(model__uri="hf://nobody/nothing")),), "2026-11-20", 20, "me")
    world = World(MemoryStore(), SETTINGS, no, no, Prices("USD"), environment, no)

    with pytest.raises(NoEngine, match=r"^The engine will not find hf://nobody/nothing: .*make chat-model"):
        preview(question, world)


def written(lines: Iterable[str]) -> str:
    """As a terminal gets them."""
    terminal = io.StringIO()
    print(*lines, sep="\n", file=Written(terminal))
    return terminal.getvalue()


def compare_width(line: str) -> str:
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[0m"):
        line = line.replace(code, "")
    return line


def test_the_engine_is_the_same_for_another_prompt_and_another_one_for_other_flags() -> None:
    spec, prompt = a_spec(), a_spec(request__input="Text: {{ text }}")
    flags, job = a_spec(engine__max_num_seqs=9), a_spec(job="other")

    assert folder_of(spec, SETTINGS) == folder_of(prompt, SETTINGS)
    assert folder_of(spec, SETTINGS) != folder_of(flags, SETTINGS)
    assert folder_of(spec, SETTINGS) != folder_of(job, SETTINGS)
    assert same_engine(spec, job, SETTINGS)
    assert not same_engine(spec, flags, SETTINGS)
    two, three = (a_spec(compute__engines=n, engine__args={"gpu-memory-utilization": 0.2}) for n in (2, 3))
    assert not same_engine(two, three, SETTINGS)


def test_the_jobset_of_a_warm_engine_is_a_nights_with_another_program() -> None:
    spec = a_spec()
    folder = folder_of(spec, SETTINGS)

    manifest = manifest_of(spec, folder, SETTINGS)

    job = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]
    (driver,) = job["template"]["spec"]["containers"]
    variables = {each["name"]: each.get("value") for each in driver["env"]}
    assert job["completions"] == 1
    assert driver["command"] == ["python3", "-m", "nightshift.trial.keeper"]
    assert variables["NIGHTSHIFT_RUN_URL"] == f"gs://b/job/preview/{folder.digest}"
    assert json.dumps(manifest).count("nightshift.driver") == 0


@pytest.mark.parametrize("deadline", ["30m", "7d"])
def test_a_warm_engine_has_a_deadline_of_its_own(deadline: str) -> None:
    """One that cannot start kept its machine until the job's deadline when its asker was gone."""
    spec = a_spec(deadline=deadline)
    start_s = spec.compute.worker().start_seconds

    def deadline_of(machine_s: float | None) -> int:
        manifest = manifest_of(spec, folder_of(spec, SETTINGS), SETTINGS, machine_s)
        found: int = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["activeDeadlineSeconds"]
        return found

    # A machine, three starts, an hour of questions and the last one.
    assert deadline_of(None) == pytest.approx(6 * start_s + 3600 + 900, abs=60)
    assert deadline_of(7200.0) == pytest.approx(7200 + 3 * start_s + 3600 + 900, abs=60)


def test_an_engine_takes_questions_for_an_hour(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pod's deadline leaves time for the last answer only if none is begun later."""
    now = [0.0]
    monkeypatch.setattr(keeper, "time", SimpleNamespace(monotonic=lambda: now[0]))
    folder, objects = EngineFolder("job", "0" * 16), ObjectStorage(MemoryStore())
    taken: list[str] = []

    class Quick(keeper.Keeper):
        async def _answer(self, path: str) -> bool:
            taken.append(path)
            now[0] += 599.0
            await objects.create(folder.ask_path(f"{len(taken):032x}"), b"{}")
            return True

    async def asked() -> None:
        await objects.create(folder.ask_path("0" * 32), b"{}")
        await Quick(objects, folder).keep()

    asyncio.run(asked())

    assert len(taken) == 7, "the seventh begins at 3,594 s"


def test_who_waits_hears_that_the_pod_with_the_answer_is_gone_when_another_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """The new pod knows nothing of a question that the old one has taken."""
    monkeypatch.setattr(engine_jobset, "new_id", lambda: "asked")
    for name in ("PATIENT_S", "LOOK_S", "COMPUTE_S"):
        monkeypatch.setattr(engine_jobset, name, 0.3 if name == "COMPUTE_S" else 0.0)
    store, spec = MemoryStore(), a_spec()
    obstore.put(store, folder_of(spec, SETTINGS).taken_path("asked"), b"pod-1")
    seen = Observation({}, pods=({"metadata": {"name": "pod-2"}, "status": {"phase": "Running"}},))
    runtime: Any = SimpleNamespace(observe=lambda _: seen)

    with pytest.raises(EngineTaken, match="took pod pod-1 away while its engine answered"):
        JobSetEngines(store, SETTINGS, lambda: runtime, lambda _: None).answers(spec, pa.table({"id": [1]}))
