"""The command `nightshift plan`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from nightshift import exits
from nightshift.cli.given import Wrong, partition_of
from nightshift.fields.arguments import flag, option, positive
from nightshift.fields.text import n

if TYPE_CHECKING:
    from obstore.store import GCSCredentialProvider

    from nightshift.planner.costs.prices import Prices
    from nightshift.planner.plan import Decision
    from nightshift.planner.record import Record
    from nightshift.planner.speed import Known
    from nightshift.planner.suggestions import Suggestion
    from nightshift.profiles.limits import Limits
    from nightshift.spec import JobSpec


class NotPlanned(Exception):
    """The warehouse does not say how many rows there are, or the job wants others. code: the exit code."""

    def __init__(self, why: str, code: int) -> None:
        super().__init__(why)
        self.code = code


DESCRIPTION: Final = (
    "Prints profile x workers -> finish, accelerator hours, cost, fits, for the job's profile and its fallbacks, as the task "
    "plan would decide, and says where each speed comes from. With --rows it does not query the warehouse. If "
    "NIGHTSHIFT_BUCKET is set, it looks up recorded speeds there and the quota of the job's queue in Kueue, and continues "
    "without them if it cannot. The model's config.json comes from Hugging Face's cache, the Hub, the bucket, or --config."
)
EPILOG: Final = (
    "Exit codes: 0 the run fits, or the job states its workers and their speed is unknown; 1 it does not fit, or the speed of"
    " a worker is unknown, so nothing is planned, or no engine will find the model, or the job wants other rows (source.empty,"
    " rows_min, unique); 2 bad input; 75 the warehouse cannot be"
    " reached; 78 it refuses."
)


@dataclass(frozen=True)
class Options:
    file: Path = option(type=Path, metavar="JOB", help="the job's YAML file")
    partition: str | None = option(
        "--partition", metavar="DATE", help="the day, or the start of a period (default: the last one that is over)"
    )
    rows: int | None = option("--rows", type=positive, metavar="N", help="plan for N rows instead of counting the query's")
    input_tokens: int | None = option(
        "--input-tokens", type=positive, metavar="N", help="mean tokens of a row, instead of a sample or an assumption"
    )
    output_tokens: int | None = option(
        "--output-tokens", type=positive, metavar="N", help="mean tokens of an answer, instead of the task's limit"
    )
    quota: int | None = option(
        "--quota", type=positive, metavar="N", help="the queue's quota of accelerators, instead of reading it from Kueue"
    )
    config: Path | None = option("--config", type=Path, metavar="FILE", help="the model's config.json")
    prices: Path | None = option(
        "--prices",
        type=Path,
        metavar="FILE",
        help="what machines cost: a YAML file, or a region; by default NIGHTSHIFT_PRICES",
    )
    as_json: bool = flag("--json", "one JSON object")


def run(options: Options, environment: Mapping[str, str] | None = None) -> int:
    """Prints the plan; the exit code."""
    from nightshift.planner.costs.prices import PricesError
    from nightshift.spec import SpecErrors

    try:
        return _run(options, os.environ if environment is None else environment)
    except (SpecErrors, PricesError) as error:
        print(error, file=sys.stderr)
        return exits.BAD_INPUT
    except (NotPlanned, Wrong) as error:
        print(f"{options.file}: {error}", file=sys.stderr)
        return error.code if isinstance(error, NotPlanned) else exits.BAD_INPUT


def _run(options: Options, environment: Mapping[str, str]) -> int:
    from nightshift.planner.costs.prices import load_prices
    from nightshift.profiles.limits import Limits
    from nightshift.settings import SettingsError, workers_max_of
    from nightshift.spec import load

    spec = load(options.file)
    partition = partition_of(spec, options.partition)
    prices = load_prices(options.prices or environment.get("NIGHTSHIFT_PRICES"))
    try:
        limits = Limits(workers_max_of(environment.get("NIGHTSHIFT_WORKERS_MAX") or "0"), options.quota)
    except SettingsError as error:
        raise Wrong(str(error)) from None
    if spec.queue and options.quota is None and environment.get("NIGHTSHIFT_BUCKET"):
        limits = _quota(spec, partition, environment) or limits
    rows, known = _ask(options, spec, partition, environment)
    return _tell(options, spec, partition, rows, known, limits, prices)


def _ask(options: Options, spec: JobSpec, partition: str, environment: Mapping[str, str]) -> tuple[int, Known]:
    """How many rows, and what is known of them. Raises Wrong, NotPlanned."""
    from dataclasses import replace

    from nightshift.planner.inputs import known_of, model_for
    from nightshift.planner.model import UnknownModel
    from nightshift.planner.order import candidates
    from nightshift.planner.source import Unfit, check_keys, check_rows
    from nightshift.run.pins import Pins

    rows, sample, credentials, counts = options.rows, None, None, None
    if rows is None:
        from nightshift.cli.trouble import beside_the_stack, warehouse_of
        from nightshift.hooks.deployment import Deployment
        from nightshift.settings import Settings, SettingsError
        from nightshift.warehouse import WarehouseError, WarehouseUnavailable

        try:
            connections = Deployment(Settings.from_environment(environment))
            warehouse = warehouse_of(lambda: connections.warehouse(job=spec.job, step="plan"))
            columns = candidates(spec, warehouse.read_source(spec, partition).columns)
            counts = warehouse.count_prefixes(spec, partition, columns) if columns else None
            rows = counts.rows if counts else warehouse.count_rows(spec, partition)
            if said := check_rows(spec, partition, rows):
                print(said, file=sys.stderr)
            else:
                check_keys(spec, partition, warehouse.keys, partial(print, file=sys.stderr))
            credentials = connections.storage_credentials()
        except SettingsError as error:
            raise Wrong(f"{error} Or pass --rows N, which needs no warehouse.{beside_the_stack()}") from error
        except Unfit as error:
            raise NotPlanned(str(error), exits.FAILED) from error
        except (WarehouseError, WarehouseUnavailable) as error:
            raise NotPlanned(str(error), exits.RESUME if isinstance(error, WarehouseUnavailable) else exits.CONFIG) from error

        def sample(columns: Any, most: int) -> Any:
            return warehouse.sample_rows(spec, partition, columns, most)

    known = known_of(
        spec,
        Pins(),
        sample=sample,
        input_tokens=options.input_tokens,
        output_tokens=options.output_tokens,
        records=_records(spec, environment, credentials),
        counts=counts,
        environment=environment,
        credentials=credentials if spec.model.uri.startswith("gs://") else None,
    )
    for warning in known.warnings:
        print(warning, file=sys.stderr)
    if options.config:
        try:
            known = replace(known, model=model_for(spec, _object(options.config, "--config")))
        except UnknownModel as error:
            raise Wrong(f"--config: {options.config}: {error}") from error
    return rows, known


def _records(spec: JobSpec, environment: Mapping[str, str], credentials: GCSCredentialProvider | None) -> dict[str, Record]:
    """The nearest of each profile, where there is a bucket. A plan can do without, so one that does not answer is only said."""
    from nightshift.cli.trouble import NoAccount, open_bucket
    from nightshift.planner.speeds import records_if_any
    from nightshift.store import open_store

    bucket = environment.get("NIGHTSHIFT_BUCKET")
    if not bucket:
        return {}
    try:
        store = open_store(f"gs://{bucket}", credentials=credentials) if credentials else open_bucket(f"gs://{bucket}")
    except NoAccount as error:
        print(f"Planned without recorded speeds: {error}", file=sys.stderr)
        return {}
    return records_if_any(store, spec, lambda sentence: print(f"gs://{bucket}: {sentence}", file=sys.stderr))


def _quota(spec: JobSpec, partition: str, environment: Mapping[str, str]) -> Limits | None:
    """What Kueue gives the queue of the job; None if the settings of the deployment are not complete, which is said."""
    from nightshift.cli.trouble import apart
    from nightshift.hooks.deployment import Deployment
    from nightshift.jobset.kubernetes.limits import limits_of
    from nightshift.settings import Settings, SettingsError

    def warn(sentence: str) -> None:
        print(f"{sentence.rstrip('.')}. Or pass --quota N.", file=sys.stderr)

    try:
        settings = Settings.from_environment(environment)
    except SettingsError as error:
        warn(f"The quota of queue {spec.queue!r} is unknown; planning continues without it: {error}")
        return None
    return limits_of(spec, settings, partition, partial(apart, Deployment(settings).cluster), lambda sentence: None, warn)


def _tell(
    options: Options,
    spec: JobSpec,
    partition: str,
    rows: int,
    known: Known,
    limits: Limits,
    prices: Prices,
) -> int:
    from nightshift.planner.costs.prices import no_price
    from nightshift.planner.plan import Refused, SpeedUnknown, decide, table
    from nightshift.planner.speed import Basis
    from nightshift.planner.text import lines, refusal

    shown = table(spec, rows, known, limits, prices.machines)
    decision: Decision | None = None
    refused: Refused | SpeedUnknown | None = None
    ways: tuple[Suggestion, ...] = ()
    code = exits.DONE
    try:
        decision = decide(spec, rows, known, limits, prices.machines, prices.currency)
    except Refused as error:
        refused, ways, code = error, error.ways, exits.FAILED
    except SpeedUnknown as error:
        refused, code = error, exits.FAILED
    if known.absent:
        code = exits.FAILED
    if options.as_json:
        problems = list(refused.problems) if isinstance(refused, Refused) else [str(refused)] if refused else []
        said = {
            "job": spec.job,
            "partition": partition,
            "rows": rows,
            "deadline_s": spec.deadline_seconds,
            "decision": decision and decision.to_json(),
            "problems": [known.absent, *problems] if known.absent else problems,
            "ways": [{"words": way.words, "sentence": way.sentence} for way in ways],
            "table": [asdict(row) for row in shown],
            "currency": prices.currency,
            "prices": prices.name,
        }
        print(json.dumps(said))
        return code
    print(f"{spec.job} {partition}: {n(rows, 'row')} within {spec.deadline}")
    for line in lines(shown, spec.deadline_seconds, prices.currency):
        print(line)
    if any(row.cost is None and row.finish_s is not None for row in shown):
        print(f"No price: {no_price(file=prices.name)}.")
    for reason in decision.reasons if decision else ():
        print(f"Plan: {reason.rstrip('.')}.")
    if known.absent:
        print(known.absent, file=sys.stderr)
    if isinstance(refused, Refused):
        print(*refusal(refused), sep="\n", file=sys.stderr)
    elif refused:
        print(refused, file=sys.stderr)
    elif decision and rows and decision.speed.basis is Basis.UNKNOWN and not known.absent:
        print("Whether the run ends in time is not known: the job states its workers, and not their speed.", file=sys.stderr)
    return code


def _object(path: Path, option: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, RecursionError, ValueError) as error:
        raise Wrong(f"{option}: {path} cannot be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise Wrong(f"{option}: {path} is not a JSON object.")
    return found
