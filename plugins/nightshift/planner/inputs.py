"""What the planner gets: the model's config, the tokens of a sample of rows, the deployment's limits. For a task and for a
command."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.text import n
from nightshift.planner import tokens
from nightshift.planner.model import Model, UnknownModel, model_of, model_of_size
from nightshift.planner.order import shares
from nightshift.planner.source import sample_warnings
from nightshift.planner.speed import CHARS_PER_TOKEN, SPECIAL_TOKENS, Known, tokens_of
from nightshift.run.models import model_files

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider

    from nightshift.planner.record import Record
    from nightshift.run.order import Counts
    from nightshift.run.pins import Pins
    from nightshift.spec import JobSpec

SAMPLE_ROWS: Final = 200
IMAGE_TOKENS: Final = 576
"""Of an image, assumed: 24 x 24 patches, as LLaVA 1.5 makes of each (arXiv 2310.03744)."""

Sample = Callable[[Sequence[str], int], Sequence[Mapping[str, Any]]]
"""Some rows of the query: with these columns, at most N."""


def known_of(
    spec: JobSpec,
    pins: Pins,
    *,
    sample: Sample | None = None,
    input_tokens: float | None = None,
    output_tokens: float | None = None,
    records: Mapping[str, Record] | None = None,
    counts: Counts | None = None,
    environment: Mapping[str, str] | None = None,
    credentials: GCSCredentialProvider | None = None,
) -> Known:
    """Everything that a plan can be made from, as far as it can be had. sample: None if the warehouse must not be asked.

    input_tokens, output_tokens: of a mean row, if the user states them. records: of the same work, by profile; their answers'
    mean length stands for the task's limit where a profile has no record. counts: of the query's rows.
    Raises what `sample` raises.
    """

    from nightshift.tasks.base import read_columns, union

    variables = os.environ if environment is None else environment
    missing: list[model_files.NoFile] = []

    def read(name: str) -> bytes:
        # Where one file cannot be had, the client would try the other for half a minute, too.
        if missing:
            raise missing[0]
        try:
            return model_files.read_file(spec, name, pins, environment=variables, credentials=credentials)
        except model_files.NoFile as error:
            missing.append(error)
            raise

    model, why_not = _model(spec, pins, read)
    source = "" if input_tokens is None else f"{input_tokens:,.0f} input tokens per row, as given"
    texts = None if spec.task == "rerank" else 1.0
    shared: tuple[float, ...] = ()
    copied: dict[str, float] = {}
    warnings: tuple[str, ...] = ()
    if input_tokens is None and sample is not None:
        # An image is not counted, so it is not fetched either, unless it is copied.
        columns = union(*(names for field, names in read_columns(spec.request) if field != "image"))
        rows = sample(union(columns, spec.source.carried), SAMPLE_ROWS)
        warnings = tuple(sample_warnings(spec, rows))
        copied = {name: sum(_bytes(row.get(name)) for row in rows) / len(rows) for name in spec.source.carried if rows}
        prompts = [found for found in _prompts(spec, rows if columns else ()) if any(found)]
        input_tokens, texts, source = _measured(spec, prompts, read)
        if counts and prompts and spec.source.order == "auto":
            shared = shares(spec, counts.columns, rows, _length(spec, prompts))
    output_source = "as given"
    if output_tokens is None and (measured := [each for each in (records or {}).values() if each.rows and each.output_tokens]):
        # Tokens of rows that had no answer are in it, too.
        output_tokens = min(measured[0].output_tokens / measured[0].rows, getattr(spec.request, "max_tokens", 0))
        output_source = f"measured in run {measured[0].run}"
    mean = tokens_of(spec, input_tokens, source if input_tokens is not None else "", output_tokens, output_source)
    absent = next((str(each) for each in missing if isinstance(each, model_files.NoModel)), "")
    return Known(replace(mean, texts=texts), model, why_not, records, absent, counts, shared, copied, warnings)


def _model(spec: JobSpec, pins: Pins, read: Callable[[str], bytes]) -> tuple[Model | None, str]:
    try:
        return model_for(spec, json.loads(read(model_files.CONFIG))), ""
    except model_files.NoModel:
        why_not = "no engine will find the model"
    except (model_files.NoFile, UnknownModel) as error:
        why_not = str(error)
    except RecursionError:
        why_not = "its config.json is nested too deeply"
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        why_not = f"its config.json is not JSON: {error}"
    except Exception as error:  # The file is foreign: whatever is in it, planning goes on without it.
        why_not = f"its config.json cannot be read ({type(error).__name__})"
    gib = spec.compute.weights_gib
    size = gib << 30 if gib else pins.weights_bytes
    return (model_of_size(size, spec.engine.dtype) if size else None), why_not


def model_for(spec: JobSpec, config: object) -> Model:
    """The model of a ``config.json``, as the job's engine computes it. Raises UnknownModel."""
    flags = {name: str(value) for name, value in spec.engine.flags.items()}
    return model_of(config, spec.engine.dtype, flags.get("kv-cache-dtype", "auto"), flags.get("quantization"))


