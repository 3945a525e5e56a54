"""What vLLM's log says of its own start."""

from __future__ import annotations

import pytest

from nightshift.jobset.verdict.engine_start import engine_start
from nightshift.run.observed.heartbeats import Heartbeat
from nightshift.run.observed.pod_startup import Starts, with_engine

pytestmark = pytest.mark.unit

GPU = """\
(Worker_TP0 pid=101) INFO 11-28 04:20:01 [default_loader.py:502] Loading weights took 38.12 seconds
(Worker_TP1 pid=102) INFO 11-28 04:20:02 [default_loader.py:502] Loading weights took 39.40 seconds
(Worker_TP0 pid=101) INFO 11-28 04:20:03 [gpu_model_runner.py:5150] Model loading took 7.51 GiB memory and 41.250000 seconds
(Worker_TP0 pid=101) INFO 11-28 04:20:31 [monitor.py:62] torch.compile took 27.90 s in total
(Worker_TP0 pid=101) INFO 11-28 04:20:44 [gpu_model_runner.py:6582] Graph capturing finished in 9 secs, took 0.62 GiB
(EngineCore pid=99) INFO 11-28 04:20:45 [core.py:396] init engine (profile, create kv cache, warmup model) took 45.10 s \
(compilation: 27.90 s)
"""
ENCODER = """\
INFO 11-28 04:20:45 [core.py:386] init engine (profile, create kv cache, warmup model) took 45.10 s \
(compilation: 30.00 s — language_model: 27.90 s, encoder: 2.10 s)
"""
OLDER = """\
INFO 06-05 09:08:01 [default_loader.py:272] Loading weights took 5.50 seconds
INFO 06-05 09:08:30 [monitor.py:34] torch.compile takes 20.00 s in total
INFO 06-05 09:08:36 [core.py:167] init engine (profile, create kv cache, warmup model) took 47.64 seconds
"""
CPU = """\
(EngineCore pid=99) INFO 11-28 04:20:01 [default_loader.py:502] Loading weights took 0.32 seconds
(EngineCore pid=99) INFO 11-28 04:20:45 [core.py:403] init engine (profile, create kv cache, warmup model) took 31.20 s
"""


@pytest.mark.parametrize(
    ("log", "parts"),
    [
        (GPU, {"weights": 41.25, "compile": 27.9, "warm_up": 17.2}),
        (ENCODER, {"compile": 30.0, "warm_up": 15.1}),
        (OLDER, {"weights": 5.5, "compile": 20.0, "warm_up": 27.64}),
        (CPU, {"weights": 0.32, "warm_up": 31.2}),
        ("", {}),
        ("INFO: a row that says Loading weights took long", {}),
    ],
    ids=["gpu", "encoder", "older", "cpu", "none", "words"],
)
def test_the_parts_of_a_start(log: str, parts: dict[str, float]) -> None:
    assert engine_start(log.splitlines()) == parts


def test_they_are_kept_beside_the_stages_and_never_among_them() -> None:
    pods = {"pod": with_engine({"node": 5.0, "weights": 90.0}, {"weights": 41.0, "compile": 28.0})}
    beat = Heartbeat("a", "", "owner", 0, "node", "pod", 1.0, "", "", 1.0, start_up_s={"weights": 1.0})

    starts = Starts.from_bytes(Starts(pods).to_bytes())

    assert starts.engine(beat) == {"weights": 41.0, "compile": 28.0}
    assert starts.stages(beat) == {"node": 5.0, "weights": 91.0}, "else a start would be planned that long twice"
    assert starts.before_s(beat) == 90.0
