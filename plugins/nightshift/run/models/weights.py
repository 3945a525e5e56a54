"""Whether the files of a model in a bucket are still the ones with which its run was opened.

vLLM always reads the newest generation of each object. So a run records a fingerprint of the folder, and each pod compares it
before its first row, after its engine has loaded the files.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import obstore
from obstore.store import ObjectStore

from nightshift.run.names import canonical_json
from nightshift.store import StoreUnavailable, open_folder, status_of, version_of

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import GCSCredentialProvider


class NoWeights(ValueError):
    """There are no files at the model's address, or reading them is not allowed."""


class WeightsChanged(ValueError):
    """The model's files are not those with which the run was opened."""


@dataclass(frozen=True)
class Weights:
    """A model's folder. fingerprint: sha256, in hex, over the names and generations of its objects. size: of all, in bytes."""

    fingerprint: str
    size: int


def look(uri: str, credentials: GCSCredentialProvider | None = None) -> Weights:
    """The folder as it is now. uri: ``gs://BUCKET/FOLDER``. credentials: as `nightshift.store.open_store` takes them.

    An object's generation changes with each write, even of the same bytes. Raises NoWeights and StoreUnavailable.
    """
    bucket, _, name = uri.removeprefix("gs://").partition("/")
    folder = open_folder(bucket, name, credentials)
    try:
        listed = [meta for page in obstore.list(folder) for meta in page]
        found = sorted((meta["path"], _generation(folder, meta)) for meta in listed)
    except (obstore.exceptions.BaseError, OSError) as error:
        problem = str(error).partition("\n")[0]
        if status_of(error) in (401, 403):
            remedy = "Give this account roles/storage.objectViewer there."
            raise NoWeights(f"{uri} cannot be listed: {problem}. {remedy}") from error
        raise StoreUnavailable(f"list {uri}: {problem}") from error
    size = sum(meta["size"] for meta in listed)
    if not size:
        raise NoWeights(f"model.uri: there are no files in {uri}. Write the folder that holds config.json and the weights.")
    return Weights(hashlib.sha256(canonical_json(found)).hexdigest(), size)


def check(uri: str, recorded: str) -> None:
    """Raises WeightsChanged unless the folder has the fingerprint that was recorded; else as `look`."""
    now = look(uri).fingerprint
    if now != recorded:
        raise WeightsChanged(
            f"the files in {uri} were changed after this run was opened (fingerprint {now[:16]}, recorded {recorded[:16]}): "
            "its rows would be answered by two models. Trigger the DAG with fresh: a new run uses the files as they are now"
        )


def _generation(folder: ObjectStore, listed: ObjectMeta) -> str:
    """Asked for one by one: a listing has no generations."""
    try:
        meta = obstore.head(folder, listed["path"])
    except FileNotFoundError:
        # An empty object that stands for a folder: its name ends in a slash, which the client does not send.
        return str(listed["e_tag"])
    return version_of(meta)
