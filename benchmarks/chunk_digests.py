"""``PYTHONPATH=plugins python -m benchmarks.chunk_digests``: what a chunk's digests cost, against a file without them."""

from __future__ import annotations

import io
import random
import statistics
import time
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from nightshift.run import chunks
from nightshift.run.chunks import Provenance, Result

ROWS: Final = 1000
ROUNDS: Final = 60
PROVENANCE: Final = Provenance("0" * 16, 0, "pod-0", "node", {"name": "m"}, "0.1", "", "", ROWS, 0, 0)


def main() -> None:
    rng = random.Random(0)
    floats = [[rng.uniform(-1, 1) for _ in range(384)] for _ in range(ROWS)]
    words = ["".join(rng.choices("abcdefghij", k=6)) for _ in range(2000)]
    texts = [" ".join(rng.choices(words, k=80)) for _ in range(ROWS)]
    print(f"{ROWS:,} rows, CPU time, medians of {ROUNDS} rounds, each of which takes every case once; pyarrow {pa.__version__}")
    for name, values, kind in (("384 floats", floats, pa.list_(pa.float32())), ("80 words", texts, pa.string())):
        _measure(name, [Result(number, value, None, None, 1) for number, value in enumerate(values)], kind)


def _measure(name: str, results: list[Result], kind: pa.DataType) -> None:
    keys = pa.table({"id": pa.array(range(ROWS), pa.int64())})
    body = chunks.encode(keys, results, kind, PROVENANCE)
    table = chunks.decode(body)[0]
    table = table.replace_schema_metadata({chunks.METADATA_KEY: table.schema.metadata[chunks.METADATA_KEY]})
    plain = _without(table)
    cases: dict[str, Callable[[], Any]] = {
        "encode": lambda: chunks.encode(keys, results, kind, PROVENANCE),
        "write, without": lambda: _without(table),
        "write, with": lambda: chunks.to_parquet(table.schema, [table]),
        "read, without": lambda: pq.ParquetFile(io.BytesIO(plain)).read(),
        "decode": lambda: chunks.decode(body),
    }
    times: dict[str, list[float]] = {case: [] for case in cases}
    for _ in range(ROUNDS):
        for case, run in cases.items():
            began = time.process_time()
            run()
            times[case].append(time.process_time() - began)
    middle = {case: statistics.median(each) for case, each in times.items()}
    print(f"{name}: {len(body):,} bytes, {len(body) - len(plain)} of them for the digests and checksums")
    for case, seconds in middle.items():
        print(f"  {case:<16} {1e6 * seconds / ROWS:7.2f} us per row  {1e3 * seconds / (len(body) / 1e6):7.2f} ms per MB")
    added = middle["write, with"] - middle["write, without"]
    print(f"  digests add {100 * added / (middle['encode'] - added):.1f}% to encode, ", end="")
    print(f"{100 * (middle['decode'] / middle['read, without'] - 1):.0f}% to decode")


def _without(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


if __name__ == "__main__":
    main()
