"""vLLM's own parser takes what is rendered for it, also for engines that no machine here could start."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from typing import Any

import pytest
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from local import vllm
from local.environments import python_of
from local.runtime.expansion import expand
from nightshift.jobset.manifest.render import render
from nightshift.jobset.manifest.server import server_args
from nightshift.settings import Settings
from nightshift.spec.values import ENGINE_FLAGS, SEVERAL, engine_flag
from nightshift.spec.vllm_flags import COUNT, NUMBER, ON, PERFORMANCE, SIZE, SWITCH, Takes, takes
from nightshift.spec.vllm_names import NAMES
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.integration

COMPUTES: list[dict[str, Any]] = [
    {"profile": "cpu"},
    {"profile": "gpu-h200-spot", "tensor_parallel": 4, "pipeline_parallel": 2},
    {"profile": "gpu-h100", "hosts": 2},
    {"profile": "tpu-v6e", "topology": "4x4"},
    {"profile": "gpu-h100", "engines": 2},
    {"profile": "cpu", "engines": 2},
]
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
wanted = ("model_tag", "revision", "served_model_name", "tensor_parallel_size", "pipeline_parallel_size", "nnodes",
          "node_rank", "master_addr", "headless", "distributed_executor_backend", "load_format", "port",
          "gpu_memory_utilization", "kv_cache_memory_bytes")
found = []
for arguments in json.load(sys.stdin):
    parsed = make_arg_parser(FlexibleArgumentParser()).parse_args(arguments)
    found.append({name: getattr(parsed, name, None) for name in wanted})
print(json.dumps(found))
"""


def arguments(compute: dict[str, Any], **changes: Any) -> list[str]:
    """As the container's process gets them on host 1, where there are several."""
    manifest = render(a_spec(compute=compute, **changes), RUN, a_plan(8), Settings("b", "p"), name="n")
    [server] = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["initContainers"]
    values = {"ENGINE_PORT": "8000", "ENGINE_PORT_1": "8001", "JOB_COMPLETION_INDEX": "1", "HEAD": "n-worker-0-0.n"}
    words = [expand(word, values) for word in server["args"]]
    if "engines" in compute:
        # What `nightshift.jobset.manifest.supervisor` starts the second one with.
        ports, _, _, _, _, _, _, *words = words
        words.append(f"--port={ports.split(',')[1]}")
    return [*words, *(["--headless"] if compute.get("hosts") else [])]


