"""Small files beside a model's weights: its config and its tokenizer, at the revision that a run pins."""

from __future__ import annotations

import functools
import os
import socket
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import obstore

from nightshift import pip
from nightshift.run.models import weights
from nightshift.run.models.hub_cache import absent, offline
from nightshift.run.models.hub_revision import endpoint_of
from nightshift.run.pins import Pins
from nightshift.spec import JobSpec
from nightshift.store import StoreUnavailable, open_folder

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider

CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TIMEOUT_S: Final = 10.0
CONFIG_BYTES_MAX: Final = 16 << 20
TOKENIZER_BYTES_MAX: Final = 256 << 20
BYTES_MAX: Final = {CONFIG: CONFIG_BYTES_MAX, TOKENIZER: TOKENIZER_BYTES_MAX}
"""The largest tokenizers of published models have some tens of MiB, and configs that name thousands of classes two."""


class NoFile(Exception):
    """It is missing or cannot be read; the message has the reason. Planning continues without it."""


class NoModel(NoFile):
    """The model itself is not there, so no engine will load it: the message says so, and what to do."""


def read_file(
    spec: JobSpec,
    name: str,
    pins: Pins,
    *,
    environment: Mapping[str, str] = os.environ,
    credentials: GCSCredentialProvider | None = None,
) -> bytes:
    """A file of the job's model: from its bucket, or as Hugging Face's own client finds it (its cache, then the Hub).

    environment: that client's variables HF_ENDPOINT, HF_TOKEN, HF_HUB_CACHE, HF_HOME and HF_HUB_OFFLINE. credentials: as
    `nightshift.store.open_store` takes them. Raises NoFile and NoModel.
    """
    scheme, _, place = spec.model.uri.partition("://")
    if scheme != "gs":
        return _from_hub(place, pins.commit or spec.model.revision, name, environment)
    bucket, _, folder = place.partition("/")
    try:
        found = obstore.get(open_folder(bucket, folder, credentials), name)
        _not_too_large(f"{spec.model.uri}/{name}", name, found.meta["size"])
        return bytes(found.bytes())
    except FileNotFoundError as error:
        _must_have_files(spec.model.uri, credentials)
        raise NoFile(f"there is no {spec.model.uri}/{name}") from error
    except (obstore.exceptions.BaseError, OSError) as error:
        raise NoFile(f"{spec.model.uri}/{name} cannot be read: {_first_line(error)}") from error


def _must_have_files(uri: str, credentials: GCSCredentialProvider | None) -> None:
    """Raises NoModel for a folder without any."""
    with suppress(StoreUnavailable):
        try:
            weights.look(uri, credentials)
        except weights.NoWeights as error:
            raise NoModel(str(error)) from error


def _not_too_large(words: str, name: str, size: int) -> None:
    """size: in bytes. Raises NoFile."""
    if size > BYTES_MAX[name]:
        raise NoFile(f"{words} has {size:,} bytes, more than the {BYTES_MAX[name] >> 20} MiB that are read of such a file")


def _from_hub(repository: str, revision: str, name: str, environment: Mapping[str, str]) -> bytes:
    if missing := absent(repository, revision, environment):
        raise NoModel(str(missing))
    try:
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import LocalEntryNotFoundError, RepositoryNotFoundError, RevisionNotFoundError
    except ModuleNotFoundError as error:
        raise NoFile(f"the package huggingface-hub is not installed here: {pip('airflow')}") from error
    home = environment.get("HF_HOME")
    words = f"{name} of hf://{repository} at {revision!r}"
    download: Callable[..., Any] = functools.partial(
        hf_hub_download,
        repository,
        name,
        revision=revision,
        endpoint=environment.get("HF_ENDPOINT"),
        token=environment.get("HF_TOKEN") or None,
        cache_dir=environment.get("HF_HUB_CACHE") or (f"{home}/hub" if home else None),
        local_files_only=offline(environment),
        etag_timeout=TIMEOUT_S,
    )
    problem = "" if offline(environment) else _no_way_to(endpoint_of(environment))
    if problem:
        # The Hub's own client would try for 24 s.
        download = functools.partial(download, local_files_only=True)
    try:
        # A file that is too large must not fill this machine's disk either.
        _not_too_large(words, name, download(dry_run=True).file_size)
        with open(download(), "rb") as file:
            body = file.read(BYTES_MAX[name] + 1)
        _not_too_large(words, name, len(body))
        return body
    except NoFile:
        raise
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        if error.response.status_code != HTTPStatus.NOT_FOUND:
            # It may be there for who has the token.
            raise NoFile(f"{words} cannot be downloaded: {_first_line(error)}") from error
        raise NoModel(
            f"The engine will not find hf://{repository} at {revision}: the Hub has no such model or revision. Correct "
            "model.uri or model.revision."
        ) from error
    except LocalEntryNotFoundError as error:
        reach = f", and the Hub is out of reach ({problem})" if problem else ""
        raise NoFile(f"{words} is not in the cache of this machine{reach}") from error
    except Exception as error:  # The client has a dozen of its own, and those of its HTTP library.
        raise NoFile(f"{words} cannot be downloaded: {_first_line(error)}") from error


def _no_way_to(endpoint: str) -> str:
    """Why nothing can be sent there; "" if it may be possible. A proxy looks names up by itself."""
    host = urlsplit(endpoint).hostname or ""
    if urllib.request.getproxies() or not host:
        return ""
    try:
        socket.getaddrinfo(host, None)
    except OSError as error:
        return f"{host}: {error.strerror or error}"
    return ""


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or repr(error)
