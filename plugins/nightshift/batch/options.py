"""The options of `nightshift batch`. Imports nothing that takes long: the command line reads them first."""

from __future__ import annotations

from dataclasses import MISSING, dataclass

from nightshift.fields.arguments import flag, limit, option, positive


@dataclass(frozen=True)
class Options:
    """api_key is never written anywhere. wait_s: for the server to start; timeout_s: of one request."""

    input: str = option("-i", "--input-file", default=MISSING, metavar="FILE", help="a path, gs://BUCKET/NAME or -")
    output: str = option("-o", "--output-file", default=MISSING, metavar="FILE", help="a path, gs://BUCKET/NAME or -")
    base_url: str = option("--base-url", default=MISSING, metavar="URL", help="the server, with or without /v1 at the end")
    model: str | None = option("--model", metavar="NAME", help="replaces the model that the lines name")
    api_key: str | None = option(variable="OPENAI_API_KEY")
    max_inflight: int | None = option(
        "--max-inflight",
        type=positive,
        metavar="N",
        help="requests in flight at once (default: enough to keep the server busy)",
    )
    chunk_rows: int | None = option(
        "--chunk-rows", type=positive, metavar="N", help="lines that are saved together (default: depends on the file's size)"
    )
    state: str | None = option(
        "--state", metavar="DIR_OR_URL", help="where progress is kept (default: OUTPUT.nightshift, next to the output)"
    )
    fresh: bool = flag("--fresh", "start over and ignore earlier progress; leave it out to resume")
    retry_failed: bool = flag("--retry-failed", "send the failed lines of the earlier run again, and only them")
    clean: bool = flag("--clean", "remove the progress once the output is written")
    fail_on_error: bool = flag("--fail-on-error", "exit with 1 when lines failed")
    timeout_s: float = option(
        "--timeout", default=600.0, type=limit, metavar="SECONDS", help="time limit of one request (default: 600)"
    )
    wait_s: float = option(
        "--wait", default=300.0, type=limit, metavar="SECONDS", help="how long to wait for the server (default: 300)"
    )
