"""A DAG's page in words, made from its job file."""

from __future__ import annotations

import re
from pathlib import Path

from nightshift.spec import JobSpec, fingerprint

MARKUP = re.compile(r"[\\`*_{}\[\]<>|~]")
BACKSLASH = r"\\\g<0>"


def dag_docs(spec: JobSpec, file: Path) -> str:
    """Markdown for ``doc_md``: what the job reads, computes and writes, and how to run it for other days.

    file: of the job. `nightshift run FILE` reads its name and the fingerprint here (`nightshift.spec.fingerprint`).
    """
    workers = spec.compute.workers if spec.compute.workers is not None else "as many as the deadline requires"
    facts = {
        "Reads": (f"the query below, with {_period(spec)}; a row is identified by {', '.join(map(_name, spec.source.key))}"),
        "Computes": (
            f"{spec.task} with {_name(spec.model.name)} at revision {_name(spec.model.revision)}, from {_name(spec.model.uri)}"
        ),
        "Writes": (
            f"{_name(spec.destination.column)} into {_name(spec.destination.table)}, "
            f"partitioned by {_name(spec.destination.partition_column)}; the whole partition is replaced"
        ),
        "When": _when(spec),
        "Text over the model's length": "is truncated" if spec.request.truncates else "becomes a dead letter",
        "Dead letters tolerated": f"{spec.dead_letters.tolerate}; with more, nothing is published",
        "Deadline": spec.deadline,
        "Workers": f"{workers}, profile {_name(spec.compute.profile)}" + (f", queue {_name(spec.queue)}" if spec.queue else ""),
        "Owner": spec.owner,
        "File": fingerprint.words(_name(file.name), spec),
    }
    table = "\n".join(f"| {name} | {fact} |" for name, fact in facts.items())
    return f"""\
{spec.description or f"Predictions of {spec.model.name}."}

| | |
|---|---|
{table}

**Source**

```sql
{spec.source.query.strip()}
```

**What the model sees of a row**

{_request(spec)}

{_others(spec)}

Published rows are not computed again, even if their source has changed. *fresh* computes them in a new run, which then
replaces the old one. A {"period" if spec.every else "day"} without rows is published empty; when its
source has rows, its next run computes them. A new *tolerate*, destination or deadline applies from the next run and recomputes
nothing.
"""


def _when(spec: JobSpec) -> str:
    if spec.every and spec.source.watch:
        return f"for each period of {spec.every} in which files appeared in {_name(spec.source.watch)}, when it is over"
    if spec.every:
        return f"every {spec.every}, for the period that has just ended"
    return f"{_name(spec.schedule)} (UTC), for the day before" if spec.schedule else "only on request"


def _period(spec: JobSpec) -> str:
    """What the query's parameters are."""
    if spec.every:
        return f"the start and end of the period as {_name('@partition')} and {_name('@partition_end')}"
    return f"the partition's date as {_name('@partition')}"


def _others(spec: JobSpec) -> str:
    """How to compute other partitions."""
    if spec.every and spec.source.watch:
        # Airflow makes no backfills of a DAG that is scheduled on an asset.
        command = f"""airflow dags trigger {spec.job} --conf '{{"partition": "2026-11-19T07:00"}}'"""
        return f"**Another period**: Click Trigger, and enter its start as the *partition*.\n\n```sh\n{command}\n```"
    backfill = f"airflow backfill create --dag-id {spec.job} \\\n    --from-date 2026-11-17 --to-date 2026-11-19"
    if spec.every:
        how = "**Another period**: Click Trigger, and enter its start as the *partition*. **All periods of some days**:"
        return f"{how}\n\n```sh\n{backfill}T23:59:59Z\n```"
    how = "**Another day**: Click Trigger, and choose the *partition*. **Several days**, here the 17th, 18th and 19th:"
    return f"{how}\n\n```sh\n{backfill}\n```"


def _request(spec: JobSpec) -> str:
    """The templates of the request, each under the name of its field, then the columns that go to the model unchanged."""
    fields = {name: getattr(spec.request, name) for name in (*spec.request.TEMPLATES, *spec.request.COLUMNS)}
    templates = {name: fields[name] for name in spec.request.TEMPLATES if fields[name] is not None}
    shown = [
        (f"{_name(name)}:\n\n" if len(templates) > 1 else "") + f"```jinja\n{source.strip()}\n```"
        for name, source in templates.items()
    ]
    shown += [f"The column {_name(fields[name])} ({_name(name)})" for name in spec.request.COLUMNS if fields[name] is not None]
    return "\n\n".join(shown)


def _name(text: str) -> str:
    """Bold. Airflow draws inline code as boxes that cover parts of the line above, and a bar would end the table's cell."""
    return f"**{MARKUP.sub(BACKSLASH, text)}**"
