"""The life of the JobSets that work on one run: created or adopted, watched, added to, replaced, ended. No Airflow here."""
