"""The Job that copies the model of a job or a stream into a bucket: ``nightshift render --copy-model``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from nightshift.cli.render_job import PLACEHOLDERS
from nightshift.jobset.manifest.model_copy import ACCOUNT, render_copy
from nightshift.jobset.manifest.yaml_text import to_yaml
from nightshift.run.models.model_copy import folder_of
from nightshift.settings import Settings
from nightshift.spec import JobSpec, StreamSpec
from nightshift.spec.values import URI_PATTERN

_COMMIT: Final = re.compile(r"[0-9a-f]{40}")


def preview(spec: JobSpec | StreamSpec, root: str, environment: Mapping[str, str]) -> str:
    """The manifests, below comments that say what to do with them. Raises ValueError and SettingsError."""
    model = spec.model
    if not model.uri.startswith("hf://"):
        raise ValueError(f"model.uri: --copy-model copies a model from the Hub, and this one is at {model.uri}. Leave it out.")
    if not _COMMIT.fullmatch(model.revision):
        raise ValueError(
            f"model.revision: {model.revision!r} can move, and a copy is of one commit. Write the commit (40 hex digits)."
        )
    folder = folder_of(root, model.root, model.revision)
    if not root.startswith("gs://") or not re.fullmatch(URI_PATTERN, folder):
        raise ValueError(f"--copy-model: {root!r} is not a place in a bucket. Write gs://BUCKET, or gs://BUCKET/FOLDER.")
    missing = {name: value for name, value in PLACEHOLDERS.items() if not environment.get(name)}
    settings = Settings.from_environment({**environment, **missing})
    documents = render_copy(model.root, model.revision, root, settings)
    lines = [
        f"Rendered by `nightshift render --copy-model`: {model.uri} at {model.revision}; nothing was contacted or submitted.",
        f"The account {ACCOUNT} needs to create and read objects there (docs/operate/compute.md, Weights in a bucket).",
        f"When the Job is complete, write model.uri: {folder}",
    ]
    return "".join(f"# {line}\n" for line in lines) + "---\n".join(map(to_yaml, documents))
