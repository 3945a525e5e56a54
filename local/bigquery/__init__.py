"""A BigQuery emulator: `local-bigquery` 0.3.2 over DuckDB 1.5.5, made to run offline on Python 3.11, and corrected.

Start it from the repository root::

    STORAGE_EMULATOR_HOST=http://127.0.0.1:9023 \\
    .envs/emulators/bin/python -m local.bigquery --host 127.0.0.1 --port 9050 --grpc-port 9060 --data-dir DIR

REST is at ``--port`` (clients: ``BIGQUERY_EMULATOR_HOST``), the BigQuery Storage API at ``--grpc-port``. Ready when
``GET /healthz`` answers 200: both ports listen and the database answers. SIGTERM and SIGINT end it at once with exit code 0.
It exits with another code if it cannot open the data folder (another emulator has it) or if a port is taken.

**Faithful about**, with tests in local/bigquery/tests:

- jobs: a job id exists once, even when submits race; jobs, their labels and errors outlive a restart;
- loads from and exports to gs:// (Parquet, JSON lines), wildcards, write dispositions, ``table$partition`` destinations;
- the documented rules of types, exports, loads, transactions and limits: local/rules.txt lists them;
- scripts, multi-statement transactions with rollback, MERGE, DML counts, query parameters;
- dry runs, which return the schema and read no rows;
- the Storage Read API (Arrow, Avro, filters, offsets) and Write API (pending, committed, default streams, offsets).

**Fault model.** The process may be killed at any instruction and started again on the same folder; the machine and its disk do
not fail. What is then true:

- a job that was reported DONE is still DONE, with its effects, result rows and labels;
- a statement, load or transaction happened wholly or not at all;
- a job that was PENDING or RUNNING is DONE with the error ``jobBackendError`` (`interrupted`). Its work may have
  been committed just before the kill: repeat it under a new job id, in a form that is safe to repeat;
- a table whose creation was cut off may exist without its partitioning, labels and description.

**Not there**, each with a test that states what happens instead: ``_PARTITIONTIME`` of tables made through the API,
``maximum_bytes_billed`` (ignored; all byte counts are 0), the byte counts of INFORMATION_SCHEMA.JOBS, external tables,
grammar that sqlglot does not know, VECTOR_SEARCH, ML.DISTANCE, GEOGRAPHY functions, exports of several files in other formats
than Parquet, the types of a function's arguments and of what `kinds` does not know, a name of two columns of a subquery.

Not there, untested: most quotas, permissions, slots, costs, regions (everything is in US), the query cache, expiry of result
tables, BIGNUMERIC beyond 38 digits, the tables behind a view in ``referencedTables`` (the view is named), loads from gs:// that
are partitioned as in Hive, table$partition for reading or deleting through the REST API. Names are checked less strictly than
by BigQuery. FARM_FINGERPRINT is right but slow, since it is Python.

Each of the other modules here is one correction; `server` puts them in place. A correction replaces functions of
local-bigquery by name, so its version and DuckDB's are pinned.
"""
