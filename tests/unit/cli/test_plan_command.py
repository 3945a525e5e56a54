"""`nightshift plan` as a person types it, without a warehouse and without a cloud."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
import yaml
from obstore.store import LocalStore, ObjectStore

from nightshift.cli import main
from nightshift.hooks.deployment import Deployment
from nightshift.planner.record import Record, workload_of
from nightshift.planner.speeds import path_of
from nightshift.run.names import canonical_json
from nightshift.spec import load
from nightshift.store import StoreUnavailable
from tests.canned_cluster import CannedApi, Cluster
from tests.unit import model_configs as configs

pytestmark = pytest.mark.unit

Plan = Callable[..., "Done"]
Told = Callable[..., tuple[int, dict[str, Any]]]
ROOT = Path(__file__).resolve().parents[3]
DAY = ("--partition", "2026-11-20")
ROWS = ("--rows", "1000000")


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Plan:
    """The command, on a machine that has no deployment's variables and no way to the Hub."""

    def run(*words: str, **variables: str) -> Done:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "NIGHTSHIFT_"))}
        environment |= {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": "/nonexistent", **variables}
        monkeypatch.setattr(os, "environ", environment)
        try:
            code = main(["plan", *words])
        except SystemExit as ended:
            code = int(ended.code or 0)
        return Done(code, *capsys.readouterr())

    return run


@pytest.fixture
def job(tmp_path: Path) -> Path:
    body = yaml.safe_load((ROOT / "dags/jobs/package-embeddings.yaml").read_text())
    body["task"], body["request"] = "chat", {"user": "{{ summary }}", "max_tokens": 256}
    body["engine"] = {"max_num_seqs": 256, "max_model_len": 4096}
    body["compute"] = {"profile": "gpu-l4-spot"}
    body["deadline"] = "3h"
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(body))
    (tmp_path / "config.json").write_text(json.dumps(configs.LLAMA3_8B))
    return path


@pytest.fixture
def told(plan: Plan, job: Path) -> Told:
    """The exit code and what `--json` says of the job."""

    def run(*words: str, **variables: str) -> tuple[int, dict[str, Any]]:
        done = plan(str(job), *DAY, *ROWS, "--config", str(job.parent / "config.json"), "--json", *words, **variables)
        return done.returncode, json.loads(done.stdout)

    return run


def test_what_a_night_would_take(job: Path, plan: Plan) -> None:
    done = plan(str(job), *DAY, *ROWS, "--config", str(job.parent / "config.json"), "--input-tokens", "500")

    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == "package-embeddings 2026-11-20: 1,000,000 rows within 3h"
    assert [line.split()[:3] for line in lines if line.startswith("*")] == [["*", "gpu-l4-spot", "93"]]
    assert any(line.startswith("  gpu-l4 ") for line in lines), "a fallback"
    assert any("estimate: roofline from config.json" in line for line in lines)


def test_what_does_not_fit_ends_with_1_and_ways_out(told: Told) -> None:
    code, said = told(NIGHTSHIFT_WORKERS_MAX="8")

    assert (code, said["decision"]) == (1, None)
    assert "there is room for 8 workers" in said["problems"][1]
    assert len(said["ways"]) == 3


def test_what_does_not_fit_is_told_in_short_lines_with_the_currency(job: Path, plan: Plan) -> None:
    words = (str(job), *DAY, *ROWS, "--config", str(job.parent / "config.json"))
    done = plan(*words, NIGHTSHIFT_WORKERS_MAX="8")

    assert not [line for line in done.stdout.splitlines() if line.startswith("*")], "nothing is planned"
    assert re.search(r"^  gpu-l4-spot +8 .* no, too late$", done.stdout, re.MULTILINE)
    first, late, room, ranking, *ways = done.stderr.splitlines()
    assert first == "The run does not fit:"
    assert late.startswith("  8 workers would need ")
    assert room.endswith("there is room for 8 workers")
    assert ranking == "What would fit, the cheapest first:"
    assert [way[:5] for way in ways] == ["  1. ", "  2. ", "  3. "]
    assert [way for way in ways if not re.search(r"accelerator hours, [\d,.]+ USD$", way)] == []


def test_a_reason_other_than_the_time_is_told_once(job: Path, plan: Plan) -> None:
    done = plan(str(job), *DAY, "--rows", "400", "--config", str(job.parent / "config.json"))

    assert re.search(r"^  gpu-l4-spot +2 .* no \(1\)$", done.stdout, re.MULTILINE)
    assert done.stdout.count("fewer rows each than max_num_seqs = 256") == 1


def test_the_tokens_that_a_person_knows(told: Told) -> None:
    (_, few), (_, many) = (told("--input-tokens", count, "--output-tokens", "20") for count in ("50", "3000"))

    assert few["decision"]["workers"] < many["decision"]["workers"]
    assert "3,000 input tokens per row, as given; 20 output tokens per row" in many["decision"]["speed"]["words"]


