"""The life cycle of one run's JobSets: created or adopted, watched, added, replaced, ended. No Airflow here."""