def _measured(
    spec: JobSpec, texts: Sequence[list[str]], read: Callable[[str], bytes]
) -> tuple[float | None, float | None, str]:
    """Mean input tokens of a row, in how many texts, and how they were counted; None if there are no prompts."""
    if not texts:
        return None, None if spec.task == "rerank" else 1.0, ""
    images = IMAGE_TOKENS if spec.task == "image" else 0
    try:
        counts = tokens.count(texts, read(model_files.TOKENIZER))
        how = "the model's tokenizer"
    except (model_files.NoFile, tokens.Uncountable) as error:
        counts = [sum(len(text) / CHARS_PER_TOKEN + SPECIAL_TOKENS for text in row) for row in texts]
        how = f"{CHARS_PER_TOKEN:g} characters per token, because {error}"
    mean = sum(counts) / len(counts) + images
    source = f"{mean:,.0f} input tokens per row: a sample of {n(len(texts), 'row')}, {how}"
    if spec.task != "rerank":
        return mean, 1.0, source
    pairs = sum(len(row) for row in texts) / 2 / len(texts)
    return mean, pairs, f"{source}, {pairs:,.0f} documents per row"


def _length(spec: JobSpec, texts: Sequence[list[str]]) -> float:
    """Mean characters of a prompt; an image's tokens are some, too."""
    images = IMAGE_TOKENS * CHARS_PER_TOKEN if spec.task == "image" else 0.0
    return sum(sum(map(len, prompt)) for prompt in texts) / len(texts) + images


def _prompts(spec: JobSpec, rows: Iterable[Mapping[str, Any]]) -> Iterator[list[str]]:
    """The texts of each row that a model reads, without those that become dead letters. None after a row whose template takes
    too long: each such row would take seconds."""
    from nightshift.tasks.base import BadInput, SlowTemplate

    for row in rows:
        try:
            yield list(_texts(spec, row))
        except SlowTemplate:
            return
        except BadInput:
            continue


def _texts(spec: JobSpec, row: Mapping[str, Any]) -> Iterator[str]:
    """Raises BadInput."""
    from nightshift.tasks.base import Text

    request = spec.request
    rendered = [
        Text(source, blank=True, apart=True).of(row)
        for name in request.TEMPLATES
        if (source := getattr(request, name)) is not None
    ]
    columns = [column for name in request.COLUMNS if name != "image" and (column := getattr(request, name)) is not None]
    found = [text for column in columns for text in _strings(row[column])]
    if spec.task == "rerank":
        # Each document is read with the query.
        yield from (text for document in found for text in (*rendered, document))
    else:
        yield from (*rendered, *found)


def _bytes(value: Any) -> int:
    """About how many a value has in a chunk."""
    if isinstance(value, str):
        return len(value.encode("utf-8", "replace"))
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(_bytes, value.values()))
    return sum(map(_bytes, value)) if isinstance(value, Sequence) else 8


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _strings(value.get("content", ""))
    elif isinstance(value, Sequence):
        for each in value:
            yield from _strings(each)
