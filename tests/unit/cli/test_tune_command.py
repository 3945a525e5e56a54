"""`nightshift tune` from its arguments to its result, with engines of a known speed in place of real ones."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import obstore
import pyarrow as pa
import pytest
import yaml
from obstore.store import MemoryStore

from nightshift import exits
from nightshift.cli import tune as command
from nightshift.planner.costs.prices import Prices
from nightshift.planner.record import Record
from nightshift.planner.roofline import Tokens
from nightshift.planner.speed import Known
from nightshift.run.answers.compare import compared
from nightshift.settings import Settings
from nightshift.spec import JobSpec, load
from nightshift.spec.vllm_flags import affects_answers
from nightshift.trial import rows as sample
from nightshift.trial.engine_jobset import EngineFailed, cause_of
from nightshift.trial.outcomes import Cause, Computed, EngineTaken, Outcome
from nightshift.trial.tune import patch, tuner
from nightshift.trial.tune.points import Point
from nightshift.trial.tune.space import at, changes_of, patched, space_of
from nightshift.trial.tune.tune_text import point_words
from nightshift.trial.world import World
from tests.builders import a_spec
from tests.unit.tuner_surfaces import points

pytestmark = pytest.mark.unit

DAY = "2026-11-20"
JOB = """\
job: tickets  # of support
owner: support
start_date: 2026-11-01
source:
  query: SELECT id, body FROM `support.tickets` WHERE day = @partition
  key: [id]
