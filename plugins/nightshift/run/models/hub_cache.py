"""Which models the Hugging Face cache of this machine holds, by the folders that the Hub's own clients make.

A model is ``models--ORGANISATION--NAME``, with a folder ``snapshots/COMMIT`` for each of its revisions that were fetched, and
files ``refs/BRANCH`` that hold a commit (https://huggingface.co/docs/huggingface_hub/guides/manage-cache).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OFFLINE: Final = "HF_HUB_OFFLINE"
_TRUE: Final = ("1", "ON", "YES", "TRUE")
"""What Hugging Face's own clients take for true."""
_FOLDER: Final = "models--"
PAGE: Final = "docs/develop/local-stack.md#models"


@dataclass(frozen=True)
class Absent:
    """A model that an engine on this machine will not find. problem, advice: a clause each, without a full stop."""

    problem: str
    advice: str

    def __str__(self) -> str:
        return f"{self.problem}. {self.advice}."


def offline(environment: Mapping[str, str]) -> bool:
    """Whether HF_HUB_OFFLINE forbids asking the Hub."""
    return environment.get(OFFLINE, "").upper() in _TRUE


def is_local(environment: Mapping[str, str]) -> bool:
    """Whether engines run on this machine, with its cache."""
    return environment.get("NIGHTSHIFT_RUNTIME", "").startswith("local:")


def absent(repository: str, revision: str, environment: Mapping[str, str]) -> Absent | None:
    """Why the local runtime's engines will not find a model of the Hub; None if they will, or if that is not known here.

    repository: ORGANISATION/NAME. On the local runtime engines have this machine's cache, and HF_HUB_OFFLINE as it is here. Of
    the pods of a cluster neither is known: they may ask the Hub where Airflow must not.
    """
    if not (offline(environment) and is_local(environment)):
        return None
    cache = folder_of(environment)
    commits, named = _commits(cache, repository), _named(cache, repository)
    if revision in commits or revision in named:
        return None
    model = f"The engine will not find hf://{repository}"
    because = f"{OFFLINE} is set, so the Hub is not asked, and {cache}"
    if commits:
        held = ", ".join([*sorted(named), *sorted(commits - set(named.values()))])
        return Absent(f"{model} at {revision}: {because} has it only at {held}", "Write that as model.revision")
    here = ", ".join(models(cache))
    advice = f"Name one of these in model.uri: {here}" if here else f"Put the model into {cache}"
    return Absent(f"{model}: {because} does not have it", f"{advice}; `make chat-model` makes a chat model ({PAGE})")


def absent_at(uri: str, revision: str, environment: Mapping[str, str]) -> Absent | None:
    """`absent` of a model by its URI; None for one that is not of the Hub."""
    scheme, _, place = uri.partition("://")
    return absent(place, revision, environment) if scheme == "hf" else None


def folder_of(environment: Mapping[str, str]) -> Path:
    """Where Hugging Face's own clients keep what they fetch."""
    home = Path(environment.get("HF_HOME") or "~/.cache/huggingface").expanduser()
    return Path(environment.get("HF_HUB_CACHE") or home / "hub").expanduser()


def models(cache: Path) -> list[str]:
    """ORGANISATION/NAME of each, sorted."""
    names = sorted(each.name.removeprefix(_FOLDER).replace("--", "/") for each in cache.glob(f"{_FOLDER}*"))
    return [name for name in names if _commits(cache, name)]


def _commits(cache: Path, repository: str) -> set[str]:
    return {each.name for each in (_folder(cache, repository) / "snapshots").glob("*") if each.is_dir()}


def _named(cache: Path, repository: str) -> dict[str, str]:
    """The commits of branches and tags, as far as they were fetched."""
    refs = _folder(cache, repository) / "refs"
    found = {str(each.relative_to(refs)): each.read_text().strip() for each in refs.glob("**/*") if each.is_file()}
    commits = _commits(cache, repository)
    return {name: commit for name, commit in found.items() if commit in commits}


def _folder(cache: Path, repository: str) -> Path:
    return cache / (_FOLDER + repository.replace("/", "--"))
