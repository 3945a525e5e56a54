"""The rules for single values. Each function returns its value, or raises `mistake` with what to write instead."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections import Counter
from collections.abc import Callable
from typing import Final

from nightshift.fields.mistakes import choice, mistake
from nightshift.fields.values import column_name, shown
from nightshift.spec.vllm_flags import WHOLE_MOST, dashed
from nightshift.tasks import TASK_KINDS

JOB_PATTERN: Final = r"^[a-z]([-a-z0-9]{0,38}[a-z0-9])?$"
LABEL_PATTERN: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
RESOURCE_PATTERN: Final = r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
LABEL_KEY_PATTERN: Final = r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
OBJECT_PATTERN: Final = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
TABLE_PATTERN: Final = r"^[^`\s]+\.[^`.]+$"
SHARE_PATTERN: Final = r"^[0-9]{1,3}(\.[0-9]{1,9})?%$"
FLAG_PATTERN: Final = r"[a-z0-9]([-_a-z0-9]*[a-z0-9])?"
_HUB_NAME: Final = r"[A-Za-z0-9_]([-A-Za-z0-9_.]{0,94}[A-Za-z0-9_])?"
_FOLDER: Final = r"(?!\.{1,2}(/|$))[-A-Za-z0-9_.~=+@]{1,255}"
URI_PATTERN: Final = (
    rf"^(hf://(?!.*(--|\.\.)){_HUB_NAME}/{_HUB_NAME}|gs://[a-z0-9][-a-z0-9_.]{{1,220}}[a-z0-9](/{_FOLDER}){{1,32}})$"
)
"""A repository as the Hub names them (``validate_repo_id`` of huggingface-hub); or a folder. The driver of Cloud Storage FUSE
splits its options at commas, and at colons what it takes for a setting, so a folder has neither."""

_PROJECT: Final = r"(?:[a-z0-9.-]+:)?[a-z][-a-z0-9]{0,28}[a-z0-9]"
"""A Google Cloud project id; an old one begins with a domain."""
PUBSUB_PATTERN: Final = r"^[A-Za-z][-A-Za-z0-9._~+%]{2,254}$"
SQL_TABLE_PATTERN: Final = r"^[a-z_][a-z0-9_]{0,62}(\.[a-z_][a-z0-9_]{0,62})?$"
FOLDER_URL_PATTERN: Final = r"^gs://[a-z0-9][-a-z0-9_.]{1,220}[a-z0-9](/[A-Za-z0-9_~][-A-Za-z0-9_.~]{0,199}){1,10}$"

_NUMBER: Final = r"[-+]?[0-9]+(\.[0-9]*)?(e[-+]?[0-9]+)?"
PARTITION_COLUMN: Final = "partition_date"
ORDERS: Final = ("auto", "none")
"""Of rows, beside a list of columns."""


_TABLE_FORM: Final = "Write dataset.table or project.dataset.table, for example catalog.package_embeddings"
ENGINE_FLAGS: Final = {
    "model": "Write it as model.uri",
    "served-model-name": "Write it as model.name",
    "revision": "Write it as model.revision",
    "max-num-seqs": "Write it as engine.max_num_seqs",
    "max-model-len": "Write it as engine.max_model_len",
    "dtype": "Write it as engine.dtype",
    **dict.fromkeys(
        ("host", "port", "uds", "api-key", "root-path", "ssl-keyfile", "ssl-certfile", "grpc", "grpc-port", "tokens-only"),
        "Leave it out: server and driver talk plain HTTP inside their pod",
    ),
    **dict.fromkeys(
        ("nnodes", "node-rank", "master-addr", "master-port", "headless", "distributed-executor-backend"),
        "Leave it out: compute.hosts and compute.topology say how many machines one engine spans",
    ),
    "tensor-parallel-size": "Write it as compute.tensor_parallel",
    "pipeline-parallel-size": "Write it as compute.pipeline_parallel",
    **dict.fromkeys(
        (
            "data-parallel-size",
            "data-parallel-size-local",
            "data-parallel-rank",
            "data-parallel-start-rank",
            "data-parallel-address",
            "data-parallel-rpc-port",
            "data-parallel-backend",
            "data-parallel-hybrid-lb",
            "data-parallel-external-lb",
            "data-parallel-multi-port-external-lb",
            "data-parallel-supervisor-port",
        ),
        "Leave it out; raise compute.workers, or compute.engines on one GPU. If one of such cores dies, vLLM ends them all",
    ),
    "runner": "Leave it out: the task kind decides what the engine runs",
    "config": "Write its flags one by one under engine.args",
    "hf-token": "Leave it out: a job file is no place for a secret. An operator sets HF_TOKEN in the override file",
    "help": "Leave it out: the engine would print its flags and end",
}
"""Flags of ``vllm serve`` that nightshift sets itself or that would cut the driver off, each with its remedy."""
SEVERAL: Final = (
    "allowed-media-domains",
    "collect-detailed-traces",
    "cpu-offload-params",
    "cudagraph-capture-sizes",
    "ignore-patterns",
    "kv-cache-dtype-skip-layers",
    "logits-processors",
    "lora-modules",
    "lora-target-modules",
    "numa-bind-cpus",
    "numa-bind-nodes",
    "offload-params",
    "sleep-preserve-parameter-names",
)
"""Flags of ``vllm serve`` that take several values (vLLM 0.32)."""


def job_name(value: str) -> str:
    """A DNS label that starts with a letter: the names of the JobSet, its Job and its pods begin with it."""
    if re.fullmatch(JOB_PATTERN, value):
        return value
    example = re.sub(r"[^a-z0-9]+", "-", value.lower()).lstrip("-0123456789").rstrip("-") or "package-embeddings"
    if len(example) > 40:
        example = example[:40].rpartition("-")[0] or example[:40]
    if len(value) > 40:
        raise mistake(
            f"{value!r} has {len(value)} characters; at most 40 fit into the Kubernetes names made from it",
            f"Write a shorter name, for example {example}",
        )
    raise mistake(
        f"{value!r} is not a valid name for a Kubernetes object",
        f"Use lower-case letters, digits and dashes, starting with a letter and not ending with a dash, for example {example}",
    )


def _matching(pattern: str, what: str, remedy: str) -> Callable[[str], str]:
    def matching(value: str) -> str:
        if not re.fullmatch(pattern, value):
            raise mistake(f"{value!r} is not {what}", remedy)
        return value

    return matching


label = _matching(
    LABEL_PATTERN,
    "a valid Kubernetes label",
    "Use at most 63 letters, digits, dashes, underscores and dots; start and end with a letter or digit",
)
"""A Kubernetes label value."""
object_name = _matching(
    OBJECT_PATTERN,
    "a valid name for a Kueue object",
    "Use at most 63 lower-case letters, digits and dashes; start and end with a letter or digit",
)
"""The name of a Kueue object; pods carry it as a label."""
revision = _matching(r"\S+", "a valid revision", "Write a tag, a branch or a commit, without spaces")
resource_name = _matching(
    RESOURCE_PATTERN,
    "the name of a resource of a node",
    "Write what the nodes list under status.allocatable, for example amd.com/gpu",
)
_label_key = _matching(LABEL_KEY_PATTERN, "the key of a label", "Write it as kubectl get nodes --show-labels does")
sql_table = _matching(
    SQL_TABLE_PATTERN,
    "a valid table name here",
    "Write table or schema.table in lower-case letters, digits and underscores, each part up to 63 characters, not "
    "starting with a digit, for example catalog.package_vectors",
)
"""``table`` or ``schema.table`` in PostgreSQL, written as it is stored: nightshift puts names in quotes."""
folder_url = _matching(
    FOLDER_URL_PATTERN,
    "a folder on Cloud Storage",
    "Write gs://BUCKET/FOLDER without a slash at its end, the folders with only letters, digits, dashes, underscores, "
    "dots and tildes in their names, for example gs://catalog-streams/package-texts",
)
"""``gs://BUCKET/FOLDER``, whose names need no escaping in a URL or in BigQuery's wildcards."""


