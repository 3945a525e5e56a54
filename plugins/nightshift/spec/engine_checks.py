"""Checks of a job's engine and its machines: what would not start, or refuse every row. For nightly jobs and streams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from pydantic_core import PydanticCustomError

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.fields.values import shown
from nightshift.profiles import Span, misfits
from nightshift.spec import values
from nightshift.spec.columns import REASONING
from nightshift.spec.document import Document
from nightshift.spec.engine_defaults import SHARES
from nightshift.spec.profile_names import profile_of, unknown
from nightshift.spec.request_checks import is_text
from nightshift.spec.vllm_flags import dashed, takes
from nightshift.spec.vllm_names import elsewhere
from nightshift.tasks import TASK_KINDS, request_model

if TYPE_CHECKING:
    from nightshift.spec.model import JobSpec
    from nightshift.spec.stream import StreamSpec

_LENGTH: Final[FieldPath] = ("engine", "max_model_len")
_SEATS: Final[FieldPath] = ("engine", "max_num_seqs")
_BOUNDS: Final = (
    ("max-num-batched-tokens", _SEATS, True),
    ("max-num-active-seqs", _SEATS, False),
    ("long-prefill-token-threshold", _LENGTH, False),
)
"""Flags with which vLLM does not start unless they are at least (True), or at most, the other number."""
PARSER: Final = "reasoning-parser"
"""The flag of vLLM with which it takes the reasoning out of the text."""
TEMPLATE: Final = "chat-template"
_COLUMNS: Final = (("destination", "column"), ("destination", "partition_column"), ("sink", "column"))


def engine(document: Document) -> Iterator[Finding]:
    """Every mistake of engine and machines. Values of a wrong type are skipped: the model reports them."""
    args = document.get("engine", "args")
    flags = {dashed(name): name for name in args if isinstance(name, str)} if isinstance(args, dict) else {}
    yield from _compute(document)
    yield from _flags(document, flags)
    yield from _room(document)
    for flag, other, least in _BOUNDS:
        yield from _flag(document, flags, flag, other, least=least)
    yield from _shares(document, flags)
    yield from _reasoning(document)
    yield from _cut_pairs(document, flags)


def doubts(spec: JobSpec | StreamSpec) -> Iterator[str]:
    """What is valid in a job, and will hardly do what was meant: a sentence or two each."""
    args = {dashed(name): value for name, value in spec.engine.args.items()}
    if "tokenizer-revision" not in args and not str(args.get("tokenizer", "/")).startswith("/"):
        yield (
            "engine.args.tokenizer: Add tokenizer-revision with a commit. Without it vLLM takes the newest of that repository "
            "at each start, so the answers of one run may be of two tokenizers."
        )
    if getattr(spec.request, "stop", ()) and PARSER in args:
        yield (
            "request.stop: Leave it out, or name strings that the reasoning cannot hold. vLLM looks for them there, too "
            f"(engine.args.{PARSER}), so it may end an answer before its text begins. Such an answer counts as cut: "
            "request.truncated decides what becomes of it."
        )


def _compute(document: Document) -> Iterator[Finding]:
    """Whether topology, hosts and parallelism fit the profile, and every profile that the job may fall back to."""
    yield from _unknown_profiles(document)
    stated = {name: document.get("compute", name) for name in Span.__dataclass_fields__}
    if any(value is not None and not _may_be(name, value) for name, value in stated.items()):
        return  # the model reports it
    span, own = Span(**stated), document.get("compute", "profile")
    mine = list(misfits(profile_of(own), span)) if _is_profile(own) else []
    yield from (Finding(("compute", each.field), each.problem, each.remedy) for each in mine)
    fallback = document.get("compute", "fallback")
    seen = [own]
    for index, name in enumerate(fallback if isinstance(fallback, list) else ()):
        path: FieldPath = ("compute", "fallback", index)
        if name in seen:
            yield Finding(path, f"{name!r} is already listed", "List each profile once; compute.profile is the first")
        elif _is_profile(name) and not mine:
            for each in misfits(profile_of(name), span):
                yield Finding(
                    path,
                    f"This fallback does not fit the rest of compute: {each.problem}",
                    "Leave it out, or name another profile",
                )
        seen.append(name)


def _unknown_profiles(document: Document) -> Iterator[Finding]:
    """Names that are well formed, and that no profile has: what a job was opened with is not looked up again."""
    fallback = document.get("compute", "fallback")
    places: dict[FieldPath, Any] = {("compute", "profile"): document.get("compute", "profile")}
    places |= {("compute", "fallback", at): name for at, name in enumerate(fallback if isinstance(fallback, list) else ())}
    for path, name in places.items():
        if is_text(name) and (found := unknown(name)):
            yield Finding(path, *found)


def _flags(document: Document, names: Mapping[str, str]) -> Iterator[Finding]:
    """Whether the model stays what the run pins; whether flags that do not affect answers have values of their own kind: such a
    flag may change while a run is open. names: as the file has them, by those with dashes."""
    for flag, name in names.items():
        path: FieldPath = ("engine", "args", name)
        value, kind = document.get(*path), takes(name)
        if (opposite := names.get(f"no-{flag}")) is not None:
            yield Finding(
                path, f"{name} and {opposite} say the opposite of each other", f"Leave one out, or write {flag}: false alone"
            )
        if other := elsewhere(flag, value, frozenset(names)):
            yield Finding(path, *other)
        if kind is None or kind.fits(value) or not _may_be_a_flags(value):
            continue
        if kind.form:
            yield Finding(path, f"--{flag} cannot be {shown(value)}", f"Write {kind.form}")
        else:
            yield Finding(path, f"--{flag} cannot be set in a job", kind.remedy)


def _flag(document: Document, names: Mapping[str, str], flag: str, path: FieldPath, *, least: bool) -> Iterator[Finding]:
    if flag not in names:
        return
    place: FieldPath = ("engine", "args", names[flag])
    value, other = _count(document.get(*place)), _count(document.get(*path))
    if value is None or other is None or (value >= other if least else value <= other):
        return
    problem = f"vLLM does not start if --{flag} ({value:,}) is {'less' if least else 'more'} than {'.'.join(map(str, path))}"
    yield Finding(place, f"{problem} ({other:,})", f"Write {other} or {'more' if least else 'less'}, or leave it out")


def _shares(document: Document, names: Mapping[str, str]) -> Iterator[Finding]:
    """Engines that share an accelerator have all of its memory together at most."""
    engines = _count(document.get("compute", "engines")) or 1
    for flag in SHARES:
        place: FieldPath = ("engine", "args", names.get(flag, flag))
        share = document.get(*place)
        number = isinstance(share, int | float) and not isinstance(share, bool) and _may_be_a_flags(share)
        if number and engines * share > 1:
            several = f"{engines} engines (compute.engines) with {share:g} of the memory each need"
            problem = f"{several if engines > 1 else f'An engine with {share:g} of the memory needs'} more than all of it"
            yield Finding(place, problem, f"Leave it out, or write at most {math.floor(1000 / engines) / 1000:g}")


def _room(document: Document) -> Iterator[Finding]:
    """Prompt and answer share the model's length, and a prompt has a token at least."""
    task, values, length = document.get("task"), document.get("request"), _count(document.get(*_LENGTH))
    if not isinstance(task, str) or task not in TASK_KINDS or not isinstance(values, dict) or length is None:
        return
    field = request_model(task).model_fields.get("max_tokens")
    if field is None:
        return
    stated = values.get("max_tokens")
    tokens = _count(field.default if stated is None else stated)
    if tokens is None or tokens < length:
        return
    default = " by default" if stated is None else ""
    problem = (
        f"An answer may have {tokens:,} tokens{default} (request.max_tokens), but prompt and answer together have {length:,} "
        "(engine.max_model_len): the engine would refuse every row"
    )
    remedy = "Raise engine.max_model_len" + (f", or write less than {length:,} as request.max_tokens" if length > 1 else "")
    yield Finding(_LENGTH if stated is None else ("request", "max_tokens"), problem, remedy)


