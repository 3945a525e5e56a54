#!/usr/bin/env bash
# Recompiles every *.txt here from its *.in (`make lock`): one universal resolution per environment, for Python 3.11 and later.
# Names and versions only; no download address ever enters these files.
set -euo pipefail
cd "$(dirname "$0")"
uv=${UV:-uv}
compile() { "$uv" pip compile --quiet --universal --python-version 3.11 --no-header --no-emit-index-url "$@"; }
compile driver.in -o driver.txt
compile airflow.in driver.in -o airflow.txt
compile driver.in stream.in -c driver.txt -o stream.txt
compile emulators.in -o emulators.txt
compile airflow.in driver.in stream.in --group ../pyproject.toml:dev -c airflow.txt -o test.txt
compile composer.in driver.in --group ../pyproject.toml:dev -o composer.txt
compile figures.in -o figures.txt
compile ../pyproject.toml lowest.in --extra driver --extra stream --resolution lowest-direct -o lowest.txt
# torch and the CUDA libraries it links go to a file of their own: they are only installed where the CPU build of the same torch
# version is out of reach.
compile server.in -o server-all.txt
python3 - <<'PY'
import pathlib, re
server, torch = [], []
for line in pathlib.Path("server-all.txt").read_text().splitlines():
    if re.match(r"[a-z]", line):
        part = torch if re.match(r"nvidia|cuda|triton|torch", line) else server
    part.append(line)
pathlib.Path("server.txt").write_text("\n".join(server) + "\n")
pathlib.Path("server-torch.txt").write_text("\n".join(torch) + "\n")
pathlib.Path("server-all.txt").unlink()
PY
