"""P15: a night is planned from an estimate, the next from its record: what was planned, compared with what happened."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import obstore
from obstore.store import ObjectStore

from benchmarks import models
from benchmarks.emulated import emulated_bucket
from benchmarks.report import PLUGINS, Report, say
from benchmarks.runs import sentences
from local import hub, vllm
from local import models as local_models
from local.environments import python_of
from local.stack.parts import node_configuration
from nightshift.jobset.identity import digest_name
from nightshift.jobset.manifest.render import render
from nightshift.jobset.verdict.outcome import Ending, classify
from nightshift.jobset.verdict.starts import starts_of
from nightshift.planner.bills import seal_measured
from nightshift.planner.decisions import save_decision
from nightshift.planner.inputs import known_of
from nightshift.planner.plan import Decision, decide, fixed
from nightshift.planner.speeds import records_for
from nightshift.run.names import RunRef
from nightshift.run.observed.pod_startup import Starts, save_starts
from nightshift.run.opening import open_run
from nightshift.run.pins import Pins
from nightshift.run.plan import Plan, save_plan
from nightshift.settings import Settings
from nightshift.spec import JobSpec
from nightshift.store import open_store
from tests.builders import a_spec, bound, write_input
from tests.integration.runtime.agents import AgentProcess, LocalUnderTest

BUCKET: Final = "runs"
MAX_TOKENS: Final = 32
NEAR: Final = 0.15
LONGER: Final = 4
"""How many times as long the rows of the third night are: up to about 100 tokens, of the 256 that the model may read."""
POLL_S: Final = 0.25
METHOD: Final = """
Each job has three nights on the local runtime, with real vLLM on the CPU (float32, eager), one worker, and an empty bucket of
the Cloud Storage emulator. The code of the tasks opens, decides, renders, runs and seals each night, without Airflow and
BigQuery; its rows are written as an export would. The first plan is an estimate, whose start-up is the most that the profile
allows. The second night has half as many rows again and is planned from the first's record. The third has rows four times as
long, half as many as the first, and is planned from the second's record and the two mean lengths. Planned is the finish that
the decision names, without its margin: start-up, work, and what preemptions would take. Actual is the time from submitting
the JobSet to the last commit, by the store's clock.
"""


@dataclass(frozen=True)
class Case:
    """A job. rows: of the first night."""

    name: str
    spec: JobSpec
    rows: int


@dataclass(frozen=True)
class Night:
    """What was decided, and what happened. Seconds."""

    decision: Decision
    finish_s: float
    start_up_s: float
    work_s: float

    @property
    def off(self) -> float:
        """Planned / actual - 1."""
        return (self.decision.finish_s or 0.0) / self.finish_s - 1


def cases(quick: bool) -> list[Case]:
    """quick: models and nights so small that starting is most of the time."""
    engine = {"max_num_seqs": 64, "max_model_len": 256, "dtype": "float32", "args": {"enforce-eager": True}}
    if quick:
        llama = local_models.ensure(local_models.TINY_LLAMA)
        repository, revision = llama.repository, llama.revision
    else:
        repository, revision = models.ensure(models.LLAMA), models.REVISION
    common: dict[str, Any] = {"engine": engine, "deadline": "3h", "compute": {"profile": "cpu", "workers": 1}}
    embedding = a_spec(
        job="vectors", model={"name": "minilm", "uri": f"hf://{hub.REPOSITORY}", "revision": hub.REVISION}, **common
    )
    chat = a_spec(
        job="answers",
        task="chat",
        request={"user": "{{ text }}", "max_tokens": MAX_TOKENS, "temperature": 0.0},
        model={"name": "llama", "uri": f"hf://{repository}", "revision": revision},
        destination__column="answer",
        **common,
    )
    return [Case("embedding", embedding, 600 if quick else 9_000), Case("chat", chat, 200 if quick else 1_600)]


def measure(report: Report, folder: Path, quick: bool) -> None:
    for case in cases(quick):
        with _place(folder / case.name) as place:
            first = place.night(case.spec, case.rows, "2026-11-20")
            second = place.night(case.spec, case.rows * 3 // 2, "2026-11-21")
            longer = place.night(case.spec, case.rows // 2, "2026-11-22", sentences_each=LONGER)
        report.add(f"planned / actual finish, {case.name}, first night, an estimate", f"{1 + first.off:.2f}")
        name = f"planned / actual finish, {case.name}, second night, from its record"
        report.add(name, f"{1 + second.off:.3f}", "within 15%", abs(second.off) <= NEAR)
        name = f"planned / actual finish, {case.name}, rows {LONGER} times as long, from the second's record"
        report.add(name, f"{1 + longer.off:.3f}")
        for words, night in (("first", first), ("second", second), ("third", longer)):
            report.note(f"{case.name}, {words} night: {_words(night)}")


def _words(night: Night) -> str:
    decision, speed = night.decision, night.decision.speed
    return (
        f"{decision.rows:,} rows; planned {decision.finish_s or 0:.0f} s (start-up {speed.start_up_s:.0f}, work "
        f"{decision.work_s or 0:.0f} at {speed.rows_per_second:.1f} rows/s, {speed.basis}), "
        f"actual {night.finish_s:.0f} s (start-up {night.start_up_s:.0f}, work {night.work_s:.0f})"
    )


@dataclass(frozen=True)
class Place:
    """A bucket and a local runtime."""

    store: ObjectStore
    settings: Settings
    environment: dict[str, str]

    def night(self, spec: JobSpec, rows: int, partition: str, sentences_each: int = 1) -> Night:
        """A whole run. Raises AssertionError if it does not succeed."""
        texts = [" ".join([text] * sentences_each) for text in sentences(range(rows))]
        run = open_run(self.store, spec, partition, opened_by="benchmark")
        known = known_of(
            spec,
            Pins(),
            sample=lambda _, most: [{"text": text} for text in texts[:most]],
            records=records_for(self.store, spec),
            environment=self.environment,
        )
        decision = decide(spec, rows, known)
        plan = self._plan(spec, run, texts, decision)
        finish_s = self._infer(spec, run, plan)
        found = seal_measured(self.store, run, spec, plan).measured
        assert found is not None
        (measured,) = found["profiles"]
        return Night(decision, finish_s, sum(measured["start_up_s"].values()), measured["work_s"])

    def _plan(self, spec: JobSpec, run: RunRef, texts: list[str], decision: Decision) -> Plan:
        files = write_input(self.store, run, texts, per_file=len(texts), per_group=1000)
        workers, chunk_rows, reasons = fixed(decision, spec, len(texts), sum(file.size for file in files))
        say(f"{spec.job} {run.partition}: {'; '.join(reasons)}")
        plan = Plan(
            run.run_id, len(texts), chunk_rows, workers, files, reasons, decision=save_decision(self.store, run, decision)
        )
        return save_plan(self.store, run, bound(self.store, run, plan))

    def _infer(self, spec: JobSpec, run: RunRef, plan: Plan) -> float:
        """Seconds from the JobSet's start to the last commit."""
        runtime = LocalUnderTest(Path(self.settings.local_folder))
        name = digest_name(spec.job, "benchmark", run.prefix, 1)
        began = time.time()
        runtime.submit(render(spec, run, plan, self.settings, name=name))
        while (outcome := classify(seen := runtime.observe(name, closely=True))).ending is Ending.RUNNING:
            time.sleep(POLL_S)
        assert outcome.ending is Ending.SUCCEEDED, f"{outcome.explanation}\n{outcome.evidence}"
        save_starts(self.store, run, name, Starts(starts_of(seen)))
        committed = obstore.list(self.store, run.work(plan.uid).ledger_folder).collect()
        return max(each["last_modified"].timestamp() for each in committed) - began


@contextmanager
def _place(folder: Path) -> Iterator[Place]:
    folder.mkdir()
    with emulated_bucket(folder, BUCKET) as storage:
        shared = {"STORAGE_EMULATOR_HOST": storage.url}
        driver, server = Path(sys.executable).parent, python_of("server").parent
        agent = AgentProcess(folder, **node_configuration(shared, driver, server, {"PYTHONPATH": PLUGINS}))
        try:
            agent.start()
            settings = Settings(BUCKET, "local", runtime=f"local:{agent.state}")
            yield Place(open_store(f"gs://{BUCKET}"), settings, {**os.environ, **vllm.environment()})
        finally:
            agent.close()
