"""The one task of the DAG nightshift_tune."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException

from nightshift.operators.engine_work import TrialOperator
from nightshift.trial.tune.budget import DEFAULT, ROWS, ROWS_MOST, Budget

if TYPE_CHECKING:
    from airflow.sdk import Context


class TuneOperator(TrialOperator):
    """
    Finds the settings under which a job's engine is fastest, as ``nightshift tune`` does. Returns what
    ``--json`` prints, without the trials, which are kept in the bucket: a retry goes on with the next one.

    :param budget: how long all trials may take, or what they may cost: ``1h``, ``4.50`` (templated).
    :param rows: of a trial (templated).

    The other parameters are those of `nightshift.operators.engine_work.TrialOperator`.
    """

    template_fields: Sequence[str] = (*TrialOperator.template_fields, "budget")
    rows_most = ROWS_MOST

    def __init__(self, *, rows: int | str = ROWS, budget: str = DEFAULT, **kwargs: Any) -> None:
        super().__init__(rows=rows, **kwargs)
        self.budget = budget

    def execute(self, context: Context) -> dict[str, Any]:
        from nightshift.trial.tune import tune_text, tuner

        with self.permanent():
            file, spec = self.job_file(self.job)
            partition, rows, world = self.partition_of(spec), self.row_count, self.world()
            try:
                seconds = Budget.read(self.budget).seconds_for(spec, world.prices)
            except ValueError as error:
                raise AirflowFailException(f"The param budget is {self.budget!r}. It has to be another: {error}") from None
            found = tuner.tune(
                tuner.Task(spec, partition, rows, seconds), world, lambda *trial: self.show(tune_text.trial_line(*trial))
            )
        shown = [*tune_text.plot(found.space, found.trials, found.choice), tune_text.too_short(found.trials), found.sentence]
        for line in (*shown, *found.patch(file).splitlines()):
            self.show(line)
        if found.choice.point is None:
            raise AirflowFailException(found.sentence)
        return {name: value for name, value in found.to_json(file).items() if name != "trials"}
