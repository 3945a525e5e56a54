"""File systems over the emulator: gcsfs, pandas through it, and pyarrow's own."""

from __future__ import annotations

import os
from typing import Any

import gcsfs
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from google.cloud.storage import Bucket  # type: ignore[import-untyped]
from pyarrow.fs import FileSelector, FileType, GcsFileSystem

pytestmark = pytest.mark.integration

CONTENT = os.urandom(6 << 20)


@pytest.fixture
def files(fsspec_options: dict[str, Any]) -> Any:
    return gcsfs.GCSFileSystem(**fsspec_options)


def test_gcsfs_writes_in_blocks_and_reads_anywhere(files: Any, bucket: Bucket) -> None:
    path = f"{bucket.name}/d/a.bin"
    with files.open(path, "wb", block_size=1 << 20) as file:
        file.write(CONTENT)

    assert files.info(path)["size"] == len(CONTENT)
    with files.open(path, "rb") as file:
        file.seek(100)
        assert file.read(10) == CONTENT[100:110]
    assert files.cat(path) == CONTENT


def test_gcsfs_lists_and_removes(files: Any, bucket: Bucket) -> None:
    root = f"{bucket.name}/d"
    for name in ("a.bin", "b.bin", "sub/c.txt"):
        files.pipe(f"{root}/{name}", name.encode())

    assert sorted(files.ls(root)) == [f"{root}/a.bin", f"{root}/b.bin", f"{root}/sub"]
    assert files.glob(f"{root}/*.bin") == [f"{root}/a.bin", f"{root}/b.bin"]
    assert files.find(root) == [f"{root}/a.bin", f"{root}/b.bin", f"{root}/sub/c.txt"]

    files.rm_file(f"{root}/a.bin")
    files.invalidate_cache()
    assert files.find(root) == [f"{root}/b.bin", f"{root}/sub/c.txt"]


def test_gcsfs_exclusive_creation_refuses_an_existing_file(files: Any, bucket: Bucket) -> None:
    files.pipe(f"{bucket.name}/a", b"first", mode="create")
    with pytest.raises(FileExistsError):
        files.pipe(f"{bucket.name}/a", b"second", mode="create")
    assert files.cat(f"{bucket.name}/a") == b"first"


def test_pandas_parquet(fsspec_options: dict[str, Any], bucket: Bucket) -> None:
    frame = pd.DataFrame({"number": [1, 2], "text": ["a", "ü"]})
    frame.to_parquet(f"gs://{bucket.name}/table.parquet", storage_options=fsspec_options)

    pd.testing.assert_frame_equal(pd.read_parquet(f"gs://{bucket.name}/table.parquet", storage_options=fsspec_options), frame)


def test_pyarrow_streams_and_seeks(arrow_files: GcsFileSystem, bucket: Bucket) -> None:
    path = f"{bucket.name}/a.bin"
    with arrow_files.open_output_stream(path) as out:
        out.write(CONTENT)

    with arrow_files.open_input_file(path) as file:
        assert file.size() == len(CONTENT)
        file.seek(1000)
        assert file.read(10) == CONTENT[1000:1010]


def test_pyarrow_parquet_dataset(arrow_files: GcsFileSystem, bucket: Bucket) -> None:
    table = pa.table({"number": list(range(1000)), "part": [number % 3 for number in range(1000)]})
    pq.write_to_dataset(table, f"{bucket.name}/table", partition_cols=["part"], filesystem=arrow_files)

    found = arrow_files.get_file_info(FileSelector(f"{bucket.name}/table", recursive=True))
    assert sorted({info.path.split("/")[2] for info in found}) == ["part=0", "part=1", "part=2"]
    assert sum(info.type == FileType.File for info in found) == 3
    read = pq.read_table(f"{bucket.name}/table", filesystem=arrow_files)
    assert sorted(read["number"].to_pylist()) == list(range(1000))


def test_pyarrow_deletes(arrow_files: GcsFileSystem, bucket: Bucket) -> None:
    for name in ("a", "b"):
        with arrow_files.open_output_stream(f"{bucket.name}/{name}") as out:
            out.write(b"hello")
    arrow_files.delete_file(f"{bucket.name}/a")

    kinds = [info.type for info in arrow_files.get_file_info([f"{bucket.name}/a", f"{bucket.name}/b"])]
    assert kinds == [FileType.NotFound, FileType.File]
