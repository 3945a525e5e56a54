"""What runs with the packages of Cloud Composer's image, too."""

from __future__ import annotations

from importlib.util import find_spec

# The image has no psycopg.
collect_ignore = [] if find_spec("psycopg") else ["test_redrive_dag.py"]
