"""The client beside the engine: input rows -> requests -> engine -> committed chunks. Knows nothing of Airflow.

- process: the program in the pod, configured by its environment; `python -m nightshift.driver` starts it. program: what
  such programs have in common.
- loop: the worker, which opens chunks, commits and drains. pump: the request loop, which keeps the engine busy. drain: what a
  signal does, and how the 15 s are spent. life: how long it works.
- feeder: opens the next chunk. ranges: chooses it. reader: reads its rows.
- scheduler: which rows to send next and what a result means, without I/O. sender: sends one request until it has an
  outcome. window: how many at once.
- engine: one HTTP request, its reply sorted into a few results. http: the client below it. health: whether the engine can be
  used. fetch: the objects that rows name. patience: how a worker waits and tries again.
- commits: chunks into the ledger, beside the work. codec: a chunk to bytes and back.
- stats: what a worker counts of itself. metrics: the same, for Prometheus; marks: in the run's folder, for costs and records.
"""
