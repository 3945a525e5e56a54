"""The command `nightshift`. Each command is a function that imports what it needs when it runs, so ``--help`` is quick.

Exit codes: 0 done, 1 the store does not answer, `doctor` found something wrong or a `plan` does not fit, 2 bad input (every
mistake on stderr); `batch` has its own codes.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NoReturn

from nightshift import exits
from nightshift.cli import batcher, costs, pause, plan, redrive, streams, values, version
from nightshift.cli.values import Commands

BAD_INPUT: Final = 2


def run() -> NoReturn:
    """The process ``nightshift``: runs the command that its arguments name, and ends with that command's exit code.

    It does not shut the interpreter down as sys.exit does: obstore's threads may then abort it, with the work done and the
    output written.
    """
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code; argparse itself exits with 2 for bad arguments."""
    options = _parser().parse_args(arguments)
    code: int = options.command(options)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="nightshift", description="Turns a warehouse table into predictions every night.")
    parser.add_argument("--version", action=version.Version, nargs=0, help="print the release and its commit, and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    validate = commands.add_parser("validate", help="report every mistake in the files of jobs and streams")
    validate.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="the YAML file of a job or a stream, or a folder of them"
    )
    validate.set_defaults(command=_validate)

    schema = commands.add_parser("schema", help="print the JSON schema of a job file (docs/job.schema.json)")
    schema.add_argument("--stream", action="store_true", help="of a stream's file instead (docs/stream.schema.json)")
    schema.set_defaults(command=_schema)

    status = commands.add_parser(
        "status", help="show a run's progress from its ledger alone, or a stream's backlog, rates and latency from Prometheus"
    )
    status.add_argument(
        "url",
        metavar="RUN_URL",
        help="gs://BUCKET/JOB/PARTITION/RUN or file:///FOLDER/JOB/PARTITION/RUN; or a stream's YAML file",
    )
    status.add_argument(
        "--watch",
        nargs="?",
        type=values.seconds,
        const=5.0,
        metavar="SECONDS",
        help="repeat until all chunks are committed, a stream's until Ctrl-C (default interval: 5 s)",
    )
    status.add_argument(
        "--json", action="store_true", help="one JSON object per line (keys: docs/status.md, of a stream docs/streams.md)"
    )
    status.add_argument("--prometheus", metavar="URL", help="for a stream: query this server instead of Cloud Monitoring")
    status.add_argument(
        "--window", type=values.seconds, metavar="SECONDS", help="for a stream: compute rates over this time (default: 600)"
    )
    status.add_argument("--prices", type=Path, metavar="FILE", help="of a run: what it cost by these prices (docs/costs.md)")
    status.set_defaults(command=_status)
    pause.add_to(commands)
    plan.add_to(commands)
    costs.add_to(commands)
    _add_render(commands)
    _add_doctor(commands)
    _add_batch(commands)
    streams.add_to(commands)
    redrive.add_to(commands)
    batcher.add_to(commands)
    return parser


def _add_render(commands: Commands) -> None:
    render = commands.add_parser(
        "render",
        help="print the Kubernetes manifests of a job or a stream (docs/compute.md, docs/streams.md)",
        description="Prints as YAML the Kubernetes JobSet of a job for one partition, or the Deployments of a stream with all "
        "that belongs to them, with this deployment's NIGHTSHIFT_* variables if they are set. Contacts no service and submits "
        "nothing.",
    )
    render.add_argument("file", type=Path, metavar="FILE", help="the YAML file of a job or a stream")
    job = render.add_argument_group("jobs")
    job.add_argument(
        "--partition",
        metavar="DATE",
        help="the day of the run, for example 2026-11-20, or the start of its period, 2026-11-20T07:10; required",
    )
    job.add_argument("--rows", type=values.positive, metavar="N", help="rows of the run; workers are planned from them")
    job.add_argument("--profile", type=values.profile, metavar="P", help="use this compute profile instead of the job's")
    job.add_argument("--workers", type=values.positive, metavar="N", help="use N workers instead of the planned number")
    job.add_argument("--helper", action="store_true", help="print the additional JobSet that helps a run on a fallback profile")
    stream = render.add_argument_group("streams")
    stream.add_argument(
        "--keda", action="store_true", help="scale with KEDA's ScaledObjects, to zero too, instead of autoscalers"
    )
    stream.add_argument("--engine-url", metavar="URL", help="the URL that subscribers call; no servers are printed")
    stream.add_argument(
        "--gateway",
        metavar="[NAMESPACE/]NAME",
        help="the Inference Gateway behind --engine-url: print servers, their pool and the route to them",
    )
    stream.add_argument(
        "--canary", type=Path, metavar="FILE", help="the stream with another model version, for a share of the requests"
    )
    stream.add_argument("--canary-percent", type=values.percent, metavar="N", help="that share, in percent (default: 10)")
    render.set_defaults(command=_render)


