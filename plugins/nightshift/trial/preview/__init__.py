"""Some rows of a job tried before its night, by `nightshift preview` and its DAG (docs/use/before-the-night.md).

Nothing is opened or published. The rows are sent by the driver's own request loop, to an engine that is given by its URL, or
to a *warm* one: a JobSet like a night's, with one worker, whose driver is `nightshift.trial.preview.keeper`. It answers whoever
asks in the bucket and ends after a while without questions, on a cluster as on the local runtime; nobody needs a way to its
network.

- session: a preview from its question to its result. rows: some of the query's, kept for the next preview. names: where
  objects are.
- outcome: what came of the rows. compute: rows to answers, with the extra `driver`. keeper: the process beside a warm engine.
- warm: the other side: starts the engine, asks, waits.
- results: what is left in the bucket, for the page. text: for a terminal.
"""
