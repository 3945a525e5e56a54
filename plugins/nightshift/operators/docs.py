"""A DAG's page in words, made from its job file."""

from __future__ import annotations

from nightshift.spec import JobSpec


def dag_docs(spec: JobSpec) -> str:
    """Markdown for ``doc_md``: what the job reads, computes and writes, and how to run it for other days."""
    workers = spec.compute.workers if spec.compute.workers is not None else "as many as the deadline demands"
    facts = {
        "Reads": f"the query below, with the partition's date as `@partition`; a row is known by {_code(*spec.source.key)}",
        "Computes": f"{spec.task} with **{spec.model.name}** at revision `{spec.model.revision}` (`{spec.model.uri}`)",
        "Writes": (
            f"`{spec.destination.column}` into `{spec.destination.table}`, "
            f"partitioned by `{spec.destination.partition_column}`; a partition is replaced as a whole"
        ),
        "When": f"`{spec.schedule}` (UTC), for the day before" if spec.schedule else "only when asked",
        "Text over the model's length": {"truncate": "is cut", "dead_letter": "becomes a dead letter"}[spec.request.overlong],
        "Dead letters tolerated": f"{spec.dead_letters.tolerate}; with more, nothing is published",
        "Deadline": spec.deadline,
        "Workers": f"{workers}, profile `{spec.compute.profile}`" + (f", queue `{spec.queue}`" if spec.queue else ""),
        "Owner": spec.owner,
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

```jinja
{spec.request.input.strip()}
```

**Another day**: Trigger, and choose the *partition*. **Several days**:
`airflow backfill create --dag-id {spec.job} --from-date 2026-11-17 --to-date 2026-11-19` runs the 17th, 18th and 19th.
A day that is published is not computed again, also when its source has changed since: *fresh* computes it again, beside
what is there, and then replaces it. A day without rows is published without rows; once its source has some, the next run
of that day computes them. A new *tolerate*, destination or deadline counts from the next run on and computes nothing again.
"""


def _code(*names: str) -> str:
    return ", ".join(f"`{name}`" for name in names)
