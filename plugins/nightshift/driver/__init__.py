"""The client beside the engine: input rows -> requests -> engine -> committed chunks. Knows nothing of Airflow.

- main: the process in the pod, which `python -m nightshift.driver` starts. environment: its settings. json_log: its log.
  bootstrap: how it meets its engine; a subscriber does, too.
- worker: opens chunks, commits and drains. request_loop: keeps the engine busy. drain: what a signal does, and how the 15 s are
  spent. descriptors, budget: what it may use.
- feeder: opens the next chunk. work_stealing: chooses it.
- scheduler: which rows to send next and what a result means, without I/O. sender: sends one request until it has an outcome.
  window: how many at once. attribution: whose fault a failed request is, without I/O; fault_search: finds it out;
  known_good_rows: rows that were answered once.
  time_limit: what ends a template that computes for too long.
- engine: one HTTP request, its reply sorted into a few results. http: the client below it. health: whether the engine can be
  used. fetch: the objects that rows name. backoff: when it tries again.
- commits: chunks into the ledger, beside the work. codec: a chunk to bytes and back.
- stats: what a worker counts of itself. metrics, pages: the same, for Prometheus; heartbeats: in the run's folder, for costs.
"""
