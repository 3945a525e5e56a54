"""nightshift's pages in Airflow's API server: HTML that the server renders, and htmx, which swaps parts of it.

`app` puts it together, `rights` and `tokens` guard every route, `bucket` opens what the pages read, `dag_runs` knows Airflow's
DAG runs. `runs`, `job`, `run`, `actions` and `files` have the routes. What a run is comes from `nightshift.status` alone.
"""
