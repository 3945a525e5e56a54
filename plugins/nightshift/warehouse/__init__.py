"""BigQuery: the query's rows to Cloud Storage, and the run's predictions back, atomically. No Airflow here.

`Warehouse` is all that operators need; `nightshift.warehouse.extract.build_plan` is the one part that reads object storage.
"""

from nightshift.warehouse.client import Warehouse
from nightshift.warehouse.errors import WarehouseError, WarehouseUnavailable
from nightshift.warehouse.jobs import JobState

__all__ = ["JobState", "Warehouse", "WarehouseError", "WarehouseUnavailable"]
