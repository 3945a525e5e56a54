"""How the stack, the test cluster's pods and the tests start vLLM's CPU build on this machine."""

from __future__ import annotations

from local import hub
from local.environments import python_of


def command(*arguments: str) -> list[str]:
    """What starts a server, as a pod does (`nightshift.jobset.manifest.server`)."""
    return [str(python_of("server")), "-m", "vllm.entrypoints.cli.main", "serve", *arguments]


def environment() -> dict[str, str]:
    """Variables of a server. The models are in the local hub's cache; the network is not used."""
    cache = hub.ensure()
    return {
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_CACHE": str(cache),
        # Keeps what vLLM learns about a model's architecture, which takes 12 s of a first start.
        "VLLM_CACHE_ROOT": str(cache.parent / "vllm"),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        # Two processes instead of three, each of which imports torch for 12 s: the engine's core computes by itself.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # Threads that wait for each other in a loop take the cores from whatever else runs: beside other tests, an engine took
        # 9 s of CPU for what is 2 s of work.
        "OMP_WAIT_POLICY": "PASSIVE",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
