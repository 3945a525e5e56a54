"""Names of BigQuery tables: whether two of them may be one table. Pure.

A job file is read where the deployment's project is unknown (on a laptop, in CI), and Airflow's verdict must be the same.
So a name without a project may be a table of any project, and a user who knows better writes the project.
"""

from __future__ import annotations

Parts = tuple[str | None, str, str]
"""Project (None if it is not written), dataset, table."""


def parts(name: str) -> Parts:
    """Of ``dataset.table`` or ``project.dataset.table``, without a partition's decorator (``$20261120``) and in lower case.

    BigQuery's projects have no upper case, and a dataset may be made to ignore case (``is_case_insensitive``).
    """
    head, _, table = name.partition("$")[0].lower().rpartition(".")
    project, _, dataset = head.rpartition(".")
    return project or None, dataset, table


def may_be(name: str, table: str) -> bool:
    """Whether a name in a query, perhaps a wildcard (``dataset.events_*``), may stand for `table`."""
    (project, dataset, short), (owner, home, own) = parts(name), parts(table)
    if dataset != home or (project is not None and owner is not None and project != owner):
        return False
    return own.startswith(short[:-1]) if short.endswith("*") else short == own


def projects_unknown(one: str, other: str) -> bool:
    """Whether only one of two names says its project, so that they may still be two tables."""
    return (parts(one)[0] is None) != (parts(other)[0] is None)
