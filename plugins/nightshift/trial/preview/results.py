"""The result of a preview: one object in the bucket, which the page and the command read back."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

import obstore

from nightshift.fields.stored import read
from nightshift.formats import PREVIEW, UnreadableFormat
from nightshift.run.answers.bounded import shown
from nightshift.run.answers.compare import Pair
from nightshift.store import get_bytes, reaching
from nightshift.trial.engine_folder import PREVIEWS, is_id
from nightshift.trial.outcomes import Computed

if TYPE_CHECKING:
    from obstore.store import ObjectStore

log = logging.getLogger(__name__)

TEXT_MOST: Final = 8_000
"""Characters of one prompt or answer that are kept."""
ITEMS_MOST: Final = 16
"""Numbers of a vector that are kept."""


class NotAPreview(ValueError):
    """An object that is not the result of a preview."""


@dataclass(frozen=True)
class PreviewRow(Computed):
    """A computed row with its key, each value cut to a bounded length. key: its columns."""

    key: Mapping[str, Any] = field(kw_only=True)


@dataclass(frozen=True)
class NightEstimate:
    """What the whole night would take, by the planner, with the tokens that these rows had.

    rows: of the query. input_tokens, output_tokens: of all of them. seconds: from the first worker's start to the last answer.
    hours: of accelerators, or of the profile's machines. None: not known, as of cost where a machine has no price. speed: where
    that of a worker is from. problem: why it would not fit, or ''. start_up_s: of seconds. start_up_at_most: whether that is
    what the profile allows, because no run has measured it.
    """

    rows: int
    input_tokens: int
    output_tokens: int
    profile: str
    workers: int | None = None
    seconds: float | None = None
    hours: float | None = None
    cost: float | None = None
    currency: str = ""
    speed: str = ""
    problem: str = ""
    start_up_s: float | None = None
    start_up_at_most: bool = False


@dataclass(frozen=True)
class Variant:
    """A job's answers. file: as it was named. spec_digest: of what decides answers. engine: its version. engine_s: it took.

    warnings: of the rows (`nightshift.planner.source`).
    """

    file: str
    job: str
    model: str
    spec_digest: str
    rows: tuple[PreviewRow, ...]
    prompt_tokens: int
    output_tokens: int
    engine: str
    engine_s: float
    night: NightEstimate
    warnings: tuple[str, ...] = ()

    @property
    def dead(self) -> int:
        return sum(row.reason is not None for row in self.rows)

    @property
    def truncated(self) -> int:
        return sum(row.finish_reason in ("length", "cut") for row in self.rows)


@dataclass(frozen=True)
class Preview:
    """variants: the job, and the one it was compared with, if any. pairs: the rows that both have. query_bytes: what
    the sample read, as far as BigQuery said it; 0 if the rows were kept from before. seconds: by step. by: who asked."""

    id: str
    job: str
    partition: str
    at: str
    by: str
    variants: tuple[Variant, ...]
    pairs: tuple[Pair, ...] = ()
    rows_kept: bool = False
    query_bytes: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def changed_answers(self) -> int:
        return sum(pair.answer is not None for pair in self.pairs)

    @property
    def changed_prompts(self) -> int:
        return sum(pair.prompt is not None for pair in self.pairs)

    def to_json(self) -> dict[str, Any]:
        counts = {"changed_answers": self.changed_answers, "changed_prompts": self.changed_prompts, "compared": len(self.pairs)}
        found: dict[str, Any] = json.loads(ordered({**PREVIEW.stamp(), **asdict(self), **counts}))
        return found

    @classmethod
    def from_json(cls, value: Any, where: str = "the preview") -> Preview:
        """Inverse of `to_json`; entries of a later release are passed over. Raises NotAPreview, UnreadableFormat."""
        if not isinstance(value, Mapping):
            raise NotAPreview(f"{where} is not a JSON object")
        PREVIEW.check(value, where)
        try:
            return read(cls, value)
        except ValueError as error:
            raise NotAPreview(f"{where} is not the result of a preview: {error}") from error


def ordered(value: Any) -> bytes:
    """As JSON, with entries in the order that they have: a struct's fields are in that of the schema."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def result_path(job: str, id_: str) -> str:
    return f"{PREVIEWS}/{job}/{id_}.json"


def save(store: ObjectStore, preview: Preview) -> str:
    """Writes it; its path. Raises StoreUnavailable."""
    path = result_path(preview.job, preview.id)
    with reaching(f"write {path}"):
        obstore.put(store, path, ordered(preview.to_json()), mode="create")
    return path


def load(store: ObjectStore, job: str, id_: str) -> Preview | None:
    """The preview of this id; None if there is none. Raises NotAPreview, UnreadableFormat, StoreUnavailable."""
    if not is_id(id_):
        return None
    path = result_path(job, id_)
    with reaching(f"read {path}"):
        body = get_bytes(store, path)
    if body is None:
        return None
    try:
        value = json.loads(body)
    except (RecursionError, ValueError) as error:
        raise NotAPreview(f"{path} is not JSON: {error}") from error
    return Preview.from_json(value, path)


def newest(store: ObjectStore, job: str, count: int) -> list[Preview]:
    """The last `count` of a job, newest first. What cannot be read is passed over with a warning. Raises StoreUnavailable."""
    found = []
    for id_ in sorted(_ids(store, job), reverse=True)[:count]:
        try:
            preview = load(store, job, id_)
        except (NotAPreview, UnreadableFormat) as error:
            log.warning("%s", error)
            continue
        if preview is not None:
            found.append(preview)
    return found


def _ids(store: ObjectStore, job: str) -> Iterator[str]:
    folder = f"{PREVIEWS}/{job}"
    with reaching(f"list {folder}"):
        try:
            for meta in obstore.list_with_delimiter(store, folder)["objects"]:
                id_ = meta["path"].rpartition("/")[2].removesuffix(".json")
                if is_id(id_):
                    yield id_
        except FileNotFoundError:
            return


def bounded(value: Any) -> Any:
    """A value of a row or an answer as JSON of a bounded size."""
    return shown(value, TEXT_MOST, ITEMS_MOST, hexes=True)