def test_a_config_that_is_given_is_read_with_the_flags_of_the_job(job: Path, told: Told) -> None:
    """As the task plan reads the one of the Hub."""
    plain = told()[1]["decision"]["workers"]
    body = yaml.safe_load(job.read_text())
    body["engine"]["args"] = {"kv_cache_dtype": "fp8", "quantization": "fp8"}
    job.write_text(yaml.safe_dump(body))

    assert told()[1]["decision"]["workers"] < plain / 2


def test_a_quota_and_prices(job: Path, told: Told) -> None:
    prices = job.parent / "prices.yaml"
    prices.write_text("currency: EUR\nmachines: {g2-standard-8: {spot: 0.5}}\n")
    code, said = told("--prices", str(prices), "--quota", "100")
    costs = {row["profile"]: row["cost"] for row in said["table"]}

    assert (code, said["currency"]) == (0, "EUR")
    assert told(NIGHTSHIFT_PRICES=str(prices))[1]["table"] == told("--prices", str(prices))[1]["table"]
    (chosen,) = [row for row in said["table"] if row["chosen"]]
    assert chosen["cost"] == pytest.approx(chosen["hours"] * 0.5)
    assert costs["gpu-l4"] is None
    assert told("--quota", "10")[0] == 1


def test_without_prices_of_yours_the_list_prices_of_the_release_are_shown(job: Path, plan: Plan, told: Told) -> None:
    said = told()[1]

    assert (said["currency"], said["prices"]) == ("USD", "the list prices of us-central1 in this release")
    (chosen,) = [row for row in said["table"] if row["chosen"]]
    assert chosen["cost"] == pytest.approx(chosen["hours"] * 0.512012)
    shown = plan(str(job), *DAY, *ROWS, "--config", str(job.parent / "config.json")).stdout
    assert "cost USD" in shown
    assert f"{chosen['cost']:,.2f}" in shown


class TestUnknownSpeed:
    @pytest.mark.parametrize("rows", ["1", "1000000000"])
    def test_plans_nothing_and_ends_with_1(self, job: Path, plan: Plan, rows: str) -> None:
        done = plan(str(job), *DAY, "--rows", rows)

        assert done.returncode == 1
        assert "unknown: config.json of hf://sentence-transformers/all-MiniLM-L6-v2" in done.stdout
        assert "Plan:" not in done.stdout
        assert not [line for line in done.stdout.splitlines() if line.startswith("*")]
        assert done.stderr.startswith("Nothing can be planned for ")

    def test_in_json(self, job: Path, plan: Plan) -> None:
        done = plan(str(job), *DAY, *ROWS, "--json")
        said = json.loads(done.stdout)

        assert (done.returncode, said["decision"], said["ways"]) == (1, None, [])
        assert said["problems"][0].startswith("Nothing can be planned for 1,000,000 rows")
        assert {(row["workers"], row["fits"]) for row in said["table"]} == {(0, None)}

    @pytest.mark.parametrize(("stated", "code"), [({"weights_gib": 1}, 0), ({"rows_per_worker_per_second": 50}, 0)])
    def test_what_the_message_advises_helps(self, job: Path, plan: Plan, stated: dict[str, Any], code: int) -> None:
        body = yaml.safe_load(job.read_text())
        body["compute"] |= stated
        job.write_text(yaml.safe_dump(body))

        assert plan(str(job), *DAY, *ROWS).returncode == code

    def test_of_workers_that_the_job_states_is_said(self, job: Path, plan: Plan) -> None:
        """As the task plan does: these compute the rows."""
        body = yaml.safe_load(job.read_text())
        body["compute"]["workers"] = 7
        job.write_text(yaml.safe_dump(body))
        done = plan(str(job), *DAY, *ROWS)

        assert done.returncode == 0
        assert "Plan: 7 workers (the job says so)" in done.stdout
        assert done.stderr.startswith("Whether the run ends in time is not known")

    def test_the_help_says_all_exit_codes(self, plan: Plan) -> None:
        said = " ".join(plan("--help").stdout.split())

        assert "0 the run fits, or the job states its workers and their speed is unknown; 1 it does not fit" in said
        assert "1 it does not fit, or the speed of a worker is unknown, so nothing is planned" in said


