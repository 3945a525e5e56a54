"""``.envs/server/bin/python -m benchmarks.inprocess``: `vllm.LLM` in this process, driven by lines of JSON on stdin.

The first line: {"task": "embed" | "generate" | "chat", "llm": arguments of LLM, "max_tokens": N}. Each line after it:
{"texts": [...]}; answered by {"seconds", "tokens", "cpu": {process: seconds}} on stdout. Does not need nightshift.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


def main() -> None:
    # vLLM also writes to stdout; the reader must get only these lines.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    import psutil  # type: ignore[import-untyped]
    from vllm import LLM, SamplingParams

    setup = json.loads(sys.stdin.readline())
    llm = LLM(**setup["llm"])
    options: Any = None
    if setup["task"] != "embed":
        options = SamplingParams(temperature=0.0, max_tokens=setup["max_tokens"], seed=0)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        texts = json.loads(line)["texts"]
        before = _cpu(psutil)
        began = time.monotonic()
        if options is None:
            tokens = sum(len(output.outputs.embedding) > 0 for output in llm.embed(texts, use_tqdm=False))
        else:
            if setup["task"] == "chat":
                outputs = llm.chat([[{"role": "user", "content": text}] for text in texts], options, use_tqdm=False)
            else:
                outputs = llm.generate(texts, options, use_tqdm=False)
            tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        seconds = time.monotonic() - began
        cpu = {name: spent - before.get(name, 0.0) for name, spent in _cpu(psutil).items()}
        print(json.dumps({"seconds": seconds, "tokens": tokens, "cpu": cpu}), file=answers, flush=True)


def _cpu(psutil: Any) -> dict[str, float]:
    """CPU seconds of this process and its descendants."""
    me = psutil.Process()
    spent = {}
    for process in [me, *me.children(recursive=True)]:
        times = process.cpu_times()
        name = "this process" if process.pid == me.pid else f"{process.name()} {process.pid}"
        spent[name] = times.user + times.system
    return spent


if __name__ == "__main__":
    main()
