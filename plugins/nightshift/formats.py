"""Which version each object that nightshift leaves behind has, and which versions this release reads (docs/operate/formats.md).

An object says its version and the release that wrote it. A release reads the version that it writes and the one before. Entries
that it does not know are passed over: what an older reader would misread gets a new version instead.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nightshift import __version__

VERSION: Final = "version"
WRITTEN_BY: Final = "written_by"


class UnreadableFormat(ValueError):
    """An object of a version that this release does not read; the message says which release does."""


def loaded(body: bytes | str) -> Any:
    """The JSON of an object. Raises ValueError for anything else, and for what is nested too deeply to be read."""
    try:
        return json.loads(body)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@dataclass(frozen=True)
class Format:
    """One kind of object. name: as docs/operate/formats.md has it. version: the one that this release writes."""

    name: str
    version: int

    @property
    def oldest(self) -> int:
        """The oldest version that this release reads."""
        return max(1, self.version - 1)

    def stamp(self) -> dict[str, Any]:
        """The entries that a new object says of itself."""
        return {VERSION: self.version, WRITTEN_BY: __version__}

    def check(self, found: Mapping[str, Any], where: str) -> int:
        """The version of an object. found: its entries; without the entry, it is version 1. where: for the message.

        Raises UnreadableFormat.
        """
        version = found.get(VERSION, 1)
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise UnreadableFormat(f"{where} has the version {version!r}, which nightshift never wrote. Someone has edited it.")
        if self.oldest <= version <= self.version:
            return version
        writer = found.get(WRITTEN_BY)
        if version > self.version:
            remedy = f"Use nightshift {writer} or later" if writer else "Use a later release"
        else:
            remedy = (
                f"Finish it with {f'nightshift {writer}' if writer else 'the release that wrote it'}, or start over with fresh"
            )
        reads = f"version {self.version}" if self.oldest == self.version else f"versions {self.oldest} and {self.version}"
        raise UnreadableFormat(
            f"{where} has version {version} of its format; this is nightshift {__version__}, which reads {reads}. {remedy}."
        )


SPEC: Final = Format("spec.json", 2)
PLAN: Final = Format("plan.json", 2)
MANIFEST: Final = Format("manifest.json", 2)
CHUNK: Final = Format("chunks and partials", 1)
STREAM_FILE: Final = Format("the files of a stream", 1)
XCOM: Final = Format("what the task plan passes on", 1)
DECISION: Final = Format("decisions", 1)
MARK: Final = Format("heartbeats of attempts", 1)
STARTS: Final = Format("starts of pods", 1)
SPEED: Final = Format("records of speeds", 1)
PAUSE: Final = Format("pause requests", 1)
ENDING: Final = Format("endings of nights", 1)
PREVIEW: Final = Format("previews", 1)
"""The results in ``_previews/``, and the questions to a warm engine and its answers."""
TRIAL: Final = Format("trials of a tune", 1)
AUDIT: Final = Format("the audit table", 2)
"""Version 2: spec_digest covers what affects answers and nothing else; before, all settings of the engine and all defaults."""

ALL: Final = (
    SPEC,
    DECISION,
    PLAN,
    MANIFEST,
    CHUNK,
    MARK,
    STARTS,
    SPEED,
    PAUSE,
    ENDING,
    PREVIEW,
    TRIAL,
    STREAM_FILE,
    XCOM,
    AUDIT,
)