def _reasoning(document: Document) -> Iterator[Finding]:
    """Every mistake of `request.reasoning: keep`."""
    path: FieldPath = ("request", "reasoning")
    task = document.get("task")
    known = isinstance(task, str) and task in TASK_KINDS and "reasoning" in request_model(task).model_fields
    if not known or document.get(*path) != "keep":
        return
    args = document.get("engine", "args")
    if args is None or (isinstance(args, dict) and PARSER not in map(dashed, map(str, args))):
        problem = "The engine has no reasoning parser, so it would leave the reasoning in the text"
        yield Finding(path, problem, f"Add the parser of your model, for example engine.args: {{{PARSER}: qwen3}}")
    names: dict[FieldPath, Any] = {place: document.get(*place) for place in _COLUMNS}
    for key in ("key", "pass_through"):
        listed = document.get("source", key)
        names |= {("source", key, index): name for index, name in enumerate(listed if isinstance(listed, list) else ())}
    for place, name in names.items():
        if isinstance(name, str) and name.casefold() == REASONING:
            yield Finding(place, f"{name!r} is the column of the reasoning that the job keeps", "Choose another name")


def _cut_pairs(document: Document, names: Mapping[str, str]) -> Iterator[Finding]:
    """vLLM cuts a prompt at its end; what stands there is up to the template: the query, or text that the score needs."""
    task, template = document.get("task"), document.get("engine", "args", names.get(TEMPLATE, TEMPLATE))
    if not isinstance(task, str) or task not in TASK_KINDS or not request_model(task).PAIRS or template in (None, False):
        return
    if document.get("request", "overlong") == "truncate":
        problem = (
            f"With a template of its own (engine.args.{TEMPLATE}) the prompt is cut where the template ends: the query may be "
            "lost, and every score with it, without an error"
        )
        remedy = "Leave it out, and shorten the documents in the query, for example SUBSTR(body, 1, 4000)"
        yield Finding(("request", "overlong"), problem, remedy)


def _may_be_a_flags(value: Any) -> bool:
    try:
        values.engine_value(value)
    except PydanticCustomError:  # the model reports it
        return False
    return True


def _is_profile(value: Any) -> bool:
    return isinstance(value, str) and unknown(value) is None


def _may_be(name: str, value: Any) -> bool:
    return isinstance(value, str) if name == "topology" else _count(value) is not None


def _count(value: Any) -> int | None:
    """A number of at least 1; None for what the model or the flag's own check refuses."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