def one_line(value: str) -> str:
    if not value.strip() or len(value.splitlines()) != 1 or not value.isprintable():
        raise mistake(f"{value!r} is not one line of text", "Write a few words on one line")
    return value


def day(value: object) -> datetime.date:
    """A date, as YAML gives it or as JSON text."""
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return value
    try:
        if isinstance(value, str) and re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
            return datetime.date.fromisoformat(value)
    except ValueError as error:
        raise mistake(f"{value!r} is not a real date: {error}", "Write an existing date as YEAR-MONTH-DAY") from None
    shown = "a collection" if isinstance(value, dict | list) else repr(str(value))
    raise mistake(f"{shown} is not a date", "Write YEAR-MONTH-DAY, for example 2026-11-01")


def model_uri(value: str) -> str:
    """Part of a command line, of a URL and of a list of mount options."""
    if re.fullmatch(URI_PATTERN, value):
        return value
    if value.startswith("gs://") and (odd := re.search(r"[^-A-Za-z0-9_.~=+@/]", value.removeprefix("gs://"))):
        raise mistake(
            f"{value!r} contains {odd[0]!r}: where a bucket is mounted, that would be read as another option",
            "Use only letters, digits and - _ . ~ = + @ in the names of folders; copy the weights to such a folder",
        )
    raise mistake(f"{value!r} is not a model address", "Write hf://ORGANISATION/NAME or gs://BUCKET/FOLDER")


