"""``make bench-gpu``: driver and vLLM on one GPU, beside vLLM's offline class; on the CPU with tiny models, to try it.

It needs no network: the models are made up (`benchmarks.gpu_models`). On a machine that has nothing but an NVIDIA GPU, CUDA's
vLLM and the driver's packages, run the module itself::

    python -m benchmarks.gpu_models kit                  # where `make chat-model` has run: two tokenizers, 4 MB
    PYTHONPATH=plugins python -m benchmarks.gpu --tokenizers kit --out results.jsonl

Each step stands alone. What it found is written at once, so a run that is cut off has what it has; a step that fails says why,
and the next one begins. Engines of one group start together and share the GPU's memory; only one computes at a time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from benchmarks.gpu_engines import Bench, Engine, Inside, Side, Sizes, card, group, profile_of, settings, vllm_version
from benchmarks.gpu_models import MODELS, lay_out
from benchmarks.processes import Driver, counter
from benchmarks.report import PLUGINS
from benchmarks.runs import Run, prepare
from nightshift.spec.engine_defaults import CPU_SEATS_SERVED, QUIET, TOKENS, vllm_tokens
from tests.builders import a_spec

STEPS: Final = ("embeddings", "order", "chat", "interrupted", "large")


GPU: Final = Sizes(
    embedding="bert",
    chat="1b",
    large="8b",
    turns=3,
    embedding_rows=12_000,
    embedding_tokens=50,
    servers=(1, 4),
    chat_rows=1_500,
    interrupted_rows=1_500,
    large_rows=600,
    tokens_in=512,
    tokens_out=128,
    prefixes=100,
    shared_by=10,
    prefix_tokens=512,
    own_tokens=512,
    order_seats=64,
    cached_prefixes=10,
    block=16,
)
CPU: Final = Sizes(
    embedding="mini",
    chat="tiny",
    large=None,
    turns=1,
    embedding_rows=300,
    embedding_tokens=50,
    servers=(1, 2),
    chat_rows=96,
    interrupted_rows=600,
    large_rows=0,
    tokens_in=64,
    tokens_out=8,
    prefixes=8,
    shared_by=4,
    prefix_tokens=256,
    own_tokens=128,
    order_seats=4,
    cached_prefixes=2,
    block=128,
)


def through_the_driver(bench: Bench, engine: Engine, texts: Sequence[str]) -> dict[str, Any]:
    """A run of its own, from "resumed" to the last commit."""
    run = _prepared(bench, engine, texts)
    before = engine.spent()
    ended = _driver(run, engine, run.bucket / "driver.log").complete()
    run.check(ended.code)
    spent = {name: round(seconds - before.get(name, 0.0), 2) for name, seconds in engine.spent().items()}
    last = [line for line in ended.log if line["message"] == "done"][-1]
    found = {"seconds": ended.working_s, "tokens": last["output_tokens"], "driver_cpu_s": round(ended.cpu_s, 2), "cpu_s": spent}
    shutil.rmtree(run.bucket)
    return found


def _prepared(bench: Bench, engine: Engine, texts: Sequence[str]) -> Run:
    bucket = Path(tempfile.mkdtemp(dir=bench.folder))
    chunk = max(4, len(texts) // 20)
    changes = settings(bench, engine.side)
    return prepare(bucket, len(texts), chunk_rows=chunk, texts=lambda rows: [texts[row] for row in rows], **changes)


def _driver(run: Run, engine: Engine, log: Path) -> Driver:
    # The interpreter of a machine without environments finds its packages by this variable.
    path = os.pathsep.join(filter(None, (PLUGINS, os.environ.get("PYTHONPATH"))))
    return Driver(run.url, engine.url, log, PYTHONPATH=path)


def compare(bench: Bench, step: str, engines: Mapping[str, Any], texts: Sequence[str], tokens_in: int, warm: int) -> None:
    """Each engine in turn, several times; of each the median."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in engines}
    for engine in engines.values():
        _compute(bench, engine, texts[:warm])
    for turn in range(bench.sizes.turns):
        names = list(engines) if turn % 2 else list(engines)[::-1]
        for name in names:
            found[name].append(_compute(bench, engines[name], texts))
    for name, runs in found.items():
        middle = sorted(runs, key=lambda run: float(run["seconds"]))[len(runs) // 2]
        rates = sorted(round(len(texts) / float(run["seconds"]), 1) for run in runs)
        seconds = float(middle["seconds"])
        tokens = len(texts) * tokens_in + (int(middle["tokens"]) if engines[name].side.model.generates else 0)
        bench.emit(
            {
                "step": step,
                "side": name,
                "model": engines[name].side.model.words,
                "rows": len(texts),
                "rows_per_s": median(rates),
                "each": rates,
                "tokens_per_s": round(tokens / seconds),
                "middle": middle,
            }
        )


def _compute(bench: Bench, engine: Any, texts: Sequence[str]) -> dict[str, Any]:
    return engine.compute(texts) if isinstance(engine, Inside) else through_the_driver(bench, engine, texts)


def embeddings(bench: Bench, engines: Mapping[str, Any]) -> None:
    """Short rows: one API server, several, and the offline class."""
    model, sizes = MODELS[bench.sizes.embedding], bench.sizes
    words = bench.words(model)
    texts = [words.text(sizes.embedding_tokens - 2) for _ in range(sizes.embedding_rows)]
    chosen = {name: engine for name, engine in engines.items() if name.startswith("embeddings")}
    compare(bench, "embeddings", chosen, texts, sizes.embedding_tokens, len(texts) // 10)


def order(bench: Bench, engines: Mapping[str, Any]) -> None:
    """Rows that share beginnings, and rows that share nothing: in order of their texts, and shuffled."""
    engine: Engine = engines["order"]
    sizes = bench.sizes
    words = bench.words(engine.side.model)
    beginnings = [words.text(sizes.prefix_tokens) for _ in range(sizes.prefixes)]
    shared = [f"{beginning} {words.text(sizes.own_tokens)}" for beginning in beginnings for _ in range(sizes.shared_by)]
    alone = [words.text(sizes.prefix_tokens + sizes.own_tokens) for _ in shared]
    through_the_driver(bench, engine, alone[: 2 * sizes.order_seats])
    for name, rows in (("shared beginnings", shared), ("nothing shared", alone)):
        shuffled = random.Random(1).sample(rows, len(rows))
        found: dict[str, list[float]] = {"in order": [], "shuffled": []}
        hits: dict[str, float] = {}
        for _ in range(max(1, sizes.turns - 1)):
            for way, texts in (("in order", sorted(rows)), ("shuffled", shuffled)):
                before = [counter(engine.url, f"vllm:prefix_cache_{each}_total") for each in ("hits", "queries")]
                found[way].append(len(rows) / float(through_the_driver(bench, engine, texts)["seconds"]))
                after = [counter(engine.url, f"vllm:prefix_cache_{each}_total") for each in ("hits", "queries")]
                hits[way] = round((after[0] - before[0]) / max(1.0, after[1] - before[1]), 3)
        rates = {way: [round(rate, 1) for rate in each] for way, each in found.items()}
        ratio = round(median(found["in order"]) / median(found["shuffled"]), 3)
        bench.emit({"step": "order", "rows": f"{len(rows)}, {name}", "rows_per_s": rates, "ratio": ratio, "hits": hits})


def chat(bench: Bench, engines: Mapping[str, Any]) -> None:
    """The server's defaults, a job's, and the offline class with its own."""
    sizes = bench.sizes
    words = bench.words(MODELS[sizes.chat])
    texts = [words.text(sizes.tokens_in) for _ in range(sizes.chat_rows)]
    chosen = {name: engine for name, engine in engines.items() if name.startswith("chat")}
    compare(bench, "chat", chosen, texts, sizes.tokens_in, max(16, len(texts) // 10))


def interrupted(bench: Bench, engines: Mapping[str, Any]) -> None:
    """A driver that is killed in the middle, and one that is asked to stop: what the next one computes again."""
    engine: Engine = engines["chat, a job's defaults"]
    sizes = bench.sizes
    words = bench.words(engine.side.model)
    for name, how in (("SIGKILL", signal.SIGKILL), ("SIGTERM", signal.SIGTERM)):
        texts = [words.text(sizes.tokens_in) for _ in range(sizes.interrupted_rows)]
        run = _prepared(bench, engine, texts)
        served = counter(engine.url, "vllm:request_success_total")
        first = _driver(run, engine, run.bucket / "first.log")
        first.wait_for("committed", times=4)  # of 20
        asked = time.monotonic()
        first.process.send_signal(how)
        ended = first.complete()
        stopped_s, there = time.monotonic() - asked, run.committed_rows()
        began = time.monotonic()
        second = _driver(run, engine, run.bucket / "second.log").complete()
        run.check(second.code)
        again = counter(engine.url, "vllm:request_success_total") - served - len(texts)
        bench.emit(
            {
                "step": "interrupted",
                "by": name,
                "rows": len(texts),
                "exit_code": ended.code,
                "seconds_to_stop": round(stopped_s, 2),
                "committed_then": there,
                "seconds_of_the_second": round(time.monotonic() - began, 2),
                "answered_twice": int(again),
            }
        )
        shutil.rmtree(run.bucket)


def large(bench: Bench, engines: Mapping[str, Any]) -> None:
    """As `chat`, with a model that fills more of the card."""
    sizes = bench.sizes
    assert sizes.large
    words = bench.words(MODELS[sizes.large])
    texts = [words.text(sizes.tokens_in) for _ in range(sizes.large_rows)]
    chosen = {name: engine for name, engine in engines.items() if name.startswith("large")}
    compare(bench, "large", chosen, texts, sizes.tokens_in, 64)


def before(bench: Bench) -> dict[str, Any]:
    """Arguments of Side: what ``vllm serve`` takes where a job has defaults."""
    spec = a_spec(**settings(bench, Side("", MODELS[bench.sizes.chat], 1024)))
    tokens = vllm_tokens(spec.compute.worker(), offline=False)
    seats = CPU_SEATS_SERVED if bench.gpu is None else spec.defaults().seats
    return {"args": {TOKENS: tokens, QUIET: False}, "seats": seats}


def groups(bench: Bench) -> Iterator[tuple[list[Side], list[tuple[str, Callable[[Bench, Mapping[str, Any]], None]]]]]:
    """What starts together, and the steps that it serves."""
    sizes = bench.sizes
    embedding, model = MODELS[sizes.embedding], MODELS[sizes.chat]
    length = 2 * (sizes.tokens_in + sizes.tokens_out)
    sides = [
        Side(f"embeddings, {n} API server{'s' * (n > 1)}", embedding, 256, 6.0, args={"api-server-count": n} if n > 1 else {})
        for n in sizes.servers
    ]
    sides.append(Side("embeddings, offline class", embedding, 256, 6.0, inside=True))
    whole = sizes.prefix_tokens + sizes.own_tokens + sizes.tokens_out + sizes.block
    blocks = sizes.order_seats * -(-whole // sizes.block) + sizes.cached_prefixes * sizes.prefix_tokens // sizes.block
    args = {"num-gpu-blocks-override": blocks, "enable-prefix-caching": True}
    ordered = Side("order", model, whole, 20.0, 8.0, seats=sizes.order_seats, tokens_out=1, args=args)
    yield [*sides, ordered], [("embeddings", embeddings), ("order", order)]
    served = before(bench)
    yield (
        [
            Side("chat, defaults of vllm serve", model, length, 23.0, 16.0, **served),
            Side("chat, a job's defaults", model, length, 23.0, 16.0),
            Side("chat, offline class", model, length, 23.0, 16.0, inside=True),
        ],
        [("chat", chat), ("interrupted", interrupted)],
    )
    if sizes.large:
        big = MODELS[sizes.large]
        yield (
            [
                Side("large, defaults of vllm serve", big, length, 36.0, 14.0, **served),
                Side("large, a job's defaults", big, length, 36.0, 14.0),
            ],
            [("large", large)],
        )


def main() -> int:
    options = _options()
    out = options.out.open("a") if options.out else None

    def emit(found: dict[str, Any]) -> None:
        found = {"at": round(time.monotonic() - began, 1), **found}
        print(json.dumps(found), flush=True)
        if out:
            print(json.dumps(found), file=out, flush=True)

    began = time.monotonic()
    name = None if options.cpu else card()
    with tempfile.TemporaryDirectory(prefix="nightshift-gpu-") as folder:
        place = Path(folder)
        sizes = CPU if name is None else GPU
        profile = options.profile or ("cpu" if name is None else profile_of(name))
        bench = Bench(options.python, name, profile, sizes, place, place / "hub", options.tokenizers, emit)
        emit({"step": "machine", "gpu": name, "profile": profile, "cpus": os.cpu_count(), "vllm": vllm_version(bench)})
        for each in filter(None, (sizes.embedding, sizes.chat, sizes.large)):
            lay_out(MODELS[each], options.tokenizers, bench.hub)
        failed = _all(bench, options.steps, began + options.budget)
    if out:
        out.close()
    return 1 if failed else 0


def _all(bench: Bench, wanted: Sequence[str], until: float) -> int:
    """The number of steps that failed. until: no group starts after it (the machine's monotonic clock)."""
    failed = 0
    for sides, steps in groups(bench):
        chosen = [(name, step) for name, step in steps if name in wanted]
        if not chosen:
            continue
        if time.monotonic() > until:
            bench.emit({"step": chosen[0][0], "failed": "no time is left for it (--budget)"})
            failed += len(chosen)
            continue
        with group(bench, sides) as engines:
            for name, step in chosen:
                try:
                    step(bench, engines)
                except Exception as error:  # The next step begins, whatever this one met.
                    failed += 1
                    bench.emit({"step": name, "failed": f"{type(error).__name__}: {error}"[-1500:]})
    return failed


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--python", default=sys.executable, help="interpreter that has vLLM (default: this one)")
    parser.add_argument("--tokenizers", type=Path, required=True, help="folder that `benchmarks.gpu_models` has filled")
    parser.add_argument("--cpu", action="store_true", help="tiny models on the CPU, to see that it works")
    parser.add_argument("--profile", help="compute profile of the jobs (default: by the name of the card)")
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=STEPS, help="only these")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no further engines start")
    parser.add_argument("--out", type=Path, help="file for a JSON line for each result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
