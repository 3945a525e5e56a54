"""The command `nightshift redrive`."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from nightshift import exits
from nightshift.spec import SpecErrors, load_stream
from nightshift.stream.names import full_name, redriven_from

BAD_INPUT: Final = 2
SOME_REFUSED: Final = 1


@dataclass(frozen=True)
class Options:
    """What the command line and the environment say; see `nightshift.stream.graves.Selection`. project: of short names."""

    file: Path
    sink_url: str
    project: str | None
    reasons: tuple[str, ...]
    since: datetime | None
    until: datetime | None
    most: int
    topic: str | None
    dry_run: bool
    as_json: bool


def run(options: Options) -> int:
    """Redrives; prints what was done on stdout, and errors on stderr. Returns the exit code."""
    try:
        spec = load_stream(options.file)
        subscription = redriven_from(spec, options.project)
        topic = full_name(options.topic, "topics", options.project) if options.topic else None
    except (SpecErrors, ValueError) as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    try:
        from nightshift.stream.channel import PubSubRefused
        from nightshift.stream.graves import Selection
        from nightshift.stream.parts import SinkRefused, Unavailable
        from nightshift.stream.postgres import BadUrl
        from nightshift.stream.redrive import Redrive, check_reasons, redrive
    except ModuleNotFoundError as error:
        print(f"The package {error.name} is not installed. Install nightshift[stream].", file=sys.stderr)
        return BAD_INPUT
    try:
        check_reasons(options.reasons)
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    selection = Selection(options.reasons, options.since, options.until, options.most)
    try:
        done = asyncio.run(redrive(options.sink_url, spec, Redrive(subscription, selection, topic, options.dry_run)))
    except BadUrl as error:
        print(error, file=sys.stderr)
        return BAD_INPUT
    except Unavailable as error:
        print(f"No answer: {error}. Run the same command again: it continues where this one stopped.", file=sys.stderr)
        return exits.RESUME
    except (PubSubRefused, SinkRefused) as error:
        print(error, file=sys.stderr)
        return exits.CONFIG
    print(json.dumps(done.to_json()) if options.as_json else done)
    for name, words in done.refused.items():
        print(f"{name}: {words}", file=sys.stderr)
    return SOME_REFUSED if done.refused else exits.DONE
