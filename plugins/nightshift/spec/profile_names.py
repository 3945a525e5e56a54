"""Profiles by name: those of this release, and those that a deployment adds, in a YAML file (``NIGHTSHIFT_PROFILES``).

    gpu-a10:
      accelerators: 4                # of a machine
      memory_gb: 24                  # of one accelerator
      cpus: 48                       # of a machine
      machine_memory_gb: 192
      peak: {bf16: 125, fp32: 31.2, bandwidth: 600}
      node_selector: {nvidia.com/gpu.product: NVIDIA-A10G}
      tolerations: [{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}]
      machine: g5.12xlarge           # what a file of prices calls it
      price: 5.672                   # of a machine for an hour

The variable is read here, and not with `nightshift.settings`: a job is validated where there is no deployment, too. A profile
of this release is found without a look at the file. Only what a job file says is looked up (`nightshift.spec.engine_checks`):
a frozen job can be read where the file is not, as in a pod.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, ValidationError, create_model

from nightshift.fields.mistakes import Finding, nearest, sentence
from nightshift.fields.section import Listed, Section
from nightshift.fields.text import n
from nightshift.profiles import PROFILES, Profile, Provisioning, ways
from nightshift.profiles.hardware import Gpu, Machine, Nodes, Peak
from nightshift.spec import values
from nightshift.spec.document import BYTES_MAX, Document, Unreadable, contents
from nightshift.spec.explain import explain

SETTING: Final = "NIGHTSHIFT_PROFILES"
_PAGE: Final = "docs/operate/compute.md"
_read: dict[tuple[str, int, int], dict[str, Profile]] = {}
"""What the file said, by its path, size and time: Airflow asks for every job."""


class ProfilesError(ValueError):
    """The deployment's file of profiles cannot be used. The message has a line for each mistake."""


class Speeds(Section):
    """What one accelerator can do at most, from its data sheet, dense."""

    bf16: float = Field(gt=0, le=1e6, description="10^12 operations a second.", examples=[125])
    fp32: float = Field(gt=0, le=1e6, description="The same, in fp32.", examples=[31.2])
    fp8: float = Field(default=0.0, ge=0, le=1e6, description="The same, in fp8; 0 if it has none.", examples=[250])
    bandwidth: float = Field(gt=0, le=1e6, description="Of its memory, GB/s.", examples=[600])
    linked: bool = Field(
        default=False, description="Whether NVLink or the like joins a machine's accelerators.", examples=[True]
    )


class Toleration(Section):
    """As a pod has it."""

    key: str | None = Field(default=None, description="The taint's key.", examples=["nvidia.com/gpu"])
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="Exists for any value.", examples=["Exists"])
    value: str | None = Field(default=None, description="The taint's value.", examples=["true"])
    effect: Literal["NoSchedule", "NoExecute", "PreferNoSchedule"] | None = Field(
        default=None, description="The taint's effect; by default any.", examples=["NoSchedule"]
    )


class OwnProfile(Section):
    """One profile of the file: one kind of machine, and how a pod asks for its nodes."""

    accelerators: int = Field(ge=1, le=64, description="Of a machine.", examples=[4])
    memory_gb: int = Field(ge=1, le=10_000, description="Of one accelerator.", examples=[24])
    cpus: int = Field(ge=1, le=10_000, description="Of a machine.", examples=[48])
    machine_memory_gb: int = Field(ge=1, le=100_000, description="Of a machine.", examples=[192])
    peak: Speeds
    node_selector: Annotated[dict[str, str], AfterValidator(values.node_labels)] = Field(
        default_factory=dict, description="Labels of its nodes.", examples=[{"nvidia.com/gpu.product": "NVIDIA-A10G"}]
    )
    tolerations: Listed[Toleration] = Field(default=(), description="As a pod has them.", examples=[[]])
    resource: Annotated[str, AfterValidator(values.resource_name)] = Field(
        default="nvidia.com/gpu", description="What a pod asks the node for.", examples=["amd.com/gpu"]
    )
    spot: bool = Field(default=False, description="Whether nodes may be taken away at any time.", examples=[True])
    machine: Annotated[str, AfterValidator(values.label)] | None = Field(
        default=None, description="Its name in a file of prices; by default the profile's.", examples=["g5.12xlarge"]
    )
    price: float | None = Field(
        default=None, ge=0, le=1e9, description="Of a machine for an hour, in the currency of the prices.", examples=[5.672]
    )

    def named(self, name: str) -> Profile:
        nodes = Nodes(
            self.resource,
            tuple(self.node_selector.items()),
            tuple(tuple(each.model_dump(exclude_none=True).items()) for each in self.tolerations),
            self.price,
        )
        machine = Machine(self.machine or name, self.accelerators, self.cpus, self.machine_memory_gb)
        peak = Peak(**self.peak.model_dump())
        hardware = Gpu(name, self.memory_gb, (machine,), peak, nodes=nodes)
        return Profile(name, Provisioning.SPOT if self.spot else Provisioning.ON_DEMAND, hardware)


