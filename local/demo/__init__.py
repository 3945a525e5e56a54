"""The demo: a real night on this machine, and a search over what it published.

catalog: the table that the night reads. night: the DAG run, from trigger to end, with its progress. summary: its result.
search: searches the published vectors. airflow_api: Airflow's REST API, as far as the demo needs it.
"""
