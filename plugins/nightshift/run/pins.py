"""What a run pins when it is opened, so that all its pods use the same model and the same engine, however late they start.

A job's names of its model can change their meaning: a branch moves, a folder is overwritten, an image's tag is pushed again. So
the record of a run (``pinned`` in `spec.json`) holds what they meant when it was opened. The run's digest does not include it:
a job whose branch has moved finds its open run again and finishes it with the old commit, and a `fresh` run takes the new one
(docs/adr/0013-pins.md). A run that pins nothing uses the names as they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from nightshift.fields.stored import read
from nightshift.run.models import hub_revision, weights
from nightshift.run.models.hub_cache import offline
from nightshift.spec import JobSpec

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class Pins:
    """What a run pins; None for what is not pinned.

    commit: of a model on the Hub, 40 hex digits. weights: of a model in a bucket, the fingerprint of its folder
    (`nightshift.run.models.weights.look`). weights_bytes: of the model's files, as far as an engine fetches them; it only
    decides how much of a node's disk a pod asks for. server_image, cpu_server_image, tpu_server_image: references of the
    engine's images.
    """

    commit: str | None = None
    weights: str | None = None
    weights_bytes: int | None = None
    server_image: str | None = None
    cpu_server_image: str | None = None
    tpu_server_image: str | None = None

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Pins:
        """The entry `pinned` of a run's record, or of its manifest. What only a later release pins is passed over."""
        return read(cls, stored.get("pinned") or {})

    def to_json(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


UNPINNED: Final = Pins()


def pin_model(
    spec: JobSpec, environment: Mapping[str, str] = os.environ, credentials: GCSCredentialProvider | None = None
) -> Pins:
    """What the job's model is now.

    environment: variables of Hugging Face's own clients (`nightshift.run.models.hub_revision`). credentials: for a model in a
    bucket, as `nightshift.store.open_store` takes them. Raises `nightshift.run.models.hub_revision.NoSuchRevision`,
    `nightshift.run.models.hub_revision.HubUnavailable`, `nightshift.run.models.weights.NoWeights`, and StoreUnavailable.
    """
    scheme, _, place = spec.model.uri.partition("://")
    if scheme == "gs":
        found = weights.look(spec.model.uri, credentials)
        return Pins(weights=found.fingerprint, weights_bytes=found.size)
    if why_unpinned(spec, environment) is not None:
        return Pins()
    revision = spec.model.revision
    if is_commit(revision):
        # No request is needed, so the size is not known either.
        return Pins(commit=revision)
    model = hub_revision.model_at(place, revision, environment)
    return Pins(commit=model.commit, weights_bytes=model.size)


def revision_of(spec: JobSpec, pins: Pins) -> str | None:
    """The ``--revision`` with which the run's engines load the model; None if it is in a bucket (see `Pins.weights`)."""
    return (pins.commit or spec.model.revision) if spec.model.uri.startswith("hf://") else None


def why_unpinned(spec: JobSpec, environment: Mapping[str, str] = os.environ) -> str | None:
    """Why the revision of a model on the Hub cannot be pinned to a commit; None if it can."""
    if not spec.model.uri.startswith("hf://"):
        return None
    if "hf-config-path" in spec.engine.flags:
        return "vLLM would look for the same commit in the repository of engine.args hf-config-path"
    if is_commit(spec.model.revision):
        return None
    return "HF_HUB_OFFLINE is set" if offline(environment) else None


def is_commit(revision: str) -> bool:
    """Whether it is a commit already, which needs no request to the Hub."""
    return _COMMIT.fullmatch(revision) is not None
