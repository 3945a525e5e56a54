"""The names of `vllm serve`'s flags, and those with which a job's ``model`` would stand for something else than the run pins.

The file beside this one has the names by release, from vLLM's own parser: all of the first, with the words of a flag that takes
no others, and for a later one the names that it adds. Builds for other hardware, and plug-ins, may have more: what is not there
is worth a warning, and no more.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib import resources
from typing import Any, Final

from nightshift.fields.mistakes import nearest
from nightshift.spec.engine_defaults import Version
from nightshift.spec.values import ENGINE_FLAGS
from nightshift.spec.vllm_flags import dashed

NAMES: Final[Mapping[str, Mapping[str, list[str]]]] = json.loads(
    resources.files(__package__).joinpath("vllm_flags.json").read_text()
)
"""By release and name: the words that a flag takes, none if it takes others. The first has all names, later ones the new."""
_ALL: Final = frozenset(name for names in NAMES.values() for name in names)


_NO_ADAPTER: Final = "A job cannot name an adapter yet, so the model without one would answer every row"
_MERGE: Final = "Leave it out. Merge the adapter into the model's weights, and name the merged model as model.uri"

OTHER_MODEL: Final[Mapping[str, tuple[str, str]]] = {
    "enable-lora": (_NO_ADAPTER, _MERGE),
    "lora-modules": (_NO_ADAPTER, _MERGE),
    "default-mm-loras": ("An adapter that the run does not pin would answer rows with images, sound or video", _MERGE),
    "hf-config-path": (
        "The model's config would come from another place than the weights, which the run does not pin",
        "Leave it out. Put the config beside the weights, or write what differs as hf-overrides",
    ),
    "code-revision": (
        "The model's code would be of another commit than its weights, which the run does not pin",
        "Leave it out: vLLM takes the code of model.revision",
    ),
    "tokenizer-revision": (
        "The model's tokenizer would be of another commit than its weights, which the run does not pin",
        "Leave it out, or name the other repository, too, as tokenizer",
    ),
    "model-class-overrides": (
        "Another program than the model's own would compute the answers",
        "Leave it out: vLLM has it for development",
    ),
    "weight-transfer-config": (
        "The model's weights could be replaced while the engine runs",
        "Leave it out: it is for training",
    ),
    "load-format": (
        "The weights would not be those of model.uri: dummy makes random ones, and tensorizer reads them from another place",
        "Leave it out, or write a format of the model's own files, for example safetensors",
    ),
}
"""Flags with which an engine calls something else by the model's name: why a job cannot set one, and what to do instead.

Not among them, on purpose, because the pinned weights answer, and what the flag adds is in the file and in the run's digest:
``tokenizer``, ``hf-overrides``, ``quantization``, ``generation-config``, ``convert``, ``model-impl``, and for speculative
decoding ``speculative-config`` and ``spec-model`` (the model checks what the smaller one proposes)."""


def elsewhere(flag: str, value: Any, flags: frozenset[str]) -> tuple[str, str] | None:
    """Why a job cannot set the flag to this value, and what to do instead; None if it can. flags: of the job, all names with
    dashes.

    vLLM takes any beginning of a name that is only one flag's.
    """
    starts = [each for each in OTHER_MODEL if each.startswith(flag)]
    if not starts or (flag not in OTHER_MODEL and (flag in _ALL or any(each.startswith(flag) for each in ENGINE_FLAGS))):
        return None  # It is another flag, or nightshift's own, which is refused by its name.
    match starts[0]:
        case "tokenizer-revision":
            refused = "tokenizer" not in flags
        case "load-format":
            refused = str(value).lower() in ("dummy", "tensorizer")
        case _:
            refused = value is not False
    return OTHER_MODEL[starts[0]] if refused else None


def unknown(args: Mapping[str, Any], version: Version | None) -> Iterator[str]:
    """What is odd about the flags in ``engine.args``, a sentence each. version: of the engine's image; None if unknown."""
    known = {
        name: words
        for release, names in NAMES.items()
        for name, words in names.items()
        if version is None or release == next(iter(NAMES)) or version >= tuple(map(int, release.split(".")[:2]))
    }
    engine = "" if version is None else f", and the engine's image has vLLM {'.'.join(map(str, version))}"
    for name, value in args.items():
        flag = f"no-{dashed(name)}" if value is False else dashed(name)
        if flag in known:
            odd = [each for each in (value if isinstance(value, list) else [value]) if not isinstance(each, bool)]
            if (words := known[flag]) and not set(map(str, odd)) <= set(words):
                yield f"--{flag} takes one of {', '.join(words)} in vLLM {next(iter(NAMES))}, not {value!r}{engine}."
            continue
        later = next((release for release, names in NAMES.items() if flag in names), None)
        if later is not None:
            yield f"--{flag} is new in vLLM {later}{engine}."
            continue
        near = nearest(flag, (each for each in known if each.removeprefix("no-") not in ENGINE_FLAGS))
        meant = f" Did you mean {near}?" if near else ""
        yield f"vLLM {' and '.join(NAMES)} have no flag --{flag}{engine}.{meant}"
