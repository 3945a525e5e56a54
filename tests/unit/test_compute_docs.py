"""docs/operate/compute.md says what the code does: its tables are the profiles, its examples are good."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from nightshift.jobset.manifest.constants import RETRIES
from nightshift.jobset.manifest.disk import SCRATCH_GIB, SPARE_GIB, node_disk_gb
from nightshift.jobset.manifest.patch import Patch
from nightshift.jobset.manifest.render import render
from nightshift.profiles import PROFILES, Span, fit, misfits
from nightshift.profiles.hardware import GPUS, TPUS, Gpu, Tpu
from nightshift.settings import Settings
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.unit

TEXT = (Path(__file__).parents[2] / "docs/operate/compute.md").read_text()
PROSE = " ".join(TEXT.split())
EXAMPLES = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL)]


def rows() -> dict[str, list[str]]:
    """Cells of the tables' rows that begin with a profile."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line.startswith("| `")]
    return {row[0].strip("`"): row[1:] for row in cells if f"{row[0].strip('`')}-any" in PROFILES}


def test_the_table_of_gpus() -> None:
    for name, gpu in GPUS.items():
        label, machines, hosts, memory, bandwidth, bf16, fp8 = rows()[f"gpu-{name}"]
        assert label == gpu.label
        assert machines == ", ".join(f"{machine.accelerators}: {machine.name}" for machine in gpu.machines)
        assert bool(hosts) == gpu.spans_hosts
        assert [float(each or 0) for each in (memory, bandwidth, bf16, fp8)] == _peak(gpu)


def test_the_table_of_tpus() -> None:
    for name, tpu in TPUS.items():
        label, one, several, memory, bandwidth, bf16, fp8 = rows()[f"tpu-{name}"]
        assert label == tpu.label
        assert one.split(", ") == [topology for topology, slice_ in tpu.slices.items() if slice_.hosts == 1]
        assert several.split(", ") == [topology for topology, slice_ in tpu.slices.items() if slice_.hosts > 1]
        assert [float(each or 0) for each in (memory, bandwidth, bf16, fp8)] == _peak(tpu)


def _peak(hardware: Gpu | Tpu) -> list[float]:
    peak = hardware.peak
    return [hardware.memory, peak.bandwidth, peak.bf16, peak.fp8]


def test_every_accelerator_is_in_a_table() -> None:
    assert set(rows()) == {f"gpu-{name}" for name in GPUS} | {f"tpu-{name}" for name in TPUS}


@pytest.mark.parametrize("example", [example for example in EXAMPLES if "compute" in example], ids=str)
def test_examples_of_compute(example: dict[str, dict[str, object]]) -> None:
    spec = a_spec(**example)
    span = Span(spec.compute.topology, spec.compute.hosts, spec.compute.tensor_parallel, spec.compute.pipeline_parallel)

    for name in (spec.compute.profile, *spec.compute.fallbacks):
        assert list(misfits(PROFILES[name], span)) == []


def test_the_example_of_an_override_file(tmp_path: Path) -> None:
    [example] = [example for example in EXAMPLES if "spec" in example]
    path = tmp_path / "patch.yaml"
    path.write_text(yaml.safe_dump(example))
    rendered = render(a_spec(compute__profile="gpu-l4-spot"), RUN, a_plan(8), Settings("b", "p"), name="n")
    template = rendered["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]

    patched = Patch(str(path)).apply(template)

    assert patched["spec"]["nodeSelector"] == {"cloud.google.com/gke-accelerator": "nvidia-l4", "example.com/pool": "gpu"}
    assert patched["spec"]["initContainers"][0]["env"][-1]["name"] == "HF_TOKEN"


@pytest.mark.parametrize(
    ("profile", "span", "minutes"),
    [
        ("cpu", Span(), 10),
        ("gpu-l4", Span(), 10),
        ("gpu-l4", Span(tensor_parallel=4), 15),
        ("gpu-l4", Span(tensor_parallel=8), 20),
        ("gpu-h100", Span(hosts=2), 30),
        ("tpu-v6e", Span(topology="1x1"), 20),
        ("tpu-v6e", Span(topology="4x4"), 40),
    ],
)
def test_load_times(profile: str, span: Span, minutes: int) -> None:
    assert fit(PROFILES[profile], span).load_seconds == minutes * 60
    assert "10 minutes on a CPU or one GPU, 15 on 2 or 4, 20 on 8, 30 on several hosts, plus 10 on a TPU" in PROSE


@pytest.mark.parametrize(
    ("words", "profile", "span"),
    [
        ("1 L4", "gpu-l4", Span()),
        ("1 H100", "gpu-h100-spot", Span()),
        ("8 H100", "gpu-h100", Span(tensor_parallel=8)),
        ("2 machines of 8 H100", "gpu-h100", Span(hosts=2)),
        ("TPU v5e 2x2", "tpu-v5e", Span()),
        ("TPU v6e 2x2", "tpu-v6e", Span()),
        ("TPU v6e 4x4", "tpu-v6e", Span(topology="4x4")),
    ],
)
def test_the_table_of_disks(words: str, profile: str, span: Span) -> None:
    weights = fit(PROFILES[profile], span).weights_gib_max

    assert f"| {words} | {weights} | {node_disk_gb(weights + 12)} |" in TEXT


def test_the_rule_for_disks() -> None:
    assert f"weights + {SPARE_GIB}; {SPARE_GIB} if the weights come from a bucket" in TEXT
    assert f"| both caches + {SCRATCH_GIB} |" in TEXT
    assert f"(weights + {SPARE_GIB + 2 * SCRATCH_GIB}) + 120, rounded up to 10" in TEXT


def test_the_budget_of_retries() -> None:
    assert f"{RETRIES} per index" in TEXT
