"""The one task of the DAG nightshift_preview."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.engine_work import TrialOperator

if TYPE_CHECKING:
    from airflow.sdk import Context


class PreviewOperator(TrialOperator):
    """
    Tries a job on some rows, as ``nightshift preview`` does, and keeps the result in the bucket, where
    the page reads it. Returns ``{job, id}``. Nothing is opened or published.

    :param against: the name of another job of the folder, to compare with; empty for none (templated).

    The other parameters are those of `nightshift.operators.engine_work.TrialOperator`.
    """

    template_fields: Sequence[str] = (*TrialOperator.template_fields, "against")
    rows_most = 200  # Its result is shown on a page.

    def __init__(self, *, rows: int | str = 20, against: str = "", **kwargs: Any) -> None:
        super().__init__(rows=rows, **kwargs)
        self.against = against

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.trial.preview.preview_text import lines
        from nightshift.trial.preview.previews import Question, preview

        with self.permanent():
            found = [self.job_file(name) for name in (self.job, self.against) if name]
            files = tuple((path.name, spec) for path, spec in found)
            first = files[0][1]
            if any(spec.every != first.every for _, spec in files):
                raise AirflowFailException(
                    f"The periods of {self.against} are not those of {self.job} (every). Compare jobs that share them."
                )
            by = str(context["dag_run"].run_id)
            made = preview(Question(files, self.partition_of(first), self.row_count, by), self.world())
        for line in lines(made, width=120):
            self.show(line)
        return {"job": made.job, "id": made.id}
