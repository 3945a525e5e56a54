"""Rows of a job tried before its night: `nightshift preview` and `nightshift tune` (docs/use/before-the-night.md).

Nothing is opened or published. The rows are sent by the driver's own request loop, to an engine that is given by its URL, or to
a JobSet like a night's, with one worker, whose driver is `nightshift.trial.keeper`: it answers who asks in the bucket, on a
cluster as on the local runtime, and nobody needs a way to its network.

- world: what is needed of a deployment. rows: which rows are tried.
- compute: rows to answers, with the extra `driver`. keeper: the process beside an engine. engine_jobset: the other side, which
  starts an engine, asks and waits, by the objects of engine_folder. outcomes: what came of the rows.
- preview/: a job's answers, beside those of another. tune/: its engine with other settings.
"""
