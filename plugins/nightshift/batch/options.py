"""The options of `nightshift batch`. Imports nothing that takes long: the command line reads them first."""

from __future__ import annotations

from dataclasses import dataclass

from nightshift.fields.arguments import limit, option, positive


@dataclass(frozen=True)
class Options:
    """api_key is never written anywhere. wait_s: for the server to start; timeout_s: of one request."""

    input: str = option("-i", "--input-file", metavar="FILE", help="a path, gs://BUCKET/NAME or -")
    output: str = option("-o", "--output-file", metavar="FILE", help="a path, gs://BUCKET/NAME or -")
    base_url: str = option("--base-url", metavar="URL", help="the server, with or without /v1 at the end")
    model: str | None = option("--model", default=None, metavar="NAME", help="replaces the model that the lines name")
    api_key: str | None = option(default=None, variable="OPENAI_API_KEY")
    max_inflight: int | None = option(
        "--max-inflight",
        default=None,
        type=positive,
        metavar="N",
        help="requests in flight at once (default: enough to keep the server busy)",
    )
    chunk_rows: int | None = option(
        "--chunk-rows",
        default=None,
        type=positive,
        metavar="N",
        help="lines that are saved together (default: depends on the file's size)",
    )
    state: str | None = option(
        "--state",
        default=None,
        metavar="DIR_OR_URL",
        help="where progress is kept (default: OUTPUT.nightshift, next to the output)",
    )
    fresh: bool = option(
        "--fresh", default=False, action="store_true", help="start over and ignore earlier progress; leave it out to resume"
    )
    clean: bool = option("--clean", default=False, action="store_true", help="remove the progress once the output is written")
    fail_on_error: bool = option("--fail-on-error", default=False, action="store_true", help="exit with 1 when lines failed")
    timeout_s: float = option(
        "--timeout", default=600.0, type=limit, metavar="SECONDS", help="time limit of one request (default: 600)"
    )
    wait_s: float = option(
        "--wait", default=300.0, type=limit, metavar="SECONDS", help="how long to wait for the server (default: 300)"
    )