def _add_doctor(commands: Commands) -> None:
    doctor = commands.add_parser(
        "doctor",
        help="check, before a night, that everything it needs is in place (docs/doctor.md)",
        description="Checks this deployment's settings, account, bucket, datasets, cluster and clocks, and with a job its "
        "query, queue, quota, images and model too. Run it where Airflow runs: it uses Airflow's connections. The DAG "
        "nightshift_doctor does the same in a worker, and checks the triggerer too.",
        epilog="Exit codes: 0 all checks that ran are ok; 1 something is wrong; 2 wrong command line.",
    )
    doctor.add_argument("file", nargs="?", type=Path, metavar="JOB_FILE", help="a job's YAML file, as in dags/jobs/")
    doctor.add_argument("--json", action="store_true", help="one JSON object (keys: docs/doctor.md)")
    doctor.set_defaults(command=_doctor)


def _add_batch(commands: Commands) -> None:
    batch = commands.add_parser(
        "batch",
        help="send an OpenAI batch file to a server; run it again to resume where it stopped",
        description="Sends every line of an OpenAI batch file (as `vllm run-batch` reads it) to an OpenAI-compatible server "
        "and writes a line for each, in order. If it ends early for any reason, run it again: saved lines are not sent again.",
        epilog="OPENAI_API_KEY, if set, is sent as the bearer token. Exit codes: 0 the output is written; 1 the output is "
        "written but lines failed (--fail-on-error); 2 bad input; 75 work is left, run the same command again. docs/batch.md "
        "has the rest.",
    )
    batch.add_argument("-i", "--input-file", required=True, metavar="FILE", help="a path, gs://BUCKET/NAME or -")
    batch.add_argument("-o", "--output-file", required=True, metavar="FILE", help="a path, gs://BUCKET/NAME or -")
    batch.add_argument("--base-url", required=True, metavar="URL", help="the server, with or without /v1 at the end")
    batch.add_argument("--model", metavar="NAME", help="replaces the model that the lines name")
    batch.add_argument(
        "--max-inflight",
        type=values.positive,
        metavar="N",
        help="requests in flight at once (default: enough to keep the server busy)",
    )
    batch.add_argument(
        "--chunk-rows",
        type=values.positive,
        metavar="N",
        help="lines that are saved together (default: depends on the file's size)",
    )
    batch.add_argument(
        "--state", metavar="DIR_OR_URL", help="where progress is kept (default: OUTPUT.nightshift, next to the output)"
    )
    batch.add_argument("--fresh", action="store_true", help="start over and ignore earlier progress; leave it out to resume")
    batch.add_argument("--clean", action="store_true", help="remove the progress once the output is written")
    batch.add_argument("--fail-on-error", action="store_true", help="exit with 1 when lines failed")
    batch.add_argument(
        "--timeout", type=values.limit, default=600.0, metavar="SECONDS", help="time limit of one request (default: 600)"
    )
    batch.add_argument(
        "--wait", type=values.limit, default=300.0, metavar="SECONDS", help="how long to wait for the server (default: 300)"
    )
    batch.set_defaults(command=_batch)


def _validate(options: argparse.Namespace) -> int:
    from nightshift.spec import JobSpec, load_files, sql
    from nightshift.spec.folder import job_files

    folders = {path: job_files(path) for path in options.files if path.is_dir()}
    specs, errors = load_files(file for path in options.files for file in folders.get(path, [path]))
    untold = {path: lines for path, spec in specs.items() if (lines := _not_told(path, spec))}
    for file, spec in specs.items():
        if file in untold:
            continue
        print(f"{file}: valid: {spec.job}, {spec.task} by {spec.model.name} {spec.summary}")
        if isinstance(spec, JobSpec) and (unread := sql.unread(spec.source.query)):
            print(f"{file}: {unread}", file=sys.stderr)
    empty = [
        f"{path}: The folder has no job files. Name one with *.yaml files." for path, files in folders.items() if not files
    ]
    for problem in (*errors.values(), *(line for lines in untold.values() for line in lines), *empty):
        print(problem, file=sys.stderr)
    return BAD_INPUT if errors or untold or empty else 0


