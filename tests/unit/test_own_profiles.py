"""Profiles that a deployment defines itself: read, refused, and used like those of the release."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from local.runtime.spec import read_manifest
from nightshift.cli import main
from nightshift.doctor import compute_needs, nodes
from nightshift.doctor.gke import Place
from nightshift.jobset.manifest.render import render
from nightshift.planner.costs.prices import PricesError, load_prices
from nightshift.planner.model import model_of
from nightshift.planner.plan import decide
from nightshift.planner.record import hardware_of, workload_of
from nightshift.planner.roofline import CannotStart
from nightshift.planner.speed import Known, speed_of, tokens_of
from nightshift.planner.suggestions import shapes
from nightshift.profiles import Span, misfits
from nightshift.settings import Settings
from nightshift.spec import JobSpec, SpecErrors, load, profile_names
from nightshift.spec.file_cache import Memory
from nightshift.spec.profile_names import SETTING, ProfilesError, known, own, profile_of, unknown
from nightshift.spec.schema import json_schema_text
from tests.builders import RUN, a_plan, a_spec
from tests.unit import model_configs as configs
from tests.unit.spec_file import job, write

pytestmark = pytest.mark.unit

PAGE = (Path(__file__).parents[2] / "docs/operate/compute.md").read_text()
[EXAMPLE] = re.findall(r"```yaml\n(# profiles\.yaml.*?)```", PAGE, re.DOTALL)
SETTINGS = Settings(bucket="runs", project="acme")
BAD = """\
gpu-l4:
  accelerators: 1
GPU-A10: {}
gpu-a10:
  accelerator: 4
  memory_gb: "24"
  cpus: 0
  machine_memory_gb: 9
  peak: {bf16: 1, fp32: 1}
  node_selector: {gpu: true}
  resource: gpu
  tolerations: [{key: a, operator: Is, efect: NoExecute}]
  price: -1
gpu-none:
"""
MISTAKES = """\
1: gpu-l4: A profile of this release has that name. Choose another.
3: GPU-A10: 'GPU-A10' is not a valid name of a profile. Use at most 40 lower-case letters, digits and dashes, a letter first, for example gpu-a10.
5: gpu-a10.accelerator: There is no key 'accelerator' in gpu-a10. Did you mean 'accelerators'?
6: gpu-a10.memory_gb: '24' is text, but a whole number is expected. Write it without quotes: 24.
7: gpu-a10.cpus: 0 is less than 1. Write 1 or more.
9: gpu-a10.peak.bandwidth: The key is missing. Write, for example, bandwidth: 600.
10: gpu-a10.node_selector.gpu: true is a boolean, but text is expected. Put it in quotes: "true".
11: gpu-a10.resource: 'gpu' is not the name of a resource of a node. Write what the nodes list under status.allocatable, for example amd.com/gpu.
12: gpu-a10.tolerations.0.operator: operator cannot be 'Is'. Choose from Exists, Equal.
12: gpu-a10.tolerations.0.efect: There is no key 'efect' in gpu-a10.tolerations.0. Did you mean 'effect'?
13: gpu-a10.price: -1 is less than 0. Write 0 or more.
14: gpu-none: The value is missing; a mapping is expected. Write gpu-none: with accelerators, memory_gb, cpus, machine_memory_gb, peak below it.
"""  # noqa: E501
A10 = {"profile": "gpu-a10", "tensor_parallel": 2}


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The page's example, as the deployment's file."""
    path = tmp_path / "profiles.yaml"
    path.write_text(EXAMPLE)
    monkeypatch.setenv(SETTING, str(path))
    return path


def problems(file: Path, text: str) -> list[str]:
    file.write_text(text)
    with pytest.raises(ProfilesError) as raised:
        own()
    return [line.removeprefix(f"{file}:") for line in str(raised.value).splitlines()]


