"""``python -m local.bigquery``: see the package's docstring."""

from __future__ import annotations

import argparse
from pathlib import Path

from local.bigquery import sources


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="local.bigquery", description="A BigQuery emulator. gs:// is at STORAGE_EMULATOR_HOST."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True, help="REST API")
    parser.add_argument("--grpc-port", type=int, required=True, help="BigQuery Storage API")
    parser.add_argument("--data-dir", type=Path, required=True, help="made if it does not exist")
    parser.add_argument("--group-bytes", type=int, help="the most of a row group of an export, in memory; 0: any number")
    arguments = parser.parse_args()
    sources.install()
    # Only now can local_bigquery be imported.
    from local.bigquery import parquet_export, server

    if arguments.group_bytes is not None:
        parquet_export.group_bytes_most = arguments.group_bytes
    server.serve(arguments.host, arguments.port, arguments.grpc_port, arguments.data_dir)


if __name__ == "__main__":
    main()