def told(program: str, given: Any) -> Any:
    """What a program of vLLM's environment prints last, as JSON. given: its standard input, as JSON."""
    done = subprocess.run(
        [str(python_of("server")), "-c", program],
        input=json.dumps(given),
        env={**os.environ, **vllm.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_every_flag_is_one_of_vllm() -> None:
    bucket = {"name": "m", "uri": "gs://models/m", "revision": "r1"}
    given = [*map(arguments, COMPUTES), arguments(COMPUTES[0], model=bucket)]
    one, parallel, several, tpu, shared, shared_cpu, streamed = told(PARSE, given)

    assert (one["model_tag"], one["revision"], one["served_model_name"]) == ("org/m", "r1", ["m"])
    assert (parallel["tensor_parallel_size"], parallel["pipeline_parallel_size"]) == (4, 2)
    assert (several["model_tag"], several["nnodes"], several["node_rank"], several["headless"]) == ("org/m", 2, 1, True)
    assert (several["master_addr"], several["tensor_parallel_size"]) == ("n-worker-0-0.n", 8)
    assert (tpu["distributed_executor_backend"], tpu["tensor_parallel_size"]) == ("ray", 16)
    assert (shared["model_tag"], shared["port"], shared["gpu_memory_utilization"]) == ("org/m", 8001, 0.45)
    assert (shared_cpu["port"], shared_cpu["kv_cache_memory_bytes"]) == (8001, 2**30)
    assert (streamed["model_tag"], streamed["load_format"]) == ("gs://models/m", "runai_streamer")


KNOWN = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
options = make_arg_parser(FlexibleArgumentParser())._option_string_actions
print(json.dumps({name[2:]: (each.dest, each.nargs, sorted(map(str, each.choices or ()))) for name, each in options.items()
                  if name.startswith("--")}))
"""

CHANGED = """
import contextlib, io, json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = make_arg_parser(FlexibleArgumentParser())
def parsed(arguments):
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return {name: repr(value) for name, value in vars(parser.parse_args(list(arguments))).items()}
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
base, *others = json.load(sys.stdin)
ordinary = parsed(base)
found = []
for each in map(parsed, others):
    found.append(each if isinstance(each, str) else sorted(name for name in each if each[name] != ordinary.get(name)))
print(json.dumps(found))
"""
"""Which of vLLM's settings each command line changes, compared with the first; or why vLLM does not start with it."""

SAMPLES: dict[str, list[Any]] = {
    "scheduling-policy": ["fcfs", "priority"],
    "prefix-caching-hash-algo": ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"],
    "mm-processor-cache-type": ["lru", "shm"],
    "cudagraph-capture-sizes": [8, [8], [1, 2, 4]],
    "numa-bind-nodes": [0, [0, 1]],
    "numa-bind-cpus": ["0-3", ["0-3", "4,6-7"]],
    "safetensors-load-strategy": ["eager", "lazy", "prefetch", "torchao"],
    "collect-detailed-traces": ["all", ["model", "worker"]],
    "disable-access-log-for-endpoints": ["/health", "/health,/v1/models"],
    "show-hidden-metrics-for-version": ["0.31"],
    "uvicorn-log-level": ["critical", "debug", "error", "info", "trace", "warning"],
}
OF_KINDS = (
    (COUNT, [1, 17]),
    (NUMBER, [1, 0.5, 1e-05]),
    (SIZE, [4096, "8k", "1.5m", "2G"]),
    (SWITCH, [True, False]),
    (ON, [True]),
)


def samples(flag: str, kind: Takes) -> list[Any]:
    return next((values for each, values in OF_KINDS if each is kind), SAMPLES.get(flag, []))


def own_words(args: dict[str, Any]) -> list[str]:
    return [expand(word, {"ENGINE_PORT": "8000"}) for word in server_args(a_spec(engine__args=args))]


@pytest.fixture(scope="module")
def options() -> dict[str, tuple[str, Any, list[str]]]:
    """All flags of vLLM: which setting each sets, how many values it takes, and its words, as argparse says it."""
    return {name: tuple(each) for name, each in told(KNOWN, []).items()}


def test_the_names_that_a_job_file_is_held_against_are_those_of_this_release(
    options: dict[str, tuple[str, Any, list[str]]],
) -> None:
    """After a new release of vLLM: replace its names in plugins/nightshift/spec/vllm_flags.json by those of `KNOWN`."""
    assert told("import json, vllm; print(json.dumps(vllm.__version__))", []).partition("+")[0] == next(iter(NAMES))
    assert {name: words for name, (_, _, words) in options.items()} == NAMES["0.32.0"]


def test_every_flag_that_does_not_affect_answers_is_one_of_vllm(options: dict[str, tuple[str, Any, list[str]]]) -> None:
    """A name with a mistake in it would be one that nobody can set."""
    assert [flag for family in PERFORMANCE for flag in family.flags if flag not in options] == []


def test_every_value_that_such_a_flag_takes_sets_that_flag_and_no_other() -> None:
    cases = [
        (flag, value)
        for family in PERFORMANCE
        for flag, kind in family.flags.items()
        if kind.form
        for value in samples(flag, kind)
    ]
    assert {flag for flag, _ in cases} == {flag for each in PERFORMANCE for flag, kind in each.flags.items() if kind.form}
    assert [case for case in cases if not ((kind := takes(case[0])) and kind.fits(case[1]))] == []

    found = told(CHANGED, [own_words({}), *(own_words({flag: value}) for flag, value in cases)])
    names = {"device-memory-utilization": "gpu-memory-utilization"}
    for (flag, value), changed in zip(cases, found, strict=True):
        # A value that is vLLM's default changes nothing.
        assert changed in ([], [names.get(flag, flag).replace("-", "_")]), (flag, value, changed)
    assert sum(changed == [] for changed in found) < len(found) / 3


ATTACKS = ("--host=0.0.0.0", "--model=evil/other", "--config=x.yaml", "-O3")


def may_be(args: dict[str, Any]) -> bool:
    """Whether a job may say so, as far as the model of a job checks it."""
    try:
        a_spec(engine__args=args)
    except ValidationError:
        return False
    return True


def test_a_text_is_never_another_flag(options: dict[str, tuple[str, Any, list[str]]]) -> None:
    """Any flag of vLLM that a job may set, with any text, alone or in a list: vLLM refuses it, or sets that flag alone."""
    values = [*ATTACKS, *([text] for text in ATTACKS), ["1", "evil/other"], ["evil/other"], True, False, ""]
    cases = [(option, value) for option in options for value in values if may_be({option: value})]
    found = told(CHANGED, [own_words({}), *(own_words({option: value}) for option, value in cases)])

    dests = set()
    for (option, value), changed in zip(cases, found, strict=True):
        if not isinstance(changed, str):
            assert changed in ([], [options[option][0]]), (option, value, changed)
            dests |= set(changed)
    assert len(dests) > 50
    assert not dests & {options[name][0] for name in ENGINE_FLAGS}


def test_the_flags_that_take_a_list_are_those_of_vllm(options: dict[str, tuple[str, Any, list[str]]]) -> None:
    assert {*SEVERAL} == {name for name, (_, many, _) in options.items() if many == "+" and name not in ENGINE_FLAGS}


def test_nothing_that_nightshift_sets_can_be_set_by_another_spelling(options: dict[str, tuple[str, Any, list[str]]]) -> None:
    """argparse takes any beginning of a name that is only one flag's, vLLM underscores for dashes, and JSON after a dot."""
    spellings = {
        spelt
        for name in ENGINE_FLAGS
        for end in range(1, len(name) + 1)
        for short in (name[:end], name[:end].replace("-", "_"))
        for spelt in (short, f"no-{short}")
    }
    taken = []
    for spelt in sorted(spellings):
        with contextlib.suppress(PydanticCustomError):
            taken.append(engine_flag(spelt))
    found = told(CHANGED, [own_words({}), *(own_words({spelt: value}) for spelt in taken for value in ("1", True))])
    owned = {name.replace("-", "_") for name in ENGINE_FLAGS}

    assert [each for each in found if not isinstance(each, str) and owned & set(each)] == []
    assert [name for name in ENGINE_FLAGS if name not in options] == []
    assert [name for name in options if name not in ENGINE_FLAGS and any(flag.startswith(name) for flag in ENGINE_FLAGS)] == []
