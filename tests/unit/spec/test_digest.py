"""A run's digest covers what changes answers and nothing else: pairs of random jobs, and jobs of a release to come."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import pytest
from pydantic import create_model

from nightshift.fields.section import Introduced, Section, introduced
from nightshift.run.names import canonical_json, run_digest
from nightshift.run.opening import open_run
from nightshift.run.plan import load_plan
from nightshift.spec import JobSpec
from nightshift.spec.engine import Engine
from nightshift.spec.model import Model, Source
from nightshift.spec.vllm_flags import PERFORMANCE, affects_answers
from nightshift.store import open_store
from nightshift.tasks import TASK_KINDS, request_model
from tests.builders import a_spec
from tests.releases import JOB, STATES, place, releases

pytestmark = pytest.mark.unit

SEED: Final = 15
PAIRS: Final = 3000
KEPT: Final = Path(__file__).parents[1] / "introduced_defaults.json"

QUERY: Final = "SELECT id, text FROM `d.t` WHERE day = @partition"
ANSWERS: Final[dict[str, list[Any]]] = {
    "source__query": [QUERY, f"{QUERY} AND id > 0"],
    "source__key": [["id"], ["id", "text"]],
    "source__pass_through": [[], ["price"], ["price", "text2"]],
    "model__name": ["m", "n"],
    "model__uri": ["hf://org/m", "gs://models/m"],
    "model__revision": ["r1", "r2"],
    "engine__max_model_len": [None, 256, 512],
    "engine__dtype": ["auto", "float16", "float32"],
    "every": [None, "10m"],
    "flag:seed": [None, 0, 1, False],
    "flag:kv-cache-dtype": [None, "auto", "fp8"],
    "flag:quantization": [None, "fp8"],
    "flag:enforce-eager": [None, True, False],
    "flag:enable-prefix-caching": [None, True],
    "flag:of-a-release-to-come": [None, 1, "1", True, 1.5],
}
"""By path the values of what affects answers, written down again here: the product's own list is under test."""
REQUESTS: Final[dict[str, dict[str, list[Any]]]] = {
    "embedding": {"input": ["{{ text }}", "{{ id }}"], "overlong": ["dead_letter", "truncate"], "dimensions": [None, 2]},
    "chat": {
        "user": ["{{ text }}", "{{ id }}"],
        "system": [None, "Be brief."],
        "max_tokens": [256, 255],
        "temperature": [None, 0, 0.5],
        "seed": [None, 0, 1],
        "stop": [[], ["#"]],
        "truncated": ["keep", "dead_letter"],
        "chat_template_kwargs": [None, {"enable_thinking": False}, {"enable_thinking": True}],
    },
}
OTHERS: Final[dict[str, list[Any]]] = {
    "engine__max_num_seqs": [1, 8, 64],
    "flag:max-num-batched-tokens": [None, 2048],
    "flag:gpu_memory_utilization": [None, 0.8, 0.9],
    "flag:disable-log-stats": [None, True],
    "flag:async-scheduling": [None, False],
    "request__timeout": ["10m", "1h"],
    "source__watch": [None, "gs://shop/texts"],
    "source__settle": [None, "2m"],
    "source__order": ["auto", "none", ["id"]],
    "deadline": ["2h", "9h"],
    "compute": [{"profile": "cpu"}, {"profile": "gpu-l4-spot", "workers": 9}],
    "owner": ["team", "others"],
    "tags": [[], ["night"]],
    "description": [None, "Vectors."],
    "destination__table": ["d.out", "d.other"],
    "dead_letters": [{"tolerate": 0}, {"tolerate": "1%"}],
    "queue": [None, "nightly"],
    "priority": [None, "low"],
    "chunk_rows": [None, 7],
    "schedule": [None, "0 2 * * *"],
}
"""What does not."""


def drawn(draw: random.Random) -> tuple[JobSpec, bytes]:
    """A random job, and what decides its answers."""
    task = draw.choice(sorted(REQUESTS))
    answers = {path: draw.choice(values) for path, values in ANSWERS.items()}
    request = {name: draw.choice(values) for name, values in REQUESTS[task].items()}
    others = {path: draw.choice(values) for path, values in OTHERS.items()}
    args = {path[5:]: value for path, value in (answers | others).items() if path.startswith("flag:") and value is not None}
    changes = {path: value for path, value in (answers | others).items() if not path.startswith("flag:")}
    written = {name: value for name, value in request.items() if value is not None or name == "seed"}
    body = {"task": task, "request": {**written, "timeout": changes.pop("request__timeout")}, "engine__args": args}
    # JSON tells 0, 0.0 and false apart, as vLLM's command line does; a temperature is a float however it is written.
    if request.get("temperature") is not None:
        request["temperature"] = float(request["temperature"])
    said = canonical_json({"task": task, "request": request, "answers": answers})
    return a_spec(**{"engine": {"max_num_seqs": 8}, **body, **changes}), said


