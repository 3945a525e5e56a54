"""Whether a sealed run's chunks are still the objects that were sealed: what publishing asks before and after it loads them.

Cloud Storage gives each version of an object a generation, which never comes back. So if an object has the sealed generation
after BigQuery has read it, that generation is what BigQuery has read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import obstore
from obstore.store import ObjectStore

from nightshift.fields.text import n
from nightshift.run.manifest import RunManifest, SealedChunk, load_completed
from nightshift.run.names import RunRef
from nightshift.run.plan import Plan
from nightshift.run.redo.redo import Redo
from nightshift.run.seal import merkle_root
from nightshift.store import reaching, version_of

ASKED_AT_ONCE: Final = 32
NAMED: Final = 5
"""How many altered chunks an error message names."""


class SealBroken(ValueError):
    """A committed chunk was overwritten or deleted after its run was sealed, or the run manifest was altered."""


def check_sealed(store: ObjectStore, run: RunRef, manifest: RunManifest) -> None:
    """Raises SealBroken if the manifest is not one of this run, or a chunk is not the object that was sealed; StoreUnavailable.

    The store is rooted at the bucket. One HEAD for each chunk.
    """
    _check_manifest(run, manifest)
    altered = asyncio.run(_altered(store, manifest.chunks))
    if altered:
        named = ", ".join(altered[:NAMED]) + (", ..." if len(altered) > NAMED else "")
        raise SealBroken(
            f"{len(altered)} of {n(len(manifest.chunks), 'chunk')} of run {manifest.run_id} were overwritten or deleted after "
            f"the run was sealed: {named}. Nothing is published, because these rows are not the ones that were proven. Find "
            "out who may write into the bucket, then trigger the DAG with fresh."
        )


def check_follows(run: RunRef, manifest: RunManifest, plan: Plan) -> None:
    """Raises SealBroken if the manifest is one of another plan, or of another opening of the run."""
    if (manifest.opening, manifest.plan) != (plan.opening, plan.uid):
        raise SealBroken(
            f"{run.manifest_path} was written for another plan than {run.plan_path}: the run's folder was deleted in part, or "
            "someone has copied one of the two. Nothing is published. Trigger the DAG with fresh."
        )


def whole(store: ObjectStore, run: RunRef, manifest: RunManifest, redo: Redo | None) -> RunManifest:
    """The manifest with those of the runs that it completes (`RunManifest.earlier`), the latest first.

    redo: what the run is, by its record. A run that is not a redo completes none. Raises SealBroken if one of them is not the
    run that was completed.
    """
    earlier = []
    for each in manifest.completes:
        other = RunRef.from_prefix(f"{run.job}/{run.partition}/{each.run_id}")
        found = load_completed(store, other, each.manifest_digest)
        if found is None:
            raise SealBroken(
                f"Run {other.run_id} is not the one that run {run.run_id} completes: it was deleted or computed again "
                "meanwhile. Nothing is published. Trigger the DAG with fresh."
            )
        earlier.append(found)
    latest = [(each.run_id, each.manifest_digest) for each in manifest.completes[:1]]
    if latest != ([(redo.run_id, redo.manifest_digest)] if redo else []):
        raise SealBroken(
            f"{run.manifest_path} and {run.spec_path} do not agree on the run that this one completes. Nothing is published. "
            "Find out who may write into the bucket, then trigger the DAG with fresh."
        )
    return replace(manifest, earlier=tuple(earlier))


def check_whole(store: ObjectStore, run: RunRef, manifest: RunManifest) -> None:
    """`check_sealed` for the run and for each that it completes. manifest: of `whole`."""
    check_sealed(store, run, manifest)
    for each in manifest.earlier:
        check_sealed(store, RunRef.from_prefix(f"{run.job}/{run.partition}/{each.run_id}"), each)


def _check_manifest(run: RunRef, manifest: RunManifest) -> None:
    """A manifest that was copied from another run, or edited, must not name other chunks than those that were proven."""
    work, chunks = run.work(manifest.plan), manifest.chunks
    numbers = [chunk.chunk for chunk in chunks]
    proven = (
        manifest.run_id == run.run_id
        and (numbers == list(range(len(chunks))) if not manifest.unanswered else numbers == sorted(set(numbers)))
        and [chunk.path for chunk in chunks] == [work.chunk_path(number) for number in numbers]
        and merkle_root([chunk.sha256 for chunk in chunks]) == manifest.merkle_root
        and manifest.committed_rows == sum(chunk.rows for chunk in chunks)
        and manifest.predictions == sum(chunk.predictions for chunk in chunks)
        and manifest.dead_letters == sum(chunk.dead_letters for chunk in chunks)
        and all(chunk.object_version is not None for chunk in chunks)
    )
    if not proven:
        raise SealBroken(
            f"{run.manifest_path} is not what the task 'seal' wrote: its run, chunks, counts and Merkle root do not agree. "
            "Nothing is published. Find out who may write into the bucket, then trigger the DAG with fresh."
        )


async def _altered(store: ObjectStore, entries: Sequence[SealedChunk]) -> list[str]:
    """Paths of the chunks that are not what was sealed, in order."""
    waiting = iter(entries)
    altered = set()

    async def ask() -> None:
        for entry in waiting:
            if not await _is_sealed(store, entry):
                altered.add(entry.path)

    with reaching("look at the sealed chunks"):
        await asyncio.gather(*(ask() for _ in range(ASKED_AT_ONCE)))
    return [entry.path for entry in entries if entry.path in altered]


async def _is_sealed(store: ObjectStore, entry: SealedChunk) -> bool:
    try:
        found = version_of(await obstore.head_async(store, entry.path))
    except FileNotFoundError:
        return False
    return found == entry.object_version
