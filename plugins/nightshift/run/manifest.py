"""The run manifest, `manifest.json`: what the seal has proven of a run, and what its attempts claim.

A run that is not sealed may have a *closing* in its place, for a redo that completes it: the same document about what was
committed by then (`nightshift.run.seal.close`). Chunks that are committed later do not belong to it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, NamedTuple

from obstore.store import ObjectStore

from nightshift.fields.stored import read
from nightshift.formats import MANIFEST, UnreadableFormat, loaded
from nightshift.run.names import RunRef, canonical_json
from nightshift.run.pins import UNPINNED, Pins
from nightshift.store import get_bytes

_PLAIN: Final = (
    *("run_id", "job", "partition", "generation", "opening", "plan", "rows", "predictions", "dead_letters", "dead_reasons"),
    *("duplicates", "prompt_tokens", "output_tokens", "truncated", "engine_versions", "merkle_root", "sealed_at"),
)
"""The entries that are stored as they are."""
_LATER: Final = {"opening": "", "plan": "", "output_tokens": None, "truncated": 0}
"""Entries that earlier releases did not write, and what is read instead."""


class Totals(NamedTuple):
    """Of the partition that a sealed run shows: its own predictions and those of the runs that it completes."""

    rows: int
    predictions: int
    dead_letters: int


@dataclass(frozen=True)
class SealedChunk:
    """A committed chunk as the seal read it. sha256: of the object, in hex. object_version: its generation in Cloud Storage
    (`nightshift.store.version_of`); None in a manifest that was edited."""

    chunk: int
    path: str
    sha256: str
    rows: int
    predictions: int
    dead_letters: int
    object_version: str | None = None


@dataclass(frozen=True)
class CompletedRun:
    """The entry of a redo's manifest for a run that its partition also shows. manifest_digest: `RunManifest.digest` of it."""

    run_id: str
    rows: int
    predictions: int
    dead_letters: int
    manifest_digest: str
    unanswered: int = 0

    @property
    def left(self) -> int:
        """Rows that a redo computes."""
        return self.dead_letters + self.unanswered


@dataclass(frozen=True)
class RunManifest:
    """docs/develop/ledger.md lists the entries. opening, plan: the `uid` of each; empty in one of release 0.2.0.

    prompt_tokens to measured: as attempts claim it. output_tokens: None if the release did not count them. engine_versions:
    rows by engine build. measured: `nightshift.planner.measured.measure`; None if it was not asked.
    completes: the runs that the partition also shows, the latest first; empty for a run that is not a redo.
    sealed_at: ISO 8601, UTC; empty for a closing. unanswered: rows of chunks that were not committed; 0 unless it is a closing.
    empty: answers that hold nothing: texts of spaces alone, empty lists, structs without a value. equal: how often the most
    frequent answer occurs, at least (`nightshift.run.answers.tally`). Both None in a manifest of an earlier release.
    digest: sha256, in hex, of the object; empty for a manifest that was not read. earlier: the manifests of `completes`, once
    they are read (`nightshift.run.sealed_objects.whole`); not stored.
    """

    run_id: str
    job: str
    partition: str
    generation: int
    opening: str
    plan: str
    rows: int
    predictions: int
    dead_letters: int
    dead_reasons: Mapping[str, int]
    duplicates: int
    prompt_tokens: int
    output_tokens: int | None
    truncated: int
    engine_versions: Mapping[str, int]
    merkle_root: str
    sealed_at: str
    attempts: tuple[str, ...]
    chunks: tuple[SealedChunk, ...]
    pins: Pins = UNPINNED
    completes: tuple[CompletedRun, ...] = ()
    measured: Mapping[str, Any] | None = None
    unanswered: int = 0
    empty: int | None = None
    equal: int | None = None
    digest: str = field(default="", compare=False)
    earlier: tuple[RunManifest, ...] = ()

    @property
    def totals(self) -> Totals:
        predictions = self.predictions + sum(each.predictions for each in self.completes)
        return Totals(predictions + self.dead_letters, predictions, self.dead_letters)

    @property
    def as_completed(self) -> CompletedRun:
        """The entry for this run in the manifest of its redo."""
        return CompletedRun(self.run_id, self.rows, self.predictions, self.dead_letters, self.digest, self.unanswered)

    @property
    def committed_rows(self) -> int:
        """Rows of its chunks."""
        return self.rows - self.unanswered

    def to_json(self) -> dict[str, Any]:
        """What is stored, but for what a later release has added."""
        return {
            **MANIFEST.stamp(),
            **{name: getattr(self, name) for name in _PLAIN},
            "pinned": self.pins.to_json(),
            "attempts": list(self.attempts),
            "chunks": [asdict(chunk) for chunk in self.chunks],
            **({"completes": [asdict(each) for each in self.completes]} if self.completes else {}),
            **({} if self.measured is None else {"measured": self.measured}),
            **({"unanswered": self.unanswered} if self.unanswered else {}),
            **({} if self.empty is None or self.equal is None else {"empty": self.empty, "equal": self.equal}),
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], where: str) -> RunManifest:
        """where: its path, for messages. Raises UnreadableFormat for a version that this release does not read, and for what
        the seal never writes."""
        MANIFEST.check(stored, where)
        own = {name: stored[name] for name in stored if name not in ("digest", "earlier", "pins", "measured")}
        try:
            return replace(
                read(cls, {**_LATER, **own}),
                pins=Pins.of(stored),
                measured=measured if isinstance(measured := stored.get("measured"), dict) else None,
                digest=hashlib.sha256(canonical_json(stored)).hexdigest(),
            )
        except ValueError as error:
            raise _edited(where, error) from error


def _edited(where: str, error: Exception) -> UnreadableFormat:
    return UnreadableFormat(
        f"{where} is not what the task 'seal' wrote ({error}). Find out who may write into the bucket, then trigger the DAG "
        "with fresh."
    )


def load_manifest(store: ObjectStore, run: RunRef) -> RunManifest | None:
    """The manifest of a sealed run, else None. Raises UnreadableFormat."""
    body = get_bytes(store, run.manifest_path)
    return None if body is None else read_manifest(body, run)


def load_completed(store: ObjectStore, run: RunRef, digest: str) -> RunManifest | None:
    """The manifest of the run with this digest, or its closing; None if there is neither. Raises UnreadableFormat."""
    for path in (run.manifest_path, run.closed_path(digest)):
        body = get_bytes(store, path)
        if body is not None and (found := read_manifest(body, run)).digest == digest:
            return found
    return None


def read_manifest(body: bytes, run: RunRef) -> RunManifest:
    """From the content of the object. Raises UnreadableFormat."""
    try:
        stored = loaded(body)
    except ValueError as error:
        raise _edited(run.manifest_path, error) from error
    if not isinstance(stored, dict):
        raise _edited(run.manifest_path, ValueError("not a JSON object"))
    return RunManifest.from_json(stored, run.manifest_path)
