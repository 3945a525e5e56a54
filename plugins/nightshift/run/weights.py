"""Whether the files of a model in a bucket are still the ones with which its run was opened.

vLLM reads the newest generation of each object and cannot be told another. So a run records a fingerprint of the folder, and
each pod compares it before its first row, after its engine has loaded the files.
"""

from __future__ import annotations

import hashlib

import obstore
from obstore.store import ObjectStore

from nightshift.run.names import canonical_json
from nightshift.store import StoreUnavailable, open_store


class NoWeights(ValueError):
    """There are no files at the model's address, or they must not be read."""


class WeightsChanged(ValueError):
    """The model's files are not those with which the run was opened."""


def open_folder(uri: str) -> ObjectStore:
    """The folder ``gs://BUCKET/FOLDER`` of a model."""
    return open_store(uri)


def fingerprint(folder: ObjectStore, uri: str) -> str:
    """sha256, in hex, over the sorted names and generations of all objects in the folder. uri: its address, for people.

    The generation of an object on Cloud Storage changes with each write; other stores give its ETag instead.
    Raises NoWeights and StoreUnavailable.
    """
    try:
        names = [meta["path"] for page in obstore.list(folder) for meta in page]
        found = [(name, _generation(folder, name)) for name in sorted(names)]
    except FileNotFoundError as error:
        raise StoreUnavailable(f"{uri} is being changed: {error}") from error
    except (obstore.exceptions.PermissionDeniedError, obstore.exceptions.UnauthenticatedError) as error:
        problem = str(error).partition("\n")[0]
        raise NoWeights(f"{uri} cannot be listed: {problem}. Give this account roles/storage.objectViewer there.") from error
    except (obstore.exceptions.BaseError, OSError) as error:
        raise StoreUnavailable(f"list {uri}: {error}") from error
    if not found:
        raise NoWeights(f"model.uri: there are no files in {uri}. Write the folder that holds config.json and the weights.")
    return hashlib.sha256(canonical_json(found)).hexdigest()


def check(folder: ObjectStore, uri: str, recorded: str) -> None:
    """Raises WeightsChanged unless the folder has the fingerprint that was recorded; else as `fingerprint`."""
    now = fingerprint(folder, uri)
    if now != recorded:
        raise WeightsChanged(
            f"the files in {uri} were changed after this run was opened (fingerprint {now[:16]}, recorded {recorded[:16]}): "
            "its rows would be answered by two models. Trigger the DAG with fresh: a new run uses the files as they are now"
        )


def _generation(folder: ObjectStore, name: str) -> str:
    # A listing has no generations.
    meta = obstore.head(folder, name)
    return str(meta["version"] or meta["e_tag"])
