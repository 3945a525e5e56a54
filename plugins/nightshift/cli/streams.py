"""The commands of streams, but for those that jobs have too."""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path

from nightshift import exits
from nightshift.cli import values
from nightshift.cli.values import Commands


def add_to(commands: Commands) -> None:
    _add_stream(commands)
    _add_load_stream(commands)


def _add_stream(commands: Commands) -> None:
    stream = commands.add_parser(
        "stream",
        help="answer the messages of a subscription as they arrive (docs/streams.md)",
        description="Pulls a subscription's messages, sends them to the engine, writes each answer to the sink, and then "
        "acknowledges the message. Runs until SIGTERM, and returns the messages that it cannot finish within 15 s.",
        epilog="NIGHTSHIFT_PROJECT is the project of names without one. Exit codes: 0 no message is held; 2 bad input; "
        "75 some are held, and will be redelivered; 78 trying again cannot help.",
    )
    stream.add_argument("file", type=Path, metavar="STREAM_FILE", help="a stream's YAML file")
    stream.add_argument(
        "--engine-url",
        default=os.environ.get("ENGINE_URL"),
        metavar="URL",
        help="the server (default: the variable ENGINE_URL)",
    )
    stream.add_argument(
        "--metrics-port", type=values.port, metavar="N", help="serve Prometheus metrics at this port; 0 takes a free one"
    )
    stream.add_argument(
        "--metrics-address",
        default="0.0.0.0",
        metavar="ADDRESS",
        help="the address that they are served on: 127.0.0.1, :: (default: %(default)s)",
    )
    stream.set_defaults(command=_stream)


def _add_load_stream(commands: Commands) -> None:
    load = commands.add_parser(
        "load-stream",
        help="merge the new files of a stream into its table in BigQuery (docs/streams.md)",
        description="Looks for files of the stream that are not in its table yet, loads them, and merges them in one "
        "transaction. Run it as often as you like, even two at a time.",
        epilog="NIGHTSHIFT_PROJECT, NIGHTSHIFT_BUCKET, NIGHTSHIFT_LOCATION and NIGHTSHIFT_DATASET are the deployment's. Exit "
        "codes: 0 all new files are in the table; 2 bad input; 75 a service does not answer, run it again; 78 trying again "
        "cannot help.",
    )
    load.add_argument("file", type=Path, metavar="STREAM_FILE", help="a stream's YAML file with sink.files and sink.bigquery")
    load.add_argument(
        "--days",
        type=values.positive,
        metavar="N",
        help="look at messages published in the last N days (default: 8; longer than the subscription keeps messages)",
    )
    load.set_defaults(command=_load_stream)


def _stream(options: argparse.Namespace) -> int:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(exits.DONE))
    from nightshift.stream import command

    return command.run(
        command.Options(
            file=options.file,
            engine_url=options.engine_url or "",
            sink_url=os.environ.get("NIGHTSHIFT_SINK_URL", ""),
            project=os.environ.get("NIGHTSHIFT_PROJECT"),
            metrics_port=options.metrics_port,
            metrics_address=options.metrics_address,
        )
    )


def _load_stream(options: argparse.Namespace) -> int:
    from nightshift.warehouse import stream_command

    return stream_command.run(stream_command.Options(file=options.file, days=options.days))