def task_kind(value: str) -> str:
    if value not in TASK_KINDS:
        raise mistake(f"There is no task kind {value!r}", choice(value, TASK_KINDS))
    return value


def node_labels(value: dict[str, str]) -> dict[str, str]:
    """Labels as a ``nodeSelector`` has them."""
    for key, label_value in value.items():
        _label_key(key)
        if label_value:
            label(label_value)
    return value


def key_columns(value: tuple[str, ...]) -> tuple[str, ...]:
    """Raises `mistake` if there is none or one is named twice."""
    if not value:
        raise mistake("The list is empty", "Write at least one column, for example [name, version]")
    return no_column_twice(value)


def no_column_twice(value: tuple[str, ...]) -> tuple[str, ...]:
    """Raises `mistake` for a column that is named twice; BigQuery ignores case."""
    times = Counter(name.casefold() for name in value)
    twice = next((name for name in value if times[name.casefold()] > 1), None)
    if twice is not None:
        raise mistake(f"The column {twice!r} is named twice", "Name each column once")
    return value


def order(value: object) -> str | tuple[str, ...]:
    """`ORDERS`, or a list of columns."""
    form = "Write auto, none, or a list of columns of the query, for example [category, product]"
    if isinstance(value, str) and value in ORDERS:
        return value
    if not isinstance(value, list | tuple):
        raise mistake(f"{shown(value)} is no order of rows", form)
    if not value:
        raise mistake("The list is empty", form)
    return no_column_twice(tuple(column_name(name) if isinstance(name, str) else _no_name(name) for name in value))


def _no_name(value: object) -> str:
    raise mistake(f"{shown(value)} is not the name of a column", "Write names of columns of the query")


def table_name(value: str) -> str:
    """``dataset.table`` or ``project.dataset.table``, by BigQuery's rules for each part."""
    if "`" in value:
        raise mistake(f"{value!r} is not a table name: it has backquotes", f"Write {value.replace('`', '')}")
    legacy = re.fullmatch(r"([a-z][-a-z0-9]+):(\w+\.[^.:]+)", value)
    if legacy is not None:
        raise mistake(f"{value!r} has a colon, as in legacy SQL", f"Write {legacy[1]}.{legacy[2]}")
    # A project may have a domain with dots before a colon, so dataset and table are the last two parts.
    head, _, table = value.rpartition(".")
    project, dot, dataset = head.rpartition(".")
    if not dataset:
        raise mistake(f"{value!r} is not a table name: it has no dataset", _TABLE_FORM)
    if not re.fullmatch(r"[A-Za-z0-9_]{1,1024}", dataset):
        raise mistake(
            f"{value!r} is not a table name: {dataset!r} is not a dataset name, which has only letters, digits and underscores",
            _TABLE_FORM,
        )
    if not re.fullmatch(r"[\w -]+", table) or len(table.encode()) > 1024:
        raise mistake(
            f"{value!r} is not a table name: {table!r} may have only letters, digits, underscores, dashes and spaces",
            _TABLE_FORM,
        )
    if dot and not re.fullmatch(_PROJECT, project):
        raise mistake(f"{value!r} is not a table name: {project!r} is not a Google Cloud project id", _TABLE_FORM)
    return value


def tolerance(value: object) -> int | str:
    """A number of rows, or a share of them (``1%``)."""
    form = 'Write a number of rows, or a share from "0%" to "100%" in quotes, for example 5 or "1%"'
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63:
        return value
    if isinstance(value, str) and re.fullmatch(SHARE_PATTERN, value):
        if float(value[:-1]) > 100:
            raise mistake(f"{value!r} is more than all rows", form)
        return value
    raise mistake(f"{shown(value)} is neither a number of rows nor a share", form)


