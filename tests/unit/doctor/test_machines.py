"""Which node pools fit a profile, and which quotas its nodes count against: for every profile there is."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nightshift.doctor.compute_needs import Machines, Metric, needs
from nightshift.doctor.node_pool import Placement, Pool, misfit, room
from nightshift.jobset.manifest.pod_template import placement
from nightshift.profiles import PROFILES, Profile, Provisioning, Span, WorkerShape, fit
from nightshift.profiles.hardware import Tpu
from nightshift.settings import Settings
from tests.builders import RESERVATIONS

pytestmark = pytest.mark.unit

SETTINGS = Settings("runs", "acme", reservations=RESERVATIONS)
BY_LABEL = [name for name, each in PROFILES.items() if each.provisioning is not Provisioning.ANY]


def worker_of(name: str, **span: Any) -> WorkerShape:
    return fit(PROFILES[name], Span(**span))


def placed(worker: WorkerShape) -> Placement:
    found = placement(worker, SETTINGS)
    return Placement(worker, found.get("nodeSelector", {}), tuple(found.get("tolerations", ())))


def a_pool(worker: WorkerShape, **changes: Any) -> Pool:
    """As step 11 of k8s/README.md makes one for the profile."""
    profile: Profile = worker.profile
    config: dict[str, Any] = {"machineType": worker.machine.name if worker.machine else "e2-standard-8"}
    config["spot"] = profile.provisioning is Provisioning.SPOT
    config["flexStart"] = profile.provisioning is Provisioning.FLEX_START
    if profile.provisioning is Provisioning.RESERVATION:
        config["reservationAffinity"] = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["nights"]}
    document: dict[str, Any] = {"name": "pool", "status": "RUNNING", "autoscaling": {"enabled": True, "totalMaxNodeCount": 16}}
    if worker.machine and not isinstance(profile.hardware, Tpu):
        assert profile.hardware
        gpu = {"acceleratorType": profile.hardware.label, "acceleratorCount": str(worker.machine.accelerators)}
        config["accelerators"] = [gpu]
    elif worker.hosts > 1:
        document["placementPolicy"] = {"tpuTopology": worker.topology}
    return Pool({**document, "config": {**config, **changes}}, ("europe-west4-a", "europe-west4-b"))


class TestPools:
    @pytest.mark.parametrize("name", BY_LABEL)
    def test_the_pool_of_a_profile_fits_it(self, name: str) -> None:
        worker = worker_of(name)

        assert misfit(a_pool(worker), placed(worker)) == ""

    @pytest.mark.parametrize("name", BY_LABEL)
    def test_the_pool_of_a_profile_fits_no_other_way_of_buying(self, name: str) -> None:
        """Nor another accelerator: Spot pods wait for Spot nodes. On demand takes any node of its accelerator."""
        pool = a_pool(worker_of(name))
        others = [each for each in BY_LABEL if each != name and PROFILES[each].provisioning is not Provisioning.ON_DEMAND]

        assert [each for each in others if not misfit(pool, placed(worker_of(each)))] == []

    def test_a_slice_of_several_hosts_needs_its_topology(self) -> None:
        worker = worker_of("tpu-v6e-spot", topology="4x4")

        assert misfit(a_pool(worker), placed(worker)) == ""
        assert "topology=4x4" in misfit(a_pool(worker_of("tpu-v6e-spot")), placed(worker))

    def test_a_machine_with_fewer_gpus_than_an_engine_spans(self) -> None:
        four, one = worker_of("gpu-l4-spot", tensor_parallel=4), worker_of("gpu-l4-spot")

        assert "have 1 GPU, and a worker takes 4" in misfit(a_pool(one), placed(four))
        assert misfit(a_pool(four), placed(one)) == ""
        assert (room(a_pool(four), one), room(a_pool(one), one)) == (64, 16)

    @pytest.mark.parametrize("name", ["gpu-l4", "tpu-v6e", "tpu-v5e-spot"])
    def test_a_worker_without_an_accelerator_gets_no_machine_that_has_one(self, name: str) -> None:
        assert misfit(a_pool(worker_of(name)), placed(worker_of("cpu"))) == "its nodes are kept for accelerators"

    def test_a_pool_that_is_broken_or_without_a_driver(self) -> None:
        worker = worker_of("gpu-l4-spot")
        driver = {"gpuDriverInstallationConfig": {"gpuDriverVersion": "INSTALLATION_DISABLED"}}
        gpu = {"acceleratorType": "nvidia-l4", "acceleratorCount": "1", **driver}
        broken = Pool({**a_pool(worker).document, "status": "ERROR"}, ())

        assert "it is ERROR" in misfit(broken, placed(worker))
        assert "no GPU driver" in misfit(a_pool(worker, accelerators=[gpu]), placed(worker))

    def test_a_reservation_of_another_name_or_project(self) -> None:
        worker = worker_of("gpu-h200-reservation")
        other = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["days"]}
        shared = {"consumeReservationType": "SPECIFIC_RESERVATION", "values": ["projects/shared/reservations/nights"]}

        assert "reservation-name=nights" in misfit(a_pool(worker, reservationAffinity=other), placed(worker))
        assert misfit(a_pool(worker, reservationAffinity=shared), placed(worker)) == ""

    def test_limits_of_a_pool_are_of_all_its_zones(self) -> None:
        each_zone = {"autoscaling": {"enabled": True, "minNodeCount": 1, "maxNodeCount": 3}}
        fixed = Pool({"name": "default", "initialNodeCount": 1}, ("a", "b", "c"))

        assert (Pool(each_zone, ("a", "b")).least, Pool(each_zone, ("a", "b")).most) == (2, 6)
        assert (fixed.least, fixed.most) == (3, 3)


class TestNeeds:
    @pytest.mark.parametrize("name", PROFILES)
    def test_every_accelerator_has_its_quota(self, name: str) -> None:
        worker = worker_of(name)
        found = {each.any_of: each.amount for each in needs(Machines(worker), 3, public=True)}

        if worker.machine is None:
            assert found == {}
            return
        machines = math.ceil(3 * worker.hosts * worker.accelerators / worker.machine.accelerators)
        accelerators = [key for key in found if any("GPU" in metric.name or "TPU" in metric.name for metric in key)]
        if PROFILES[name].provisioning is Provisioning.RESERVATION:
            assert accelerators == []
        else:
            assert {found[key] for key in accelerators} == {machines * worker.machine.accelerators}
        assert found[(Metric("IN_USE_ADDRESSES"),)] == machines

    @pytest.mark.parametrize(
        ("name", "metrics"),
        [
            ("gpu-l4", ["NVIDIA_L4_GPUS"]),
            ("gpu-l4-flex", ["PREEMPTIBLE_NVIDIA_L4_GPUS"]),
            ("gpu-l4-any", ["PREEMPTIBLE_NVIDIA_L4_GPUS", "NVIDIA_L4_GPUS"]),
            ("gpu-a100-80gb-spot", ["PREEMPTIBLE_NVIDIA_A100_80GB_GPUS"]),
            ("gpu-h100", ["GPUS_PER_GPU_FAMILY of NVIDIA_H100"]),
            ("gpu-h100-mega-spot", ["PREEMPTIBLE_NVIDIA_H100_MEGA_GPUS"]),
            ("gpu-rtx-pro-6000", ["GPUS_PER_GPU_FAMILY of NVIDIA_RTX_PRO_6000"]),
            ("tpu-v5e", ["TPU_LITE_PODSLICE_V5"]),
            ("tpu-v6e-spot", ["PREEMPTIBLE_TPU_V6E"]),
            ("tpu-v6e", ["TPUS_PER_TPU_FAMILY of CT6E"]),
        ],
    )
    def test_their_names(self, name: str, metrics: list[str]) -> None:
        first = next(needs(Machines(worker_of(name)), 1, public=False))

        assert [str(each) for each in first.any_of] == metrics

    def test_a_pool_decides_how_its_machines_are_bought(self) -> None:
        """Pods on demand run on the nodes of a Spot pool, too, if there are no others."""
        spot, on_demand = worker_of("gpu-l4-spot"), worker_of("gpu-l4")
        first = next(needs(Machines(on_demand, a_pool(spot)), 1, public=False))

        assert misfit(a_pool(spot), placed(on_demand)) == ""
        assert [str(each) for each in first.any_of] == ["PREEMPTIBLE_NVIDIA_L4_GPUS"]

    def test_workers_share_machines(self) -> None:
        """Five engines of two GPUs on machines of eight: two machines."""
        worker = worker_of("gpu-h200-spot", tensor_parallel=2)
        found = {
            each.any_of[0].name: each.amount
            for each in needs(Machines(worker, None, 100, "hyperdisk-balanced"), 5, public=True)
        }

        assert found["PREEMPTIBLE_NVIDIA_H200_GPUS"] == 16
        assert (found["IN_USE_ADDRESSES"], found["HDB_TOTAL_GB"]) == (2, 200)