def digest(spec: JobSpec) -> str:
    return run_digest("job", "2026-11-20", spec.semantic())


class TestRandomJobs:
    def test_two_jobs_share_a_digest_exactly_if_their_answers_cannot_differ(self) -> None:
        draw = random.Random(SEED)
        jobs = [drawn(draw) for _ in range(PAIRS)]

        digests: dict[str, bytes] = {}
        for spec, said in jobs:
            assert digests.setdefault(digest(spec), said) == said, spec
        assert len(digests) == len({said for _, said in jobs})

    @pytest.mark.parametrize("path", [*OTHERS])
    def test_a_setting_that_does_not_affect_answers_never_changes_the_digest(self, path: str) -> None:
        draw = random.Random(SEED)
        for _ in range(30):
            spec, _ = drawn(draw)
            body = json.loads(spec.model_dump_json())
            for value in OTHERS[path]:
                assert digest(JobSpec.model_validate(changed(body, path, value))) == digest(spec)

    @pytest.mark.parametrize("path", [*ANSWERS])
    def test_a_setting_that_affects_answers_always_changes_it(self, path: str) -> None:
        draw = random.Random(SEED)
        for _ in range(30):
            body = json.loads(drawn(draw)[0].model_dump_json())
            found = {digest(JobSpec.model_validate(changed(body, path, value))) for value in ANSWERS[path]}
            assert len(found) == len(ANSWERS[path])