def engine_flag(value: str) -> str:
    """The name of a ``vllm serve`` flag without its dashes; not one that nightshift sets itself."""
    if not re.fullmatch(FLAG_PATTERN, value):
        name, _, keys = value.strip("-").lower().partition(".")
        if keys:
            # vLLM makes two words of it, and the second is the model if the flag takes no value.
            problem = f"{value!r} is a key of a flag's JSON"
            raise mistake(problem, f"Write the whole JSON in quotes, for example {name}: '{json.dumps({keys: 1})}'")
        name, _, given = value.strip("-").lower().partition("=")
        form = f"{name}: {given or 'true'}" if re.fullmatch(FLAG_PATTERN, name) else "enforce-eager: true"
        raise mistake(
            f"{value!r} is not a flag name", f"Write it without dashes before it, and its value after a colon: {form}"
        )
    # vllm reads underscores as dashes, and argparse accepts any prefix of a name.
    name = dashed(value)
    owned = next((flag for flag in ENGINE_FLAGS if flag.startswith(name) or name == f"no-{flag}"), None)
    if owned is not None:
        raise mistake(f"--{owned} cannot be set here: nightshift sets it", ENGINE_FLAGS[owned])
    return value


def engine_value(value: object) -> object:
    """true, false, a number, one text, or a list of numbers and texts. Never raises for how large a number is but `mistake`."""
    # `engine_args` says which flags take a list.
    if not isinstance(value, list):
        return _engine_word(value)
    if not value:
        raise mistake("The list is empty", "Write at least one value, or leave the flag out")
    for each in value:
        if isinstance(each, bool | list):
            raise mistake("A list can only have numbers and texts", "Put JSON in quotes")
        if str(_engine_word(each)).startswith("-"):
            # Each item is a word of its own on the command line.
            raise mistake(f"{shown(each)} in a list would be a flag of its own", "Write it without the leading dash")
    return value


def _engine_word(value: object) -> object:
    if not isinstance(value, bool | int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
        raise mistake(f"A flag cannot take {shown(value)}", "Write true, false, a number or text; put JSON in quotes")
    # A number that is too long for YAML's reader (`nightshift.spec.document`) is a text.
    number = float(value) if isinstance(value, str) and re.fullmatch(_NUMBER, value) else value
    if not isinstance(number, str) and not -WHOLE_MOST <= number <= WHOLE_MOST:
        raise mistake("A flag cannot take so large a number", f"Write {WHOLE_MOST} or less")
    if value == 0 and str(value).startswith("-"):
        raise mistake("A flag cannot take -0", "Write 0")
    return value


def engine_args(value: dict[str, object]) -> dict[str, object]:
    """No flag twice: vLLM would take the last, and a reader may see the first. A list only where vLLM takes several values:
    elsewhere it would read the second as the model."""
    seen: dict[str, str] = {}
    for name, each in value.items():
        other = seen.setdefault(dashed(name), name)
        if other != name:
            raise mistake(f"{other!r} and {name!r} are one flag", "Keep one of the two")
        if isinstance(each, list) and dashed(name) not in SEVERAL:
            raise mistake(f"--{dashed(name)} takes no list", f"Write one value. These take several: {', '.join(SEVERAL)}")
    return value


def subscription(value: str) -> str:
    """A Pub/Sub subscription, with its project or without."""
    return _pubsub_name(value, "subscription", "package-texts")


def topic(value: str) -> str:
    """A Pub/Sub topic, with its project or without."""
    return _pubsub_name(value, "topic", "package-texts-dead")


def _pubsub_name(value: str, kind: str, example: str) -> str:
    """``projects/PROJECT/KINDs/NAME`` or NAME, by Pub/Sub's rules ("Create and manage topics", naming guidelines)."""
    form = f"Write its name, for example {example}, or projects/PROJECT/{kind}s/{example}"
    *parents, name = value.split("/")
    if parents and (len(parents) != 3 or parents[0] != "projects" or parents[2] != f"{kind}s" or not parents[1]):
        raise mistake(f"{value!r} is not the name of a {kind}", form)
    if parents and not re.fullmatch(_PROJECT, parents[1]):
        # It becomes part of URLs.
        raise mistake(f"{parents[1]!r} is not a Google Cloud project id", form)
    if not re.fullmatch(PUBSUB_PATTERN, name):
        raise mistake(
            f"{name!r} is not a valid name of a {kind}",
            "Use 3 to 255 letters, digits, dashes, periods, underscores, tildes, plus and percent signs; start with a letter",
        )
    if name.lower().startswith("goog"):
        raise mistake(f"{name!r} begins with goog, which Pub/Sub reserves", "Choose another name")
    return value
