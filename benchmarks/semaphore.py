"""``python -m benchmarks.semaphore SHARD ANSWERS ENGINE_URL``: a worker for offline batches in the usual shape, on Parquet.

Our own re-implementation of the shape of the public reference worker, not its code. It reads the whole shard into memory. A
task for each row waits for one of 100 slots. The answers stay in memory until they are written at the end. It does not
retry or resume.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Final

import aiohttp
import pyarrow as pa
import pyarrow.parquet as pq

IN_FLIGHT: Final = 100


async def answers(url: str, texts: list[str]) -> list[str]:
    places = asyncio.Semaphore(IN_FLIGHT)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=IN_FLIGHT)) as session:

        async def ask(text: str) -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": text}]}
            async with places, session.post(f"{url}/v1/chat/completions", json=body) as reply:
                answer: str = json.loads(await reply.read())["choices"][0]["message"]["content"]
                return answer

        return await asyncio.gather(*(ask(text) for text in texts))


def main() -> None:
    shard, target, url = sys.argv[1:]
    rows = pq.read_table(shard).to_pylist()
    found = asyncio.run(answers(url, [row["text"] for row in rows]))
    pq.write_table(pa.table({"id": [row["id"] for row in rows], "answer": found}), target)


if __name__ == "__main__":
    main()
