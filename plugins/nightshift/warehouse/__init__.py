"""BigQuery: the query's rows to Cloud Storage, and the run's predictions back, atomically. No Airflow here.

Operators need only `Warehouse`; `nightshift.warehouse.extract.build_plan` is the only part that reads object storage.
"""

from nightshift.warehouse.client import Warehouse
from nightshift.warehouse.errors import WarehouseError, WarehouseUnavailable
from nightshift.warehouse.jobs import JobState

__all__ = ["JobState", "Warehouse", "WarehouseError", "WarehouseUnavailable"]
