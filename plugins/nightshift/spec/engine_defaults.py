"""With which settings an engine starts where the author states none. Pure.

A nightly job wants throughput, and the defaults of `vllm serve` are for interactive use. vLLM has others for offline work,
those of its class ``LLM`` (``EngineArgs.get_batch_defaults`` of vLLM 0.32), and a job gets these. A stream gets those of the
server. Only settings that do not affect answers have a default here (`nightshift.spec.vllm_flags`), and only where it is
known to be better: from vLLM, or measured (docs/develop/benchmarks.md). The rest is left to vLLM.

What the author states wins, flag by flag. docs/operate/capacity.md has the table, and the reason for the rule is
docs/adr/0029-engine-defaults.md.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from nightshift.profiles import CPU_KV_CACHE_GIB, WorkerShape
from nightshift.profiles.hardware import Gpu, Tpu

Version = tuple[int, int]
"""Of vLLM: its release's first two numbers."""

TOKENS: Final = "max-num-batched-tokens"
QUIET: Final = "disable-uvicorn-access-log"
API_SERVERS: Final = "api-server-count"
SHARE: Final = "gpu-memory-utilization"
SHARES: Final = (SHARE, "device-memory-utilization")
"""Of the accelerator's memory, for one engine: two names of one setting."""
KV_CACHE: Final = "kv-cache-memory-bytes"
SINCE: Final[Mapping[str, Version]] = {TOKENS: (0, 4), QUIET: (0, 8), API_SERVERS: (0, 10)}
"""A release of vLLM that has a flag. Its pull requests 14754, of March 2025, brought that for the access log, and 17546, of May
2025, several API servers. The other flags here are older than all that nightshift runs with."""

UTILIZATION: Final = 0.9
"""The share of an accelerator's memory that its engines take together. vLLM's default for one was 0.9 until its release 0.32 at
the latest, and is 0.92 there; several also have what each process takes besides, which the next one finds taken."""

CPU_SEATS: Final = 256
CPU_SEATS_SERVED: Final = 128
SEATS: Final = 256
SEATS_LARGE: Final = 1024
CPU_TOKENS: Final = 4096
TOKENS_SMALL: Final = 8192
TOKENS_LARGE: Final = 16384
SERVED_SMALL: Final = 2048
SERVED_LARGE: Final = 8192
LARGE_BYTES: Final = 70 << 30
HUGE_BYTES: Final = 160 << 30
"""Memory of one accelerator. From this on `vllm serve` takes as many tokens a step as ``LLM`` does."""
TIGHT: Final = 2 / 3
"""The share of the accelerators' memory that weights may take before more tokens a step cost more than they bring: activations
take room from keys and values. On two A100, 141 GB of weights in 160 GB, Llama 70B lost a quarter of its throughput; on four,
nothing (https://github.com/vllm-project/vllm/pull/17885)."""

_A100: Final = "a100"
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT]?)")
_POWERS: Final = {"": 1, **{u: 1000**n for n, u in enumerate("kmgt", 1)}, **{u: 1024**n for n, u in enumerate("KMGT", 1)}}
_POOLING: Final = ("classify", "embedding", "rerank", "score")
_TAG: Final = re.compile(r"(?P<v>v?)(?P<major>\d{1,4})\.(?P<minor>\d{1,4})(\.\d+)?([-.+_].*)?")


@dataclass(frozen=True)
class Hints:
    """What the planner found of a job's model. weights_bytes: None if it is unknown. api_servers: processes of vLLM's API,
    by the name of a profile; one where there is none."""

    weights_bytes: float | None = None
    api_servers: Mapping[str, int] = field(default_factory=dict)


NO_HINTS: Final = Hints()


@dataclass(frozen=True)
class Wanted:
    """What a job or a stream says. task: its kind. seats: ``engine.max_num_seqs``. length: ``engine.max_model_len``. flags:
    ``engine.args``, their names with dashes. offline: whether nobody waits for an answer."""

    task: str
    seats: int | None
    length: int | None
    flags: Mapping[str, Any] = field(default_factory=dict)
    offline: bool = True


@dataclass(frozen=True)
class Defaults:
    """seats: rows that the engine computes at once. stated: whether the author says so. flags: of ``vllm serve``, with values.
    lacking: flags that would be set, and that the engine's version does not have. version: of the engine, if known."""

    seats: int
    stated: bool
    flags: Mapping[str, Any]
    lacking: tuple[str, ...] = ()
    version: Version | None = None

    @property
    def words(self) -> str:
        """All defaults in one line; "" if there are none."""
        found = [] if self.stated else [f"max_num_seqs {self.seats:,}"]
        found += [name if value is True else f"{name} {value:,}" for name, value in self.flags.items()]
        without = f"; without {', '.join(self.lacking)}, which vLLM {_dotted(self.version)} lacks" if self.lacking else ""
        return f"{', '.join(found) or 'none'}{without}" if found or without else ""


