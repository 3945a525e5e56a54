"""The kinds of worker: what each asks of a cluster, and what a job may change about it."""

from __future__ import annotations

from itertools import product

import pytest

from nightshift.profiles import (
    PROFILES,
    Profile,
    Provisioning,
    Span,
    WorkerShape,
    fit,
    is_sold,
    misfits,
    ways,
)
from nightshift.profiles.hardware import GPUS, TPUS, Gpu, Tpu
from nightshift.spec.model import Compute
from nightshift.spec.profile_names import profile_of

pytestmark = pytest.mark.unit

SPANS = [
    Span(tensor_parallel=tensor, pipeline_parallel=pipeline, hosts=hosts)
    for tensor, pipeline, hosts in product((None, 1, 2, 3, 8, 16), (None, 1, 2, 3), (None, 1, 2, 3))
] + [Span(topology=topology, hosts=hosts) for topology in ("1x1", "2x4", "4x4", "3x3") for hosts in (None, 1, 4)]


def worker(name: str, **span: object) -> WorkerShape:
    return fit(profile_of(name), Span(**span))  # type: ignore[arg-type]


def of(kind: type[Gpu] | type[Tpu]) -> list[Profile]:
    return [profile for profile in PROFILES.values() if isinstance(profile.hardware, kind)]


@pytest.mark.parametrize("name", ["cpu", "gpu-l4", "gpu-l4-spot", "gpu-a100-spot", "gpu-h100-spot"])
def test_names_that_jobs_had_before_are_there(name: str) -> None:
    assert worker(name).hosts == 1


def test_every_accelerator_is_bought_in_every_way_that_there_is() -> None:
    """H200 and B200 are not sold on demand ("Consumption options" of AI Hypercomputer)."""
    families = [*(f"gpu-{name}" for name in GPUS), *(f"tpu-{name}" for name in TPUS)]

    assert {f"{family}{how}" for family in families for how in Provisioning} - set(PROFILES) == {"gpu-h200", "gpu-b200"}
    assert len(PROFILES) == 1 + len(Provisioning) * len(families) - 2
    assert ways("gpu-h200") == ("gpu-h200-reservation", "gpu-h200-spot", "gpu-h200-flex", "gpu-h200-any")
    with pytest.raises(ValueError, match="no compute profile 'gpu-b200'; choose from gpu-b200-reservation, gpu-b200-spot"):
        profile_of("gpu-b200")


def test_flex_start_has_no_tpu_slice_of_several_hosts() -> None:
    """ "About flex-start" of GKE: single-host slices."""
    [found] = misfits(profile_of("tpu-v6e-flex"), Span(topology="4x4"))

    assert found.field == "topology"
    assert found.remedy == "Choose from 1x1, 2x2, 2x4, or a profile that is bought otherwise"
    assert not list(misfits(profile_of("tpu-v6e-flex"), Span(topology="2x4")))
    assert Compute(profile="tpu-v6e-spot", topology="4x4").fallbacks == ("tpu-v6e",)
    assert Compute(profile="tpu-v6e-spot", topology="2x4").fallbacks == ("tpu-v6e-flex", "tpu-v6e")


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
class TestEveryProfile:
    def test_falls_back_to_dearer_machines_of_its_own_kind(self, profile: Profile) -> None:
        order = [Provisioning.RESERVATION, Provisioning.SPOT, Provisioning.FLEX_START, Provisioning.ON_DEMAND]
        sold = [how for how in order if is_sold(profile.hardware, how)]
        fallbacks = [profile_of(name) for name in profile.fallbacks]

        assert all(each.hardware is profile.hardware for each in fallbacks)
        if profile.provisioning in order and profile.hardware:
            assert [each.provisioning for each in fallbacks] == sold[sold.index(profile.provisioning) + 1 :]
        else:
            assert fallbacks == []

    def test_whatever_is_asked_either_fits_whole_or_is_refused(self, profile: Profile) -> None:
        fitting = 0
        for span in SPANS:
            found = list(misfits(profile, span))
            if found:
                assert {each.field for each in found} <= set(span.stated)
                with pytest.raises(ValueError, match=found[0].field):
                    fit(profile, span)
                continue
            fitting += 1
            worker = fit(profile, span)
            accelerators = worker.tensor_parallel * worker.pipeline_parallel if profile.hardware else 0
            assert worker.hosts * worker.accelerators == accelerators
            assert all(getattr(worker, name) == getattr(span, name) for name in span.stated)
            if worker.machine:
                assert worker.accelerators <= worker.machine.accelerators
                assert int(worker.requests["cpu"]) < worker.machine.cpus
                assert int(worker.requests["memory"].removesuffix("Gi")) < worker.machine.memory
        assert fitting


def test_extended_resources_are_requested_as_they_are_limited() -> None:
    requests, limits = worker("gpu-h100-spot", tensor_parallel=4).requests, worker("gpu-h100-spot", tensor_parallel=4).limits

    assert requests["nvidia.com/gpu"] == limits["nvidia.com/gpu"] == "4"
    assert requests["memory"] == limits["memory"]


