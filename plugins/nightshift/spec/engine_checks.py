"""Checks of a job's numbers against those of its engine, which would not start or refuse every row. For jobs and streams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from nightshift.fields.mistakes import FieldPath, Finding
from nightshift.spec.document import Document
from nightshift.spec.vllm_flags import dashed
from nightshift.tasks import TASK_KINDS, request_model

_LENGTH: Final[FieldPath] = ("engine", "max_model_len")
_SEATS: Final[FieldPath] = ("engine", "max_num_seqs")
_AT_LEAST: Final = (("max-num-batched-tokens", _SEATS),)
_AT_MOST: Final = (("max-num-active-seqs", _SEATS), ("long-prefill-token-threshold", _LENGTH))
"""Flags with which vLLM does not start unless they are at least, or at most, the other number."""


def engine(document: Document) -> Iterator[Finding]:
    """Every pair of numbers that do not fit. Values of a wrong type are skipped: the model reports them."""
    yield from _room(document)
    args = document.get("engine", "args")
    flags = {dashed(name): name for name in args if isinstance(name, str)} if isinstance(args, dict) else {}
    for flag, other in _AT_LEAST:
        yield from _flag(document, flags, flag, other, least=True)
    for flag, other in _AT_MOST:
        yield from _flag(document, flags, flag, other, least=False)


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


def _flag(document: Document, names: Mapping[str, str], flag: str, path: FieldPath, *, least: bool) -> Iterator[Finding]:
    if flag not in names:
        return
    place: FieldPath = ("engine", "args", names[flag])
    value, other = _count(document.get(*place)), _count(document.get(*path))
    if value is None or other is None or (value >= other if least else value <= other):
        return
    problem = f"vLLM does not start if --{flag} ({value:,}) is {'less' if least else 'more'} than {'.'.join(map(str, path))}"
    yield Finding(place, f"{problem} ({other:,})", f"Write {other} or {'more' if least else 'less'}, or leave it out")


def _count(value: Any) -> int | None:
    """A number of at least 1; None for what the model or the flag's own check refuses."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