def defaults_of(wanted: Wanted, shape: WorkerShape | None, version: Version | None = None, hints: Hints = NO_HINTS) -> Defaults:
    """shape: of the worker; None for a profile that this deployment does not know. version: None if it is unknown, which counts
    as the version of this release's own images."""
    seats = wanted.seats or _seats(wanted, shape)
    flags: dict[str, Any] = {}
    if wanted.offline:
        stated = {name.removeprefix("no-") for name in wanted.flags}
        flags |= _part_of_memory(stated, shape)
        tokens = _tokens(wanted, shape, seats, hints)
        if tokens and not {TOKENS, "max-num-scheduled-tokens"} & stated:
            flags[TOKENS] = tokens
        if QUIET not in stated:
            flags[QUIET] = True
        servers = hints.api_servers.get(shape.profile.name, 1) if shape else 1
        if servers > 1 and API_SERVERS not in stated:
            flags[API_SERVERS] = servers
    lacking = tuple(name for name in flags if version is not None and version < SINCE.get(name, version))
    return Defaults(
        seats,
        wanted.seats is not None,
        {name: value for name, value in flags.items() if name not in lacking},
        lacking,
        version,
    )


def _part_of_memory(stated: set[str], shape: WorkerShape | None) -> dict[str, Any]:
    """Of one engine of several, unless the author states it: the same for each."""
    if shape is None or shape.engines == 1 or stated.intersection(SHARES):
        return {}
    if shape.machine is not None:
        # Also beside a stated size of the KV cache: vLLM does not start unless as much as this share is free.
        return {SHARE: math.floor(1000 * UTILIZATION / shape.engines) / 1000}
    return {} if KV_CACHE in stated else {KV_CACHE: (CPU_KV_CACHE_GIB << 30) // shape.engines}


def version_of(image: str) -> Version | None:
    """The version of vLLM in an image's tag, such as ``vllm/vllm-openai:v0.33.0``; None for a digest alone, or another tag.

    A tag without a "v" counts only if the image's name has "vllm": it may be the version of something else.
    """
    place = image.split("@")[0]
    name, colon, tag = place.rpartition(":")
    match = _TAG.fullmatch(tag) if colon and "/" not in tag else None
    if match is None or not (match["v"] or "vllm" in name.rpartition("/")[2]):
        return None
    return int(match["major"]), int(match["minor"])


def _seats(wanted: Wanted, shape: WorkerShape | None) -> int:
    most = number(wanted.flags.get(TOKENS))
    least = number(wanted.flags.get("max-num-active-seqs"))
    found = _seats_of(shape, offline=wanted.offline)
    # With these vLLM would not start.
    found = max(found, least or 0)
    return min(found, most) if most else found


def _seats_of(shape: WorkerShape | None, *, offline: bool) -> int:
    hardware = shape.profile.hardware if shape else None
    if shape is None or isinstance(hardware, Tpu):
        return SEATS  # Of a TPU vLLM does not know the memory.
    if hardware is None:
        return CPU_SEATS if offline else CPU_SEATS_SERVED
    return SEATS if _is_small(hardware) else SEATS_LARGE


def _is_small(gpu: Gpu) -> bool:
    return gpu.memory * 10**9 < LARGE_BYTES or _A100 in gpu.label


def vllm_tokens(shape: WorkerShape | None, *, offline: bool) -> int | None:
    """Tokens a step that vLLM takes by itself: its class ``LLM`` if offline, else ``vllm serve``. None where it is unknown."""
    hardware = shape.profile.hardware if shape else None
    if shape is None or isinstance(hardware, Tpu):
        # vLLM's table for TPUs has names of chips that its plug-in for TPUs does not use, and there each size is compiled.
        return None
    if hardware is None:
        return CPU_TOKENS if offline else SERVED_SMALL
    if hardware.memory * 10**9 >= HUGE_BYTES:
        return TOKENS_LARGE
    if _is_small(hardware):
        return TOKENS_SMALL if offline else SERVED_SMALL
    return TOKENS_LARGE if offline else SERVED_LARGE


def _tokens(wanted: Wanted, shape: WorkerShape | None, seats: int, hints: Hints) -> int | None:
    """Tokens a step; None where vLLM's own number stays."""
    base, served = vllm_tokens(shape, offline=True), vllm_tokens(shape, offline=False)
    hardware = shape.profile.hardware if shape else None
    if shape is None or base is None or served is None:
        return None
    if isinstance(hardware, Gpu):
        memory = hardware.memory * 1e9 * shape.accelerators_in_all / shape.engines
        if hardware.nodes or (hints.weights_bytes or 0.0) > TIGHT * memory:
            return None  # A deployment's own accelerator is one that nothing is known of.
    if _may_be_unchunked(wanted) and (wanted.length is None or wanted.length > base):
        # With less than the length such a model does not start, and vLLM, which knows the length, takes at least that.
        return None
    # vLLM takes no more for itself either: there would be no texts to fill it.
    most = min(base, seats * wanted.length) if wanted.length else base
    return most if most > served else None


def _may_be_unchunked(wanted: Wanted) -> bool:
    """Whether a text may have to be read in one step: vLLM cuts those of a generating model, and of some pooling models."""
    return (
        wanted.task in _POOLING
        or wanted.flags.get("enable-chunked-prefill") is False
        or wanted.flags.get("no-enable-chunked-prefill") is True
    )


def number(value: Any) -> int | None:
    """A size as vLLM reads it, ``8k`` or 8192; None for what is none."""
    match = _SIZE.fullmatch(str(value))
    return int(float(match[1]) * _POWERS[match[2]]) if match and not isinstance(value, bool) else None


def _dotted(version: Version | None) -> str:
    return ".".join(map(str, version or ()))
