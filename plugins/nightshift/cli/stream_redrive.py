"""The command `nightshift stream redrive`."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from nightshift import exits
from nightshift.fields.arguments import flag, moment, option, positive
from nightshift.spec import SpecErrors, load_stream
from nightshift.stream.names import full_name, redriven_from
from nightshift.stream.options import NO_SINK

DESCRIPTION: Final = (
    "Publishes dead letters of a stream, as they were, on the topic of its subscription, and marks them in the table of dead "
    "letters. If it stops early, run it again: no message gets a second outcome."
)
EPILOG: Final = (
    "NIGHTSHIFT_SINK_URL is the database, NIGHTSHIFT_PROJECT the project of names without one. Exit codes: 0 done; 1 done, but "
    "Pub/Sub refuses some of them; 2 bad input; 75 run the same command again; 78 not retryable."
)


@dataclass(frozen=True)
class Options:
    """See `nightshift.stream.dead_letters.Selection`."""

    file: Path = option(type=Path, metavar="STREAM_FILE", help="a stream's YAML file")
    sink_url: str = option(default="", variable="NIGHTSHIFT_SINK_URL")
    project: str | None = option(variable="NIGHTSHIFT_PROJECT")
    reasons: list[str] = option(
        "--reason", default=[], action="append", metavar="R", help="only those with this reason; may be repeated (default: any)"
    )
    since: datetime | None = option(
        "--since", type=moment, metavar="TIME", help="only those that died then or later: 2026-11-20T08:00Z"
    )
    until: datetime | None = option("--until", type=moment, metavar="TIME", help="only those that died before")
    most: int = option("--most", default=1000, type=positive, metavar="N", help="at most N, oldest first (default: 1000)")
    topic: str | None = option("--topic", metavar="NAME", help="another topic, for example of a stream with other limits")
    dry_run: bool = flag("--dry-run", "only count them")
    as_json: bool = flag("--json", "one JSON object")


def run(options: Options) -> int:
    """Prints what was done on stdout, and errors on stderr."""
    if not options.sink_url:
        print(NO_SINK, file=sys.stderr)
        return exits.BAD_INPUT
    try:
        spec = load_stream(options.file)
        subscription = redriven_from(spec, options.project)
        topic = full_name(options.topic, "topics", options.project) if options.topic else None
    except (SpecErrors, ValueError) as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    from nightshift.stream.dead_letters import Selection
    from nightshift.stream.ports import BadUrl, SinkRefused, Unavailable
    from nightshift.stream.pubsub_client import PubSubRefused
    from nightshift.stream.redrive import Redrive, check_reasons, redrive

    try:
        check_reasons(options.reasons)
    except ValueError as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    selection = Selection(tuple(options.reasons), options.since, options.until, options.most)
    try:
        done = asyncio.run(redrive(options.sink_url, spec, Redrive(subscription, selection, topic, options.dry_run)))
    except BadUrl as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    except Unavailable as error:
        print(f"No answer: {error}. Run the same command again: it continues where this one stopped.", file=sys.stderr)
        return exits.RESUME
    except (PubSubRefused, SinkRefused) as error:
        print(error, file=sys.stderr)
        return exits.CONFIG
    print(json.dumps(done.to_json()) if options.as_json else done)
    for name, words in done.refused.items():
        print(f"{name}: {words}", file=sys.stderr)
    return exits.FAILED if done.refused else exits.DONE