def own() -> Mapping[str, Profile]:
    """The deployment's, none without a file. Raises ProfilesError."""
    if not (place := os.environ.get(SETTING, "")):
        return {}
    path = Path(place)
    try:
        found = path.stat()
        key = (place, found.st_mtime_ns, found.st_size)
        if key not in _read:
            _read.clear()
            _read[key] = _profiles(path)
        return _read[key]
    except OSError as error:
        raise ProfilesError(f"{path}: The file cannot be read: {error.strerror}. Check {SETTING}.") from error


def known() -> dict[str, Profile]:
    """All profiles. Raises ProfilesError."""
    return {**PROFILES, **own()}


def profile_of(name: str) -> Profile:
    """Raises ValueError, which lists the profiles, and ProfilesError, which is one."""
    if (found := PROFILES.get(name) or own().get(name)) is None:
        raise ValueError(f"there is no compute profile {name!r}; choose from {', '.join(ways(name) or known())}")
    return found


def unknown(name: str) -> tuple[str, str] | None:
    """Problem and remedy of a name that no profile has; None for one that has a profile."""
    if name in PROFILES:
        return None
    try:
        mine = own()
    except ProfilesError as error:
        first, *others = str(error).splitlines()
        more = f" (and {n(len(others), 'more mistake')})" if others else ""
        return (
            f"{name!r} is no profile of this release, and {SETTING} cannot be used: {first}{more}",
            "Its operator corrects it",
        )
    if name in mine:
        return None
    if had := ways(name):
        return f"{name} is not sold on demand", f"Choose from {', '.join(had)}"
    near = nearest(name, {**PROFILES, **mine})
    plain = [each.name for each in PROFILES.values() if each.provisioning is Provisioning.ON_DEMAND]
    kinds = (each.removesuffix(Provisioning.ANY) for each in PROFILES if each.endswith(Provisioning.ANY))
    only = [each for each in kinds if each not in PROFILES]
    listed = (
        f"Choose from {', '.join(plain)}; you can add -reservation, -spot, -flex or -any to all but cpu, and "
        f"{' and '.join(only)} need one of these"
    )
    listed += f"; the deployment has {', '.join(mine)}, too" if mine else ""
    return f"There is no compute profile {name!r}", (f"Did you mean {near!r}? " if near else "") + listed


def digest_of_file() -> str:
    """What changes if the file does; for `nightshift.spec.file_cache`."""
    place = os.environ.get(SETTING, "")
    try:
        found = Path(place).stat() if place else None
    except OSError:
        found = None
    return f"{place}:{found.st_mtime_ns}:{found.st_size}" if found else place


def _profiles(path: Path) -> dict[str, Profile]:
    """Raises ProfilesError and OSError."""
    try:
        content = contents(path)
        document = Document(content.decode("utf-8-sig"), "A file of profiles")
    except UnicodeDecodeError as error:
        raise ProfilesError(f"{path}: The file cannot be read: {error}. Check {SETTING}.") from error
    except Unreadable as error:
        raise ProfilesError(f"{path}:{error.line}: {error.problem}. {error.remedy}.") from error
    if len(content) > BYTES_MAX:
        raise ProfilesError(f"{path}: The file has more than {BYTES_MAX >> 10} KiB.")
    value = {} if document.value is None else document.value
    if not isinstance(value, dict):
        raise ProfilesError(f"{path}: It is not a mapping. Write NAME: with what the profile is below it ({_PAGE}).")
    found: dict[str, Profile] = {}
    if wrong := list(_mistakes(document, value, found)):
        raise ProfilesError("\n".join(f"{path}:{each}" for each in wrong))
    return found


def _mistakes(document: Document, value: Mapping[object, object], found: dict[str, Profile]) -> Iterator[str]:
    """A line for each, as for a job file. Puts the good ones into `found`."""
    findings = list(document.findings)
    for name in value:
        if not isinstance(name, str):
            continue  # The document reports it.
        if name in PROFILES:
            findings.append(Finding((name,), "A profile of this release has that name", "Choose another"))
            continue
        if not re.fullmatch(values.JOB_PATTERN, name):
            form = "Use at most 40 lower-case letters, digits and dashes, a letter first, for example gpu-a10"
            findings.append(Finding((name,), f"{name!r} is not a valid name of a profile", form))
            continue
        whole: type[Section] = create_model("Profiles", __base__=Section, **{name: (OwnProfile, ...)})  # type: ignore[call-overload]
        try:
            found[name] = getattr(whole.model_validate({name: value[name]}), name).named(name)
        except ValidationError as error:
            findings += explain(error, document, whole, "file of profiles")
    lines = [(each.line or document.line(each.path), each) for each in findings]
    for line, each in sorted(lines, key=lambda item: item[0]):
        yield f"{line}: {'.'.join(map(str, each.path))}: {sentence(each.problem)} {sentence(each.remedy)}"
