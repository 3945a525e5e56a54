"""OpenLineage: names of datasets and columns (`datasets`, pure), the client's objects for them (`facets`). No Airflow here."""