@pytest.mark.parametrize(
    ("name", "span", "machine", "hosts", "chips"),
    [
        ("gpu-l4", {}, "g2-standard-8", 1, 1),
        ("gpu-l4-spot", {"tensor_parallel": 2}, "g2-standard-24", 1, 2),
        ("gpu-h100-spot", {"tensor_parallel": 4}, "a3-highgpu-4g", 1, 4),
        # Smaller machines of this kind cannot be had on demand, nor reserved.
        ("gpu-h100-reservation", {"tensor_parallel": 4}, "a3-highgpu-8g", 1, 4),
        ("gpu-h100-mega", {"hosts": 2}, "a3-megagpu-8g", 2, 8),
        ("gpu-rtx-pro-6000", {"tensor_parallel": 4}, "g4-standard-192", 1, 4),
        ("gpu-h100", {"tensor_parallel": 4}, "a3-highgpu-8g", 1, 4),
        ("gpu-h200-spot", {"tensor_parallel": 4, "pipeline_parallel": 2}, "a3-ultragpu-8g", 1, 8),
        ("gpu-b200-flex", {"hosts": 2}, "a4-highgpu-8g", 2, 8),
        ("tpu-v5e", {"topology": "1x1"}, "ct5lp-hightpu-1t", 1, 1),
        ("tpu-v6e-spot", {}, "ct6e-standard-4t", 1, 4),
        ("tpu-v6e-spot", {"topology": "2x4"}, "ct6e-standard-8t", 1, 8),
        ("tpu-v6e-spot", {"topology": "4x4"}, "ct6e-standard-4t", 4, 4),
        ("tpu-v5e", {"topology": "16x16"}, "ct5lp-hightpu-4t", 64, 4),
    ],
)
def test_machine(name: str, span: dict[str, object], machine: str, hosts: int, chips: int) -> None:
    found = worker(name, **span)

    assert found.machine is not None
    assert (found.machine.name, found.hosts, found.accelerators) == (machine, hosts, chips)


def test_several_hosts_share_layers_inside_and_stages_across() -> None:
    found = worker("gpu-h100-spot", hosts=2)

    assert (found.tensor_parallel, found.pipeline_parallel, found.hosts) == (8, 2, 2)


def test_a_whole_slice_is_one_engine() -> None:
    assert worker("tpu-v6e", topology="4x4").tensor_parallel == 16


@pytest.mark.parametrize(
    ("name", "span"),
    [
        ("tpu-v6e", {"topology": "1x1"}),
        ("gpu-h100", {"tensor_parallel": 2}),
        ("gpu-h100", {"hosts": 2}),
    ],
)
def test_several_engines_share_one_gpu_and_nothing_larger(name: str, span: dict[str, object]) -> None:
    [found] = misfits(profile_of(name), Span(engines=2, **span))  # type: ignore[arg-type]

    assert found.field == "engines"
    assert not list(misfits(profile_of(name), Span(engines=1, **span)))  # type: ignore[arg-type]
    assert worker("gpu-h100", engines=8).engines == 8
    assert worker("cpu", engines=2).engines == 2


@pytest.mark.parametrize("profile", of(Tpu), ids=lambda profile: profile.name)
def test_topologies_are_their_chips(profile: Profile) -> None:
    assert isinstance(profile.hardware, Tpu)
    for topology, slice_ in profile.hardware.slices.items():
        rows, columns = map(int, topology.split("x"))
        assert slice_.hosts * slice_.machine.accelerators == rows * columns


@pytest.mark.parametrize("profile", of(Gpu), ids=lambda profile: profile.name)
def test_machines_grow(profile: Profile) -> None:
    assert isinstance(profile.hardware, Gpu)
    counts = [machine.accelerators for machine in profile.hardware.machines]
    assert counts == sorted(set(counts))


def test_where_a_worker_may_be() -> None:
    spot, flex, on_demand = (worker(f"gpu-l4{how}").node_selector for how in ("-spot", "-flex", ""))
    accelerator = {"cloud.google.com/gke-accelerator": "nvidia-l4"}

    assert spot == {**accelerator, "cloud.google.com/gke-spot": "true"}
    assert flex == {**accelerator, "cloud.google.com/gke-flex-start": "true"}
    assert on_demand == accelerator
    assert worker("cpu").node_selector == {}


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_a_compute_class_is_selected_alone(profile: Profile) -> None:
    """Google: "Do not mix ComputeClass selection with other hard node selectors" (github.com/google/skills)."""
    for span in SPANS:
        if list(misfits(profile, span)):
            continue
        found = fit(profile, span)
        if found.compute_class:
            assert found.node_selector == {"cloud.google.com/compute-class": found.compute_class}
        else:
            assert "cloud.google.com/compute-class" not in found.node_selector
    assert bool(fit(profile, Span()).compute_class) == (profile.provisioning is Provisioning.ANY)


def test_spot_is_tolerated_where_a_node_may_be_spot() -> None:
    tolerating = {how for how in Provisioning if any("spot" in each["key"] for each in worker(f"gpu-l4{how}").tolerations)}

    assert tolerating == {Provisioning.SPOT, Provisioning.ANY}
