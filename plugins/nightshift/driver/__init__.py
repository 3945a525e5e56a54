"""The client beside the engine: input rows -> requests -> engine -> committed chunks. Knows nothing of Airflow.

reader: one chunk of input rows at a time. scheduler: which rows to send next and what an outcome means, synchronous and
without I/O. engine: one HTTP request, its reply sorted into a few outcomes. loop: the asynchronous shell around the three,
and the drain.
"""