def test_recorded_speeds_are_looked_up_where_there_is_a_bucket(
    job: Path, told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = []

    def bucket(url: str, **_: Any) -> ObjectStore:
        opened.append(url)
        return LocalStore(tmp_path / "bucket", mkdir=True)

    monkeypatch.setattr("nightshift.cli.trouble.open_bucket", bucket)
    spec = load(job)
    workload = workload_of(spec, "gpu-l4-spot")
    run = "job/2026-11-19/0123456789abcdef"
    record = Record(workload, run, "2026-11-20T03:00:00+00:00", 50_000, 2, 1e4, 1e4, 10**7, 10**6, 0, {}, "gpu-l4-spot")
    obstore.put(bucket(""), path_of(record), canonical_json(record.to_json()))

    found = [told(**variables)[1]["decision"]["speed"]["words"] for variables in ({}, {"NIGHTSHIFT_BUCKET": "runs"})]

    assert found[0].startswith("estimate: roofline")
    assert found[1] == f"measured in run {run}"
    assert opened[1:] == ["gs://runs"]


def test_a_bucket_that_does_not_answer_is_said(job: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise StoreUnavailable("nobody is there")

    monkeypatch.setattr("nightshift.planner.speeds.records_for", refuse)
    done = plan(str(job), *DAY, *ROWS, "--config", str(job.parent / "config.json"), NIGHTSHIFT_BUCKET="runs")

    assert done.returncode == 0
    assert "estimate: roofline" in done.stdout
    assert done.stderr == "gs://runs: Planned without recorded speeds: StoreUnavailable: nobody is there\n"


class TestKueue:
    """The job's queue gives what a canned API says: no GPU, and cpus for two."""

    @pytest.fixture(autouse=True)
    def api(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Deployment, "cluster", lambda _: CannedApi(Cluster()))
        monkeypatch.setattr("nightshift.planner.speeds.records_for", lambda *_, **__: {})

    @pytest.fixture
    def queued(self, job: Path) -> Path:
        body = yaml.safe_load(job.read_text())
        job.write_text(yaml.safe_dump({**body, "queue": "nightly"}))
        return job

    def test_a_queue_that_never_admits_the_profile(self, queued: Path, told: Told) -> None:
        code, said = told(NIGHTSHIFT_BUCKET="runs", NIGHTSHIFT_PROJECT="acme")

        assert code == 1
        assert "the queue's quota is 0" in said["problems"][0]

    def test_what_a_person_says_wins(self, queued: Path, told: Told) -> None:
        code, _ = told("--quota", "200", NIGHTSHIFT_BUCKET="runs", NIGHTSHIFT_PROJECT="acme")

        assert code == 0

    def test_without_a_deployment_nobody_is_asked(self, queued: Path, told: Told) -> None:
        assert told()[0] == 0

    def test_a_deployment_that_is_half_set_is_said(self, queued: Path, plan: Plan) -> None:
        done = plan(str(queued), *DAY, *ROWS, "--config", str(queued.parent / "config.json"), NIGHTSHIFT_BUCKET="runs")

        assert done.returncode == 0
        assert "The quota of queue 'nightly' is unknown" in done.stderr
        assert "NIGHTSHIFT_PROJECT is not set" in done.stderr
        assert "Or pass --quota N." in done.stderr


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--partition", "yesterday", *ROWS), "--partition is 'yesterday'"),
        ((*DAY, "--rows", "none"), "'none' is not a whole number"),
        ((*DAY, "--rows", "9" * 400), "999999999999999... has more than 15 digits"),
        ((*DAY, *ROWS, "--output-tokens", "1" + "0" * 15), "has more than 15 digits"),
        ((*DAY, *ROWS, "--config", "/"), "--config: / cannot be read as JSON"),
        ((*DAY, *ROWS, "--config", "/nonexistent"), "--config: /nonexistent cannot be read as JSON"),
        ((*DAY, *ROWS, "--prices", "/nonexistent"), "/nonexistent: it cannot be read as YAML"),
        (DAY, "NIGHTSHIFT_BUCKET is not set"),
    ],
)
def test_bad_input_ends_with_2(job: Path, plan: Plan, words: tuple[str, ...], problem: str) -> None:
    done = plan(str(job), *words)

    assert done.returncode == 2
    assert problem in done.stderr


def test_a_broken_job_ends_with_2(tmp_path: Path, plan: Plan) -> None:
    path = tmp_path / "job.yaml"
    path.write_text("job: x\n")
    done = plan(str(path), *DAY, *ROWS)

    assert done.returncode == 2
    assert f"{path}:" in done.stderr


def test_a_model_that_the_local_runtime_does_not_have_is_said_and_ends_with_1(job: Path, plan: Plan, tmp_path: Path) -> None:
    """Also where the job states its workers, which is all that such a plan needs."""
    body = yaml.safe_load(job.read_text())
    body["model"]["uri"] = "hf://nobody/no-such-model"
    body["compute"] = {"profile": "gpu-l4-spot", "workers": 1}
    job.write_text(yaml.safe_dump(body))
    (tmp_path / "models--org--m/snapshots/c").mkdir(parents=True)
    local = {"NIGHTSHIFT_RUNTIME": "local:/state", "HF_HUB_CACHE": str(tmp_path)}

    told = plan(str(job), *DAY, *ROWS, **local)
    as_json = plan(str(job), *DAY, *ROWS, "--json", **local)
    elsewhere = plan(str(job), *DAY, *ROWS, NIGHTSHIFT_RUNTIME="kubernetes", HF_HUB_CACHE=str(tmp_path))

    (line,) = told.stderr.splitlines()
    assert line.startswith("The engine will not find hf://nobody/no-such-model: HF_HUB_OFFLINE is set, ")
    assert "Name one of these in model.uri: org/m; " in line
    assert (told.returncode, as_json.returncode) == (1, 1)
    assert json.loads(as_json.stdout)["problems"] == [line]
    assert elsewhere.returncode == 0, "a cluster's pods may ask the Hub"
