"""What one engine spans, and how many share a worker: whether what a job states of it fits its profile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from nightshift.fields.text import n
from nightshift.profiles.catalog import PROFILES, Profile, Provisioning
from nightshift.profiles.hardware import Gpu, Machine, Slice, Tpu
from nightshift.profiles.worker import WorkerShape

_SIZES: Final = (1, 2, 4, 8)
"""GPUs of one engine on one host: engines of these sizes fill a machine of 8."""


@dataclass(frozen=True)
class Span:
    """What a job states under ``compute:``; None where the profile decides."""

    topology: str | None = None
    hosts: int | None = None
    tensor_parallel: int | None = None
    pipeline_parallel: int | None = None
    engines: int | None = None

    @property
    def stated(self) -> tuple[str, ...]:
        return tuple(name for name in self.__dataclass_fields__ if getattr(self, name) is not None)


@dataclass(frozen=True)
class Misfit:
    """One thing that does not fit. field: of `Span`. problem, remedy: a sentence each."""

    field: str
    problem: str
    remedy: str


def fit(profile: Profile, span: Span) -> WorkerShape:
    """The worker that a job gets. Raises ValueError with everything that does not fit."""
    found = list(misfits(profile, span))
    if found:
        raise ValueError(" ".join(f"compute.{each.field}: {each.problem}. {each.remedy}." for each in found))
    hardware = profile.hardware
    engines = span.engines or 1
    if hardware is None:
        return WorkerShape(profile, engines=engines)
    if isinstance(hardware, Tpu):
        topology, slice_ = _slice(hardware, span)
        tensor, pipeline = _tpu_parallel(slice_, span)
        return WorkerShape(profile, slice_.machine, slice_.hosts, slice_.machine.accelerators, topology, tensor, pipeline)
    hosts = span.hosts or 1
    tensor, pipeline = _gpu_parallel(hardware, hosts, span)
    accelerators = tensor * pipeline // hosts
    machine = _machine(profile, hardware, accelerators)
    return WorkerShape(profile, machine, hosts, accelerators, None, tensor, pipeline, engines)


def misfits(profile: Profile, span: Span) -> Iterator[Misfit]:
    """Everything that does not fit."""
    hardware = profile.hardware
    if hardware is None:
        for name in span.stated:
            if name == "engines":
                continue  # They share its memory and CPUs.
            problem = f"{name} is for engines with accelerators, and {profile.name} has none"
            yield Misfit(name, problem, "Leave it out, or choose another profile")
    elif isinstance(hardware, Tpu):
        yield from _tpu_misfits(profile, hardware, span)
        yield from _several(span, f"{profile.name} is a TPU, and one engine takes all chips of its slice")
    else:
        yield from _gpu_misfits(profile, hardware, span)
        if max(span.tensor_parallel or 1, span.pipeline_parallel or 1, span.hosts or 1) > 1:
            yield from _several(span, "Several engines share one GPU, and here one engine takes several")


def _several(span: Span, problem: str) -> Iterator[Misfit]:
    if (span.engines or 1) > 1:
        yield Misfit("engines", problem, "Leave it out, and raise compute.workers: each has an engine of its own")


def _tpu_misfits(profile: Profile, tpu: Tpu, span: Span) -> Iterator[Misfit]:
    if span.topology is not None and span.topology not in tpu.slices:
        yield Misfit("topology", f"{profile.name} has no topology {span.topology!r}", f"Choose from {', '.join(tpu.slices)}")
        return
    topology, slice_ = _slice(tpu, span)
    chips = _chips(slice_)
    if slice_.hosts > 1 and profile.provisioning is Provisioning.FLEX_START:
        one = [name for name, each in tpu.slices.items() if each.hosts == 1]
        problem = f"Flex-start has TPU slices of one host only, and {topology} is {n(slice_.hosts, 'host')}"
        yield Misfit("topology", problem, f"Choose from {', '.join(one)}, or a profile that is bought otherwise")
        return
    if span.hosts not in (None, slice_.hosts):
        problem = f"Topology {topology} is {n(slice_.hosts, 'host')} of {n(slice_.machine.accelerators, 'chip')}"
        others = [name for name, each in tpu.slices.items() if each.hosts == span.hosts]
        other = f", or choose a topology of {n(span.hosts or 0, 'host')} ({', '.join(others)})" if others else ""
        yield Misfit("hosts", f"{problem}, not {n(span.hosts or 0, 'host')}", f"Leave it out{other}")
    tensor, pipeline = _tpu_parallel(slice_, span)
    if tensor * pipeline != chips:
        others = [name for name, each in tpu.slices.items() if _chips(each) == tensor * pipeline]
        other = f", or choose topology {others[0]}" if others else ""
        yield Misfit(
            "tensor_parallel" if span.tensor_parallel else "pipeline_parallel",
            f"tensor_parallel {tensor} x pipeline_parallel {pipeline} is {n(tensor * pipeline, 'chip')}, "
            f"but {topology} has {chips}",
            f"Leave it out, so that one engine takes the whole slice{other}",
        )


def _gpu_misfits(profile: Profile, gpu: Gpu, span: Span) -> Iterator[Misfit]:
    if span.topology is not None:
        yield Misfit(
            "topology", f"{profile.name} is a GPU, and only TPUs have a topology", "Leave it out, or choose a TPU profile"
        )
    most, hosts = gpu.machines[-1].accelerators, span.hosts or 1
    if hosts > 1 and not gpu.spans_hosts:
        able = [
            each.name
            for each in PROFILES.values()
            if isinstance(each.hardware, Gpu) and each.hardware.spans_hosts and each.provisioning is profile.provisioning
        ]
        problem = f"{profile.name} cannot spread one engine over {hosts} hosts"
        yield Misfit("hosts", problem, f"Leave it out, or choose a profile that can: {', '.join(able)}")
        return
    tensor, pipeline = _gpu_parallel(gpu, hosts, span)
    total = tensor * pipeline
    if tensor > most:
        spread = f", pipeline_parallel: {tensor // most} and hosts: {tensor // most}"
        fills_hosts = gpu.spans_hosts and tensor % most == 0
        remedy = f"Write tensor_parallel: {most}{spread}" if fills_hosts else f"Write at most {most}"
        yield Misfit("tensor_parallel", f"{tensor} is more than the {n(most, 'GPU')} of a host", remedy)
    elif hosts > 1 and total != hosts * most:
        whole = f", or hosts: {total // most}" if total % most == 0 else ""
        yield Misfit(
            "hosts",
            f"tensor_parallel {tensor} x pipeline_parallel {pipeline} is {n(total, 'GPU')}, but {hosts} hosts of {most} have "
            f"{hosts * most}",
            f"Write tensor_parallel: {most} and pipeline_parallel: {hosts}{whole}",
        )
    elif hosts == 1 and total not in (sizes := [size for size in _SIZES if size <= most]):
        several = gpu.spans_hosts and total % most == 0
        yield Misfit(
            "tensor_parallel" if span.tensor_parallel else "pipeline_parallel",
            f"tensor_parallel {tensor} x pipeline_parallel {pipeline} is {n(total, 'GPU')}, but an engine takes "
            f"{' or '.join(filter(None, (', '.join(map(str, sizes[:-1])), str(sizes[-1]))))} on one host",
            f"Write hosts: {total // most}" if several else "Choose values whose product is one of these",
        )


def _slice(tpu: Tpu, span: Span) -> tuple[str, Slice]:
    topology = span.topology or tpu.default
    return topology, tpu.slices[topology]


def _chips(slice_: Slice) -> int:
    return slice_.hosts * slice_.machine.accelerators


def _tpu_parallel(slice_: Slice, span: Span) -> tuple[int, int]:
    pipeline = span.pipeline_parallel or 1
    return span.tensor_parallel or max(1, _chips(slice_) // pipeline), pipeline


def _gpu_parallel(gpu: Gpu, hosts: int, span: Span) -> tuple[int, int]:
    """Several hosts: tensor parallelism inside each, pipeline parallelism across them, which needs the network least."""
    pipeline, most = span.pipeline_parallel or hosts, gpu.machines[-1].accelerators
    share = min(most, max(1, hosts * most // pipeline)) if hosts > 1 else 1
    return span.tensor_parallel or share, pipeline


def _machine(profile: Profile, gpu: Gpu, accelerators: int) -> Machine:
    """The smallest that has enough and that can be bought in the profile's way: what is not sold on demand cannot be reserved
    either, except whole kinds."""
    rare = gpu.rare if profile.provisioning in (Provisioning.ON_DEMAND, Provisioning.RESERVATION) else ()
    return next(each for each in gpu.machines if each.accelerators >= accelerators and each.name not in rare)
