"""The words of `nightshift redrive`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from nightshift.cli import values
from nightshift.cli.values import Commands


def add_to(commands: Commands) -> None:
    redrive = commands.add_parser(
        "redrive",
        help="publish the dead letters of a stream again (docs/streams.md)",
        description="Publishes dead letters of a stream, as they were, on the topic of its subscription, and marks them in the "
        "table of dead letters. If it stops early, run it again: no message gets a second outcome.",
        epilog="NIGHTSHIFT_SINK_URL is the database, NIGHTSHIFT_PROJECT the project of names without one. Exit codes: 0 done; "
        "1 done, but Pub/Sub refuses some of them; 2 bad input; 75 run the same command again; 78 trying again cannot help.",
    )
    redrive.add_argument("file", type=Path, metavar="STREAM_FILE", help="a stream's YAML file")
    redrive.add_argument(
        "--reason", action="append", default=[], metavar="R", help="only those with this reason; may be repeated (default: any)"
    )
    redrive.add_argument(
        "--since", type=values.moment, metavar="TIME", help="only those that died then or later: 2026-11-20T08:00Z"
    )
    redrive.add_argument("--until", type=values.moment, metavar="TIME", help="only those that died before")
    redrive.add_argument(
        "--most", type=values.positive, default=1000, metavar="N", help="at most N, those that died first (default: 1000)"
    )
    redrive.add_argument("--topic", metavar="NAME", help="another topic, for example of a stream with other limits")
    redrive.add_argument("--dry-run", action="store_true", help="only count them")
    redrive.add_argument("--json", action="store_true", help="one JSON object")
    redrive.set_defaults(command=_run)


def _run(options: argparse.Namespace) -> int:
    from nightshift.stream import redrive_command

    sink = os.environ.get("NIGHTSHIFT_SINK_URL")
    if not sink:
        print("NIGHTSHIFT_SINK_URL is not set.", file=sys.stderr)
        return redrive_command.BAD_INPUT
    return redrive_command.run(
        redrive_command.Options(
            file=options.file,
            sink_url=sink,
            project=os.environ.get("NIGHTSHIFT_PROJECT"),
            reasons=tuple(options.reason),
            since=options.since,
            until=options.until,
            most=options.most,
            topic=options.topic,
            dry_run=options.dry_run,
            as_json=options.json,
        )
    )