class TestTheFile:
    def test_adds_to_the_profiles_of_the_release(self, file: Path) -> None:
        assert [*own()] == ["gpu-a10", "gpu-mi300x-spot"]
        assert {*known()} > {"cpu", "gpu-l4-spot", *own()}
        assert profile_of("gpu-a10").hardware is own()["gpu-a10"].hardware

    def test_is_read_again_when_it_has_changed(self, file: Path) -> None:
        assert "gpu-a10" in own()
        file.write_text(EXAMPLE.replace("gpu-a10:", "gpu-a10-new:"))

        assert "gpu-a10-new" in own()
        assert "gpu-a10" not in own()

    def test_says_everything_that_is_wrong_as_for_a_job_file(self, file: Path) -> None:
        found = problems(file, BAD)

        assert found == MISTAKES.splitlines()

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            ("- gpu-a10", " It is not a mapping. Write NAME: with what the profile is below it"),
            ("a: [", "1: This is not valid YAML"),
            ("a: &x {}\nb: *x", "1: "),
            ("gpu-a: {}\ngpu-a: {}", "2: gpu-a: The key 'gpu-a' appears twice"),
            ("x: '\x00'", "1: "),
            ("# " + "x" * 200_000, " The file has more than 128 KiB"),
        ],
    )
    def test_that_is_no_list_of_profiles_is_refused(self, file: Path, text: str, said: str) -> None:
        assert problems(file, text)[0].startswith(said)

    def test_that_is_not_there_stops_only_who_needs_it(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv(SETTING, "/nowhere/profiles.yaml")

        assert profile_of("gpu-l4").name == "gpu-l4"
        assert load(write(tmp_path, job())).compute.profile == "cpu"
        with pytest.raises(ProfilesError, match=r"/nowhere/profiles.yaml: The file cannot be read: No such file"):
            profile_of("gpu-a10")
        with pytest.raises(
            SpecErrors, match=r"compute.profile: 'gpu-a10' is no profile of this release, and NIGHTSHIFT_PROFILES"
        ):
            load(write(tmp_path, job(compute__profile="gpu-a10")))


class TestAJobFile:
    def test_may_name_it_also_as_a_fallback(self, file: Path, tmp_path: Path) -> None:
        written = job(compute={"profile": "gpu-mi300x-spot", "fallback": ["gpu-a10", "gpu-l4"]})

        assert load(write(tmp_path, written)).compute.profiles == ("gpu-mi300x-spot", "gpu-a10", "gpu-l4")

    def test_with_a_slip_is_told_what_was_meant(self, file: Path) -> None:
        assert unknown("gpu-a10") is None
        problem, remedy = unknown("gpu-mi300x-sport") or ("", "")

        assert problem == "There is no compute profile 'gpu-mi300x-sport'"
        assert remedy == (
            "Did you mean 'gpu-mi300x-spot'? Choose from cpu, gpu-l4, gpu-rtx-pro-6000, gpu-a100, gpu-a100-80gb, gpu-h100, "
            "gpu-h100-mega, tpu-v5e, tpu-v6e; you can add -reservation, -spot, -flex or -any to all but cpu, and gpu-h200 and "
            "gpu-b200 need one of these; the deployment has gpu-a10, gpu-mi300x-spot, too"
        )

    def test_cannot_take_more_than_the_machine_has(self, file: Path) -> None:
        [found] = misfits(profile_of("gpu-a10"), Span(tensor_parallel=2, pipeline_parallel=4))
        assert found.problem.endswith("is 8 GPUs, but an engine takes 1, 2 or 4 on one host")
        assert [each.problem for each in misfits(profile_of("gpu-a10"), Span(tensor_parallel=8))] == [
            "8 is more than the 4 GPUs of a host"
        ]
        assert len(list(misfits(profile_of("gpu-a10"), Span(hosts=2)))) == 1

    def test_that_was_frozen_is_read_where_the_file_is_not(self, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        frozen = a_spec(compute=A10).model_dump(mode="json")
        monkeypatch.delenv(SETTING)

        assert JobSpec.model_validate(frozen).compute.profile == "gpu-a10"

    def test_is_judged_again_when_the_profiles_change(self, file: Path, tmp_path: Path) -> None:
        before = Memory.of(tmp_path).file
        file.write_text(EXAMPLE + "\n# changed\n")

        assert Memory.of(tmp_path).file != before

    def test_is_completed_by_an_editor_that_has_the_deployments_schema(
        self, file: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert '"gpu-a10"' in json_schema_text(JobSpec)
        monkeypatch.delenv(SETTING)
        assert '"gpu-a10"' not in json_schema_text(JobSpec)

    def test_the_command_says_what_is_wrong_with_the_file(self, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file.write_text("gpu-a10: {}")

        assert main(["schema"]) == 2
        assert "gpu-a10.accelerators: The key is missing" in capsys.readouterr().err


def pod_and_server(compute: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    rendered = render(a_spec(compute=compute), RUN, a_plan(rows=64, workers=4), SETTINGS, name="night", role="owner")
    assert read_manifest(rendered).job.completions == 4, "the local runtime knows every field of it"
    pod = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    return pod, pod["initContainers"][0]


class TestItsPods:
    def test_ask_for_its_nodes(self, file: Path) -> None:
        pod, server = pod_and_server(A10)

        assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-A10"}
        assert pod["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
        # Half of a machine of 4, and of that three quarters.
        assert (
            server["resources"]["requests"] | {"cpu": "18", "memory": "72Gi", "nvidia.com/gpu": "2"}
            == (server["resources"]["requests"])
        )
        assert "--tensor-parallel-size=2" in server["args"]

    def test_ask_for_another_makers_accelerators(self, file: Path) -> None:
        pod, server = pod_and_server({"profile": "gpu-mi300x-spot"})

        assert server["resources"]["limits"]["amd.com/gpu"] == "1"
        assert "nodeSelector" not in pod
        assert pod["tolerations"] == [{"key": "example.com/spot", "operator": "Equal", "value": "true"}]


class TestThePlan:
    @pytest.fixture
    def known(self) -> Known:
        return Known(tokens_of(a_spec(), 500.0, "given"), model_of(configs.LLAMA3_8B))

    def test_estimates_its_speed_from_its_data_sheet(self, file: Path, known: Known) -> None:
        spec = a_spec(compute=A10)
        speed = speed_of(spec, spec.compute.worker(), known)
        mi300x = a_spec(compute={"profile": "gpu-mi300x-spot"})

        assert 0 < speed.rows_per_second < speed_of(mi300x, mi300x.compute.worker(), known).rows_per_second
        with pytest.raises(CannotStart, match="gpu-a10 has room for"):
            speed_of(spec, spec.compute.worker(), Known(known.tokens, model_of(configs.LLAMA3_70B)))

    def test_needs_workers_of_it(self, file: Path, known: Known) -> None:
        assert decide(a_spec(compute=A10), 100_000, known).workers >= 1

    def test_may_propose_it_in_place_of_another(self, file: Path) -> None:
        assert "gpu-a10" in {shape.profile.name for shape in shapes(profile_of("gpu-l4"))}

    def test_records_its_speed_under_its_name(self, file: Path) -> None:
        assert (hardware_of("gpu-a10"), hardware_of("gpu-l4-spot"), hardware_of("cpu")) == ("gpu-a10", "l4", "cpu")
        assert workload_of(a_spec(compute=A10), "gpu-a10").accelerators == 2


class TestThePrice:
    def test_is_the_profiles(self, file: Path) -> None:
        assert a_spec(compute=A10).compute.worker().price_name == "rack-a10"
        assert load_prices().machines["rack-a10"] == 2.4
        assert "gpu-mi300x-spot-spot" not in load_prices().machines

    def test_is_that_of_the_deployments_prices_if_they_have_one(self, file: Path, tmp_path: Path) -> None:
        prices = tmp_path / "prices.yaml"
        prices.write_text("currency: EUR\nmachines: {rack-a10: {on-demand: 3.5}}")
        assert load_prices(prices).machines == {"rack-a10": 3.5}
        file.write_text("a: 1")
        with pytest.raises(PricesError, match=r"profiles\.yaml:1: a: "):
            load_prices(prices)


class TestTheDoctor:
    def test_says_which_nodes_are_missing_and_asks_for_no_quota_of_google(self, file: Path) -> None:
        worker = a_spec(compute=A10).compute.worker()

        assert nodes._create(Place("c", "p", "l"), "gpu-a10", worker) == (
            "make a node pool as NIGHTSHIFT_PROFILES has it: nvidia.com/gpu.product=NVIDIA-A10, with nvidia.com/gpu"
        )
        assert list(compute_needs.needs(compute_needs.Machines(worker, None, 0, ""), 4, public=False)) == []


def test_without_the_variable_there_are_only_those_of_the_release() -> None:
    assert SETTING not in os.environ
    assert own() == {}
    assert profile_names.digest_of_file() == ""