task: chat
request: {user: "Label: {{ body }}", max_tokens: 8}
model: {name: m, uri: hf://org/m, revision: r1}
engine:
  max_num_seqs: 64
  max_model_len: 512  # tokens

destination: {table: support.labels, column: label}
deadline: 1h
compute: {profile: cpu}
"""


class Warehouse:
    asked = 0

    def query_bytes(self, spec: JobSpec, partition: str) -> int | None:
        return None

    def some_rows(self, spec: JobSpec, partition: str, rows: int) -> tuple[int, pa.Table]:
        self.asked += 1
        return 10_000, pa.table({"id": list(range(rows)), "body": ["word " * (1 + number % 50) for number in range(rows)]})


class PlantedEngines:
    """rate(job): rows a second, or why it fails. soak(job): of the longest rows, which come in their order; None if it holds.

    dies_at: the trial in which the process is killed. taken: how many of the next ones lose their machine;
    taken_from: all from this one on.
    """

    def __init__(
        self, rate: Callable[[JobSpec], float | Cause], soak: Callable[[JobSpec], Outcome | None] = lambda job: None
    ) -> None:
        self.rate, self.soak = rate, soak
        self.dies_at: int | None = None
        self.taken = 0
        self.taken_from: int | None = None
        self.asked: list[tuple[int, int, int]] = []
        self.dead = 0

    def trial(
        self, spec: JobSpec, names: Sequence[str], warm_up: pa.Table, rows: pa.Table, *, answers: bool = False
    ) -> Outcome:
        if self.dies_at is not None and len(self.asked) == self.dies_at:
            raise KeyboardInterrupt
        if self.taken or (self.taken_from is not None and len(self.asked) >= self.taken_from):
            self.taken = max(0, self.taken - 1)
            raise EngineTaken("The cluster took pod p away.")
        ids = rows.column("id").to_pylist()
        self.asked.append((len(names), spec.seats(), len(rows)))
        found = self.rate(spec)
        if isinstance(found, Cause):
            raise EngineFailed(found, "its last words")
        if ids != sorted(ids) and (seen := self.soak(spec)) is not None:
            return seen
        given = tuple(self.answer(spec, id_) for id_ in ids) if answers else ()
        return Outcome(given, 1_000, 100, len(rows) / found, "0.32.0", dead=self.dead)

    def answer(self, spec: JobSpec, id_: int) -> Computed:
        """One of ten differs under another type of the cache."""
        other = "kv-cache-dtype" in spec.engine.flags and id_ % 10 == 0
        return Computed(answer="other" if other else f"label {id_ % 3}")


class Tuned:
    """The command in surroundings of its own."""

    def __init__(self, folder: Path, engines: PlantedEngines) -> None:
        self.folder, self.engines, self.store, self.warehouse = folder, engines, MemoryStore(), Warehouse()
        self.file = folder / "tickets.yaml"
        self.file.write_text(JOB)

    def run(self, *, budget: str = "1h", rows: int = 200, as_json: bool = True, also: Sequence[str] = ()) -> int:
        options = command.Options(self.file, command.budget(budget), rows, DAY, list(map(command.setting, also)), as_json)
        return command.run(options, {"HF_HUB_OFFLINE": "1"}, self.world, self.engines)

    def world(self, environment: Mapping[str, str]) -> World:
        return World(
            self.store,
            Settings(bucket="b", project="p", runtime="local:/nowhere"),
            lambda **_: self.warehouse,
            lambda: pytest.fail("no runtime is needed"),
            Prices("USD", machines={"cpu": 3.6e9}),
            environment,
            lambda sentence: None,
        )

    def kept(self) -> list[str]:
        return sorted(
            meta["path"] for page in obstore.list(self.store, "tickets/_tune") for meta in page if "/trials/" in meta["path"]
        )


def by_seqs(job: JobSpec) -> float:
    return float(100 * min(job.seats(), 256) ** 0.5)


def test_the_result_is_a_sentence_a_plot_and_a_patch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))

    assert tuned.run(as_json=False) == exits.DONE

    shown, advice = capsys.readouterr()
    assert (
        advice
        == "The rows of a trial took 0.1 s, which other work on the machine can change: raise --rows for a sure result.\n"
    )
    first, *_ = shown.splitlines()
    assert first.startswith("  1  rows  the default: max_num_seqs 64, 4,096 tokens a step: 800.00 rows/s")
    assert "2.00 times the default (" in shown
    assert "-  max_num_seqs: 64\n" in shown
    assert "+  max_num_seqs: 256" in shown or "+  max_num_seqs: 512" in shown
    assert "rows/s in percent of the fastest trial" in shown


def test_a_tune_that_was_killed_goes_on_with_its_trials_and_reads_no_rows_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = Tuned(tmp_path, PlantedEngines(by_seqs))
    whole.run()
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.engines.dies_at = 4

    assert tuned.run() == exits.INTERRUPTED
    assert len(tuned.kept()) == 4
    tuned.engines.dies_at = None
    capsys.readouterr()
    assert tuned.run() == exits.DONE

    result = json.loads(capsys.readouterr().out)
    assert [asked[1:] for asked in tuned.engines.asked] == [asked[1:] for asked in whole.engines.asked]
    assert [asked[0] for asked in tuned.engines.asked[:6]] == [1, 1, 1, 1, 2, 1], "one trial has had two attempts"
    assert len(result["trials"]) == len(tuned.kept()) == len(whole.kept())
    assert tuned.warehouse.asked == 1


def test_what_fails_only_under_the_longest_rows_is_not_recommended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def preempted(job: JobSpec) -> Outcome | None:
        return Outcome((), 1, 1, 1.0, "0.32.0", preemptions=3.0) if job.seats() > 128 else None

    tuned = Tuned(tmp_path, PlantedEngines(by_seqs, preempted))

    assert tuned.run() == exits.DONE

    result = json.loads(capsys.readouterr().out)
    assert result["chosen"]["max_num_seqs"] == 128
    assert "preempted" in {trial["cause"] for trial in result["trials"]}
    soaks = {trial["point"]["max_num_seqs"]: trial["rows"] for trial in result["trials"] if trial["measure"] == "soak"}
    assert soaks[128] == 256


def test_rows_that_are_preempted_in_any_trial_are_a_failure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Tight(PlantedEngines):
        def trial(
            self, spec: JobSpec, names: Sequence[str], warm_up: pa.Table, rows: pa.Table, *, answers: bool = False
        ) -> Outcome:
            found = super().trial(spec, names, warm_up, rows, answers=answers)
            return replace(found, preemptions=1.0) if spec.seats() > 128 else found

    tuned = Tuned(tmp_path, Tight(by_seqs))

    assert tuned.run() == exits.DONE

    result = json.loads(capsys.readouterr().out)
    assert result["chosen"]["max_num_seqs"] == 128
    assert {trial["measure"] for trial in result["trials"] if trial["cause"] == "preempted"} == {"speed"}


def test_nothing_is_patched_if_nothing_is_faster_beyond_the_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(lambda job: 100.0))

    assert tuned.run() == exits.DONE

    result = json.loads(capsys.readouterr().out)
    assert (result["patch"], result["changes"]) == ("", {})
    assert result["sentence"].startswith("Nothing is faster than the job's own settings")


def test_a_default_that_does_not_hold_is_replaced_by_what_does(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(lambda job: Cause.OUT_OF_MEMORY if job.seats() > 32 else 50.0))

    assert tuned.run() == exits.DONE

    result = json.loads(capsys.readouterr().out)
    assert result["chosen"]["max_num_seqs"] <= 32
    assert "the job's own settings do not hold (out of memory)" in result["sentence"]
    assert result["changes"]["engine"]["max_num_seqs"] <= 32


def test_a_trial_that_loses_its_machine_is_repeated_and_rules_nothing_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.engines.taken = 2

    assert tuned.run() == exits.DONE

    result = json.loads(capsys.readouterr().out)
    assert tuned.engines.asked[0][0] == 3, "the third attempt of the first trial, which ends what the others have left"
    assert not [trial for trial in result["trials"] if trial["cause"]]


def test_a_tune_whose_machines_are_taken_again_and_again_ends_and_goes_on_later(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.engines.taken = 3

    assert tuned.run() == exits.RESUME
    assert (tuned.kept(), capsys.readouterr().err) == ([], "nightshift tune: The cluster took pod p away.\n")
    assert tuned.run() == exits.DONE


class TestSettingsThatMayChangeAnswers:
    """Tried only if the user asks, at the end, and beside the answers without them."""

    def test_speed_and_answers_are_told_and_the_patch_opens_a_new_run(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def rate(job: JobSpec) -> float:
            return by_seqs(job) * (1.5 if "kv-cache-dtype" in job.engine.flags else 1.0)

        tuned = Tuned(tmp_path, PlantedEngines(rate))

        assert tuned.run(as_json=False, also=["kv_cache_dtype=fp8"]) == exits.DONE

        shown = capsys.readouterr().out
        assert "With kv-cache-dtype=fp8: 1.50 times the chosen settings (" in shown
        assert re.search(r"[89]\d\.\d% of 200 answers are the same without it\. It opens a new run\.", shown)
        before, _, after = shown.partition("This patch opens a new run, because answers may change:")
        assert "kv-cache-dtype: fp8" not in before
        assert "+    kv-cache-dtype: fp8" in after
        asked = len(tuned.engines.asked)

        assert tuned.run(also=["kv-cache-dtype=fp8"]) == exits.DONE, "what is known is not tried again"
        (found,) = json.loads(capsys.readouterr().out)["also"]
        assert (len(tuned.engines.asked), found["same"]["rows"], found["better"]) == (asked, 200, True)
        assert 0.8 < found["same"]["equal"] < 1

    def test_one_that_fails_is_no_patch(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        def rate(job: JobSpec) -> float | Cause:
            return Cause.CANNOT_START if job.engine.dtype == "float16" else by_seqs(job)

        tuned = Tuned(tmp_path, PlantedEngines(rate))

        assert tuned.run(also=["dtype=float16"]) == exits.DONE

        (found,) = json.loads(capsys.readouterr().out)["also"]
        assert (found["patch"], found["sentence"]) == ("", "With dtype=float16: the engine does not start.")

    def test_none_is_tried_that_nobody_asks_for(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
        tuned.run()

        assert json.loads(capsys.readouterr().out)["also"] == []

    def test_vectors_are_compared_by_their_cosine(self) -> None:
        own = [Computed(answer=[1.0, 0.0]), Computed(answer=[0.0, 2.0])]
        other = [Computed(answer=[1.0, 0.0]), Computed(answer=[2.0, 2.0])]

        found = compared(own, other)

        assert (found.rows, found.equal) == (2, 0.5)
        assert found.cosine == pytest.approx(((1 + 0.5**0.5) / 2, 0.5**0.5))
        assert "cosine of their vectors is 0.8536 on average, 0.7071 at least" in found.words

    @pytest.mark.parametrize(
        ("text", "words"),
        [("fp8", "is no setting"), ("dtype=", "is no setting"), ("max-num-batched-tokens=4", "changes no answer")],
    )
    def test_what_is_none_is_refused(self, text: str, words: str) -> None:
        with pytest.raises(argparse.ArgumentTypeError, match=words):
            command.setting(text)

    def test_a_value_that_no_job_may_have_ends_it_before_a_trial(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        tuned = Tuned(tmp_path, PlantedEngines(by_seqs))

        assert tuned.run(also=["dtype=fp99"]) == exits.BAD_INPUT
        assert "a job cannot have dtype=fp99: Input should be 'auto'" in capsys.readouterr().err
        assert tuned.engines.asked == []


def test_no_engine_that_starts_is_a_result_that_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(lambda job: Cause.CANNOT_START))

    assert tuned.run() == exits.FAILED
    assert "No settings held the longest rows" in capsys.readouterr().out


def test_a_budget_ends_it_and_a_larger_one_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.run(budget="0.01")  # of money: a moment of a machine
    few = len(tuned.kept())
    assert "raise --budget" in capsys.readouterr().out

    tuned.run()

    assert 1 <= few < len(tuned.kept())


def test_what_another_wrote_among_the_trials_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.run()
    first, *_ = tuned.kept()
    for body in (b"[]", b"{}", b'{"version": 99}'):
        obstore.put(tuned.store, first, body)

        assert tuned.run() == exits.BAD_INPUT
        assert f"{first} is not a trial" in capsys.readouterr().err


def test_dead_letters_end_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.engines.dead = 50

    assert tuned.run() == exits.FAILED
    assert "50 of 200 rows are dead letters" in capsys.readouterr().err
    assert tuned.kept() == []


def test_the_planner_finds_the_speed_of_the_chosen_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nightshift.planner.speeds import records_for

    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.run()
    changed = json.loads(capsys.readouterr().out)["changes"]["engine"]
    spec = load(tuned.file)
    chosen = spec.model_copy(update={"engine": spec.engine.model_copy(update=changed)})

    found: Record = records_for(tuned.store, chosen)["cpu"]

    assert found.rows_per_second == pytest.approx(by_seqs(chosen), rel=0.01)
    assert found.run.startswith("tickets/_tune/")


@pytest.mark.parametrize("text", ["0", "-1", "soon", "30 m", "1e9"])
def test_a_budget_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(Exception, match="neither a time"):
        command.budget(text)


def test_a_point_changes_nothing_that_affects_answers() -> None:
    spec = a_spec(engine__args={"max_num_batched_tokens": 4096, "enforce-eager": True})
    space = space_of(spec)

    for point in points(space):
        job = at(spec, point, space.default)
        assert job.semantic() == spec.semantic()
        assert job.seats() == point.max_num_seqs
    assert not any(
        affects_answers(name) for point in points(space) for name in changes_of(spec, point, space.default).get("args", {})
    )
    assert space.default.max_num_batched_tokens == 4096
    assert at(spec, Point(8192, 8), space.default).engine.args == {"enforce-eager": True, "max-num-batched-tokens": 8192}


class TestEngines:
    """How many share an accelerator."""

    def test_each_trial_has_as_many_as_its_point(self) -> None:
        spec = a_spec(compute={"profile": "gpu-h100", "engines": 2})
        space = space_of(spec, servers=2)

        assert space.default.engines == 2
        assert space.values("engines") == (1, 2, 4)
        assert space.values("api_servers") == (1, 2), "the driver keeps four busy in all"
        for point in points(space):
            worker = at(spec, point, space.default).compute.worker()
            assert (worker.engines, worker.tensor_parallel) == (point.engines, point.tensor_parallel)
            assert point.engines == 1 or point.tensor_parallel == 1

    @pytest.mark.parametrize(
        ("compute", "args", "servers", "tried"),
        [
            ({"profile": "gpu-h100"}, {}, 1, (1,)),
            ({"profile": "gpu-h100"}, {}, 2, (1, 2, 4)),
            ({"profile": "gpu-h100", "tensor_parallel": 2}, {}, 2, (1,)),
            ({"profile": "gpu-h100"}, {"gpu-memory-utilization": 0.5}, 2, (1, 2)),
            ({"profile": "gpu-h100", "engines": 3}, {}, 1, (1, 2, 3, 4)),
            ({"profile": "tpu-v6e"}, {}, 2, (1,)),
            ({"profile": "cpu", "engines": 2}, {}, 1, (1, 2, 4)),
        ],
    )
    def test_they_are_tried_where_something_else_may_be_the_bound_and_they_fit(
        self, compute: dict[str, Any], args: dict[str, Any], servers: int, tried: tuple[int, ...]
    ) -> None:
        assert space_of(a_spec(compute=compute, engine__args=args), servers=servers).values("engines") == tried

    def test_a_job_file_is_told_to_have_more(self) -> None:
        spec = a_spec(compute={"profile": "gpu-h100"})
        space = space_of(spec, servers=2)
        point = replace(space.default, engines=2)

        assert changes_of(spec, point, space.default)["engines"] == 2
        assert point_words(point, space).endswith("2 API servers, 2 engines, tensor_parallel 1")


def test_a_space_is_around_the_job_and_within_what_fits() -> None:
    space = space_of(a_spec(engine__max_num_seqs=48), seats=100)

    assert space.default == Point(2048, 48)
    assert space.values("max_num_seqs") == (8, 16, 32, 48, 128, 256)
    assert space.values("tensor_parallel") == (1,)
    few = space_of(a_spec(engine__max_num_seqs=4, engine__max_model_len=256)).default
    assert few.max_num_batched_tokens == 1024, "as vLLM has it: no more than all rows at once"
    pooling = space_of(a_spec(engine__max_model_len=4096), ("--runner=pooling",))
    assert min(pooling.values("max_num_batched_tokens")) == 4096
    wide = space_of(a_spec(compute__profile="gpu-h100"))
    assert wide.default.max_num_batched_tokens == 8192
    for profile, tokens in (("gpu-a100-80gb", 2048), ("gpu-b200-spot", 16384)):
        default = space_of(a_spec(compute__profile=profile, engine__max_model_len=32_768)).default
        assert default.max_num_batched_tokens == tokens, "a pooling model that may not cut gets what vLLM takes"
    assert wide.values("tensor_parallel") == (1, 2, 4, 8)


def test_api_servers_are_tried_where_a_night_has_several_and_stated_only_in_a_trial_or_if_they_change() -> None:
    spec = a_spec(compute__profile="gpu-h100")
    space = space_of(spec, servers=4)
    default, one = space.default, replace(space.default, api_servers=1)

    assert (default.api_servers, space.values("api_servers")) == (4, (1, 2, 4))
    assert at(spec, default, default).engine.args == {"api-server-count": 4}, "the night's engine gets them by its rows"
    assert (patched(spec, default, default), changes_of(spec, default, default)) == (spec, {})
    assert at(spec, one, default).engine.flags.get("api-server-count") == 1
    assert changes_of(spec, one, default)["args"]["api-server-count"] == 1
    assert space_of(spec).values("api_servers") == (1,), "rows are not short"
    assert space_of(a_spec(), servers=1).values("api_servers") == (1,)
    stated = a_spec(engine__args={"api_server_count": 2})
    assert space_of(stated).values("api_servers") == (1, 2), "as the author has them, also on a CPU"
    assert at(stated, space_of(stated).default, space_of(stated).default) == stated


def test_rows_that_are_short_make_api_servers_an_axis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the planner finds of the sampled rows, as for a night."""
    seen: list[Tokens] = []

    def servers(spec: JobSpec, known: Known) -> dict[str, int]:
        seen.append(known.tokens)
        return {"gpu-h100": 2}

    monkeypatch.setattr(tuner, "api_servers_of", servers)
    tuned = Tuned(tmp_path, PlantedEngines(by_seqs))
    tuned.file.write_text(JOB.replace("profile: cpu", "profile: gpu-h100"))
    tuned.engines.dies_at = 1

    assert tuned.run() == exits.INTERRUPTED

    trial, *_ = tuned.kept()
    space = json.loads(obstore.get(tuned.store, f"{trial.partition('/trials/')[0]}/space.json").bytes().to_bytes())
    assert not seen[0].assumed
    assert (space["default"]["api_servers"], space["axes"]["api_servers"]) == (2, [1, 2, 4])


def test_a_sample_has_each_length_and_each_beginning_in_its_share() -> None:
    texts = [f"{'refund' if number % 4 else 'crash'} {'x' * (number % 200)}" for number in range(4_000)]

    chosen = sample.stratified(texts, 200)

    picked = [texts[index] for index in chosen]
    assert len(set(chosen)) == 200
    assert chosen == sorted(chosen)
    assert sum(text.startswith("crash") for text in picked) == pytest.approx(50, abs=12)
    assert sum(map(len, picked)) / 200 == pytest.approx(sum(map(len, texts)) / 4_000, rel=0.03)
    assert max(map(len, picked)) > 195
    assert sample.stratified(texts[:3], 10) == [0, 1, 2]


def test_a_soak_has_the_longest_rows_and_as_many_as_it_needs() -> None:
    assert sample.longest(["a", "ccc", "bb"], 2) == [1, 2]
    assert sample.longest(["a", "ccc", "bb"], 5) == [1, 2, 0, 1, 2]


@pytest.mark.parametrize(
    ("text", "changes"),
    [
        (JOB, {"engine": {"max_num_seqs": 128}}),
        (JOB, {"engine": {"args": {"max-num-batched-tokens": 4096}}}),
        (JOB, {"engine": {"max_num_seqs": 128, "args": {"max-num-batched-tokens": 4096}}, "compute": {"tensor_parallel": 2}}),
        ("engine: {max_num_seqs: 8}\n", {"engine": {"args": {"max-num-batched-tokens": 4096}}}),
        ("engine: {args: {a: 1}, max_num_seqs: 8}", {"engine": {"args": {"max-num-batched-tokens": 4096}}}),
        ("engine:\n  args:\n    max_num_batched_tokens: 1 # why\n", {"engine": {"args": {"max-num-batched-tokens": 4096}}}),
        ("engine:\n  args:\n    a: |\n      text\n\nnext: 1\n", {"engine": {"args": {"max-num-batched-tokens": 4096}}}),
        ("engine:\n  args:\n  - a\n  max_num_seqs: 8\n", {"engine": {"max_num_seqs": 9}}),
    ],
)
def test_a_patch_changes_its_lines_alone(text: str, changes: dict[str, Any]) -> None:
    other = patch.changed(text, changes)

    before, after = yaml.safe_load(text), yaml.safe_load(other)
    if "max_num_seqs" in changes["engine"]:
        assert after["engine"]["max_num_seqs"] == changes["engine"]["max_num_seqs"]
    if "args" in changes["engine"]:
        assert 4096 in after["engine"]["args"].values()
    assert {name: value for name, value in after.items() if name not in changes} == {
        name: value for name, value in before.items() if name not in changes
    }
    kept = set(text.splitlines()) - set(other.splitlines())
    assert len(kept) <= 2
    assert other.count("#") == text.count("#")


def test_a_file_that_cannot_be_patched_is_said_to_be_so() -> None:
    with pytest.raises(ValueError, match=r"no place|line by line"):
        patch.changed("engine: &e {a: 1}\nother: *e\n", {"other": {"b": 2}, "new": {"c": 1}})


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", Cause.OUT_OF_MEMORY),
        ("ValueError: No available memory for the cache blocks.", Cause.OUT_OF_MEMORY),
        ("max seq len (4096) is larger than the available KV cache memory (1.2 GiB)", Cause.OUT_OF_MEMORY),
        ("LocalEntryNotFoundError: no such model", Cause.CANNOT_START),
    ],
)
def test_an_engine_s_last_words_say_why_it_ended(words: str, cause: Cause) -> None:
    assert cause_of(words, Cause.CANNOT_START) is cause
