"""vLLM's own parser takes what is rendered for it, also for engines that no machine here could start."""

from __future__ import annotations

import json
import os
import subprocess
from typing import Any

import pytest

from local import vllm
from local.environments import python_of
from nightshift.jobset.manifest.render import render
from nightshift.settings import Settings
from nightshift.spec.tuning import PERFORMANCE
from tests.builders import RUN, a_plan, a_spec

pytestmark = pytest.mark.integration

COMPUTES: list[dict[str, Any]] = [
    {"profile": "cpu"},
    {"profile": "gpu-h200", "tensor_parallel": 4, "pipeline_parallel": 2},
    {"profile": "gpu-h100", "hosts": 2},
    {"profile": "tpu-v6e", "topology": "4x4"},
]
PARSE = """
import json, sys
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
wanted = ("model", "model_tag", "revision", "served_model_name", "tensor_parallel_size", "pipeline_parallel_size", "nnodes",
          "node_rank", "master_addr", "headless", "distributed_executor_backend", "load_format")
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
    values = {"$(ENGINE_PORT)": "8000", "$(JOB_COMPLETION_INDEX)": "1", "$(HEAD)": "n-worker-0-0.n"}
    words = [values.get(word, word) for word in server["args"]]
    return [*words, *(["--headless"] if compute.get("hosts") else [])]


def test_every_flag_is_one_of_vllm() -> None:
    bucket = {"name": "m", "uri": "gs://models/m", "revision": "r1"}
    given = [*map(arguments, COMPUTES), arguments(COMPUTES[0], model=bucket)]
    done = subprocess.run(
        [str(python_of("server")), "-c", PARSE],
        input=json.dumps(given),
        env={**os.environ, **vllm.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    one, parallel, several, tpu, streamed = json.loads(done.stdout.splitlines()[-1])

    assert (one["model"], one["revision"], one["served_model_name"]) == ("org/m", "r1", ["m"])
    assert (parallel["tensor_parallel_size"], parallel["pipeline_parallel_size"]) == (4, 2)
    assert (several["model_tag"], several["nnodes"], several["node_rank"], several["headless"]) == ("org/m", 2, 1, True)
    assert (several["master_addr"], several["tensor_parallel_size"]) == ("n-worker-0-0.n", 8)
    assert (tpu["distributed_executor_backend"], tpu["tensor_parallel_size"]) == ("ray", 16)
    assert (streamed["model"], streamed["load_format"]) == ("gs://models/m", "runai_streamer")


KNOWN = """
import json
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser
print(json.dumps(list(make_arg_parser(FlexibleArgumentParser())._option_string_actions)))
"""


def test_every_flag_that_does_not_affect_answers_is_one_of_vllm() -> None:
    """A name with a mistake in it would be one that nobody can set."""
    done = subprocess.run(
        [str(python_of("server")), "-c", KNOWN],
        env={**os.environ, **vllm.environment()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    known = {option.removeprefix("--") for option in json.loads(done.stdout.splitlines()[-1])}

    assert [flag for family in PERFORMANCE for flag in family.flags if flag not in known] == []