def changed(body: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    body = copy.deepcopy(body)
    if path.startswith("flag:"):
        body["engine"]["args"].pop(path[5:], None)
        if value is not None:
            body["engine"]["args"][path[5:]] = value
        return body
    *parents, name = path.split("__")
    target = body
    for parent in parents:
        target = target[parent]
    target[name] = value
    return body


class TestLaterReleases:
    """A release to come is simulated by subclasses of the models."""

    @pytest.mark.parametrize("default", [0, False, None, "", [], {"a": 1}, 2.5])
    def test_a_new_field_with_a_default_opens_no_new_run(self, default: Any) -> None:
        later_engine = create_model("Engine", __base__=Engine, novelty=(Any, default))
        later_model = create_model("Model", __base__=Model, novelty=(Any, default))
        later = create_model(
            "JobSpec", __base__=JobSpec, engine=(later_engine, ...), model=(later_model, ...), novelty=(Any, default)
        )
        body = a_spec().model_dump(mode="json")

        assert digest(later.model_validate(body)) == digest(a_spec())
        # JSON tells false from 0, and 1 from 1.0, where Python does not.
        others = [value for value in ("something else", 0, 0.0, False) if json.dumps(value) != json.dumps(default)]
        for part in ("engine", "model", None):
            for value in others:
                other = copy.deepcopy(body)
                (other if part is None else other[part])["novelty"] = value
                assert digest(later.model_validate(other)) != digest(a_spec())

    def test_a_new_section_is_told_apart_by_what_of_it_affects_answers(self) -> None:
        class Novelty(Section):
            OPERATIONAL: ClassVar = ("speed",)
            grade: int = 1
            speed: int = 1

        later = create_model("JobSpec", __base__=JobSpec, novelty=(Novelty, Novelty(grade=2)))

        def of(**novelty: int) -> str:
            return digest(later.model_validate({**a_spec().model_dump(mode="json"), "novelty": novelty}))

        assert digest(later.model_validate(a_spec().model_dump(mode="json"))) == digest(a_spec())
        assert of(grade=2) == of(grade=2, speed=9) == digest(a_spec())
        assert len({of(), of(grade=2), of(grade=3)}) == 3

    def test_a_changed_default_is_another_run_and_the_old_value_finds_the_old_one(self) -> None:
        before = create_model("Engine", __base__=Engine, cut=(int, 5))
        after = create_model("Engine", __base__=Engine, cut=(Annotated[int, Introduced(5)], 7))

        def said(model: type[Section], **more: int) -> dict[str, Any]:
            return model.model_validate({"max_num_seqs": 8, **more}).semantic()

        assert said(before) == said(after, cut=5) == {}
        assert said(after) == said(before, cut=7) == {"cut": 7}

    def test_no_default_has_changed_since_its_field_came(self) -> None:
        """Change a default only with `Introduced`; write a new field down with ``python -m tests.unit.spec.test_digest``."""
        assert json.loads(json.dumps(now())) == json.loads(KEPT.read_text())


def now() -> dict[str, Any]:
    """What an absent entry of a digest stands for, by section and field."""
    sections: list[type[Section]] = [Engine, Model, Source, *(request_model(task) for task in TASK_KINDS), JobSpec]
    return {
        f"{section.__module__.rpartition('.')[2]}.{section.__name__}.{name}": introduced(field)
        for section in sections
        for name, field in section.model_fields.items()
        if name not in section.OPERATIONAL and not field.is_required()
    }


class TestFlags:
    def test_a_run_with_a_text_where_now_a_number_is_wanted_goes_on(self) -> None:
        """0.2.0 took any text for a flag that does not affect answers. Its runs are read, and the job as it is now decides."""
        frozen = a_spec(engine__args={"seed": 7, "max-log-len": "--host=0.0.0.0", "log-config-file": "/etc/x.json"})
        job = a_spec(engine__args={"seed": 7, "max_log_len": 100})

        assert frozen.semantic() == job.semantic()
        assert frozen.under_terms_of(job).engine.args == {"seed": 7, "max_log_len": 100}

    def test_an_unknown_flag_affects_answers(self) -> None:
        assert affects_answers("of-a-release-to-come")
        assert not affects_answers("max_num_batched_tokens")

    def test_each_flag_has_one_family(self) -> None:
        flags = [flag for family in PERFORMANCE for flag in family.flags]

        assert len(flags) == len(set(flags))

    def test_the_job_as_it_is_now_decides_what_does_not_affect_answers(self) -> None:
        frozen = a_spec(engine={"max_num_seqs": 8, "dtype": "float32", "args": {"seed": 7, "async_scheduling": True}})
        now = a_spec(
            engine={"max_num_seqs": 64, "args": {"seed": 8, "max-num-batched-tokens": 4096}},
            request={"input": "{{ id }}", "rows_per_request": 16, "timeout": "1h"},
            destination__table="d.other",
        )

        found = frozen.under_terms_of(now)

        assert found.semantic() == frozen.semantic()
        assert found.engine.max_num_seqs == 64
        assert found.engine.args == {"seed": 7, "max-num-batched-tokens": 4096}
        assert (found.request.timeout, found.rows_per_request, found.destination.table) == ("1h", 16, "d.other")
        assert frozen.with_tuning(now.tuning()).engine.max_num_seqs == 64
        assert frozen.with_tuning(now.tuning()).semantic() == frozen.semantic()
        assert frozen.with_tuning({"engine": {"dtype": "auto", "novelty": 1}, "novelty": {}}) == frozen
        with pytest.raises(ValueError, match="max_num_seqs"):
            frozen.with_tuning({"engine": {"max_num_seqs": "many"}})


@pytest.mark.parametrize("release", releases())
class TestEarlierReleases:
    """Runs whose names may be digests by an older rule."""

    def test_each_is_found_though_performance_has_been_tuned_since(self, release: str) -> None:
        tuned = JobSpec.model_validate({**JOB, "engine": {**JOB["engine"], "max_num_seqs": 99}, "deadline": "9h"})
        for state, partition in STATES.items():
            store = open_store("memory:///")
            kept = place(release, state, store)
            assert open_run(store, tuned, partition, opened_by="now") == kept

    def test_another_job_does_not_find_it(self, release: str) -> None:
        store = open_store("memory:///")
        kept = place(release, "half", store)
        other = JobSpec.model_validate({**JOB, "model": {**JOB["model"], "revision": "r2"}})

        assert open_run(store, other, STATES["half"], opened_by="now") != kept

    def test_a_run_of_today_comes_first(self, release: str) -> None:
        store, spec = open_store("memory:///"), JobSpec.model_validate(JOB)
        kept = place(release, "sealed", store)
        tables = load_plan(store, kept).source.tables  # type: ignore[union-attr]
        asked: dict[str, Any] = {"project": "acme", "tables": tables}

        assert open_run(store, spec, STATES["sealed"], opened_by="later", **asked) == kept
        fresh = open_run(store, spec, STATES["sealed"], opened_by="now", fresh=True, **asked)
        assert fresh.digest == run_digest(spec.job, STATES["sealed"], spec.semantic(), "acme") != kept.digest
        assert open_run(store, spec, STATES["sealed"], opened_by="later", **asked) == fresh

    def test_one_whose_rows_came_from_other_tables_is_not_found(self, release: str) -> None:
        """Its name does not say whose table an unqualified name meant."""
        store, spec = open_store("memory:///"), JobSpec.model_validate(JOB)
        kept = place(release, "sealed", store)

        found = open_run(store, spec, STATES["sealed"], opened_by="later", project="other", tables=["other.kept.texts"])

        assert found != kept
        assert open_run(store, spec, STATES["sealed"], opened_by="later", project="acme", tables=["acme.kept.texts"]) != found

    def test_one_that_is_superseded_is_not_returned(self, release: str) -> None:
        store, spec = open_store("memory:///"), JobSpec.model_validate(JOB)
        kept = place(release, "unfinished", store)

        found = open_run(store, spec, STATES["unfinished"], opened_by="now", superseded=lambda run: run == kept)

        assert found != kept
        assert found.digest == run_digest(spec.job, STATES["unfinished"], spec.semantic())


if __name__ == "__main__":
    KEPT.write_text(json.dumps(now(), indent=1, sort_keys=True) + "\n")