def _not_told(path: Path, spec: Any) -> list[str]:
    """What is wrong with a job's notifiers, where the operator's file is known."""
    from nightshift.spec import JobSpec, notifiers

    file = os.environ.get(notifiers.SETTING)
    return list(notifiers.wrong(path, spec, file)) if file and isinstance(spec, JobSpec) else []


def _schema(options: argparse.Namespace) -> int:
    from nightshift.spec import JobSpec, StreamSpec
    from nightshift.spec.schema import json_schema_text

    print(json_schema_text(StreamSpec if options.stream else JobSpec), end="")
    return 0


def _status(options: argparse.Namespace) -> int:
    if Path(options.url).is_file():
        from nightshift.status import stream

        window = options.window or stream.WINDOW_S
        return stream.run(stream.Options(Path(options.url), options.prometheus, window, options.watch, options.json))
    if options.prometheus or options.window:
        print(f"{options.url}: --prometheus and --window are for stream files. Leave them out.", file=sys.stderr)
        return BAD_INPUT
    from nightshift.status import command

    return command.run(options.url, every_s=options.watch, as_json=options.json, prices=options.prices)


def _render(options: argparse.Namespace) -> int:
    from nightshift.spec import StreamSpec, load_files

    specs, errors = load_files([options.file])
    for problem in errors.values():
        print(problem, file=sys.stderr)
    if errors:
        return BAD_INPUT
    is_stream = isinstance(specs[options.file], StreamSpec)
    for_jobs = ("partition", "rows", "profile", "workers", "helper")
    for_streams = ("keda", "engine_url", "gateway", "canary", "canary_percent")
    misplaced = [name for name in (for_jobs if is_stream else for_streams) if getattr(options, name) not in (None, False)]
    if misplaced:
        names, kind = (
            ", ".join("--" + name.replace("_", "-") for name in misplaced),
            "a stream" if is_stream else "a nightly job",
        )
        print(f"{options.file}: {names}: The file describes {kind}, which has no such option. Leave it out.", file=sys.stderr)
        return BAD_INPUT
    return _render_stream(options) if is_stream else _render_job(options)


def _render_job(options: argparse.Namespace) -> int:
    from nightshift.jobset import preview

    if options.partition is None:
        print(f"{options.file}: --partition: A run needs a day. Pass, for example, --partition 2026-11-20.", file=sys.stderr)
        return BAD_INPUT
    return preview.run(
        preview.Options(
            file=options.file,
            partition=options.partition,
            rows=options.rows,
            profile=options.profile,
            workers=options.workers,
            helper=options.helper,
        )
    )


def _render_stream(options: argparse.Namespace) -> int:
    from nightshift.serving import order, preview

    return preview.run(
        preview.Options(
            file=options.file,
            keda=options.keda,
            engine_url=options.engine_url,
            gateway=options.gateway,
            canary=options.canary,
            canary_percent=order.CANARY_PERCENT if options.canary_percent is None else options.canary_percent,
        )
    )


def _doctor(options: argparse.Namespace) -> int:
    from nightshift.doctor import command
    from nightshift.operators.connections import AirflowConnections

    return command.run(command.Options(job=options.file, as_json=options.json), AirflowConnections)


def _batch(options: argparse.Namespace) -> int:
    # Before the imports, which take a moment: a signal during them must not print a traceback.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(exits.RESUME))
    from nightshift.batch import command
    from nightshift.batch.preparation import Options

    return command.run(
        Options(
            input=options.input_file,
            output=options.output_file,
            base_url=options.base_url,
            model=options.model,
            api_key=os.environ.get("OPENAI_API_KEY"),
            max_inflight=options.max_inflight,
            chunk_rows=options.chunk_rows,
            state=options.state,
            fresh=options.fresh,
            clean=options.clean,
            fail_on_error=options.fail_on_error,
            timeout_s=options.timeout,
            wait_s=options.wait,
        )
    )
