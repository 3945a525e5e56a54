"""Stand-ins for ``gcloud``, ``bq``, ``kubectl``, ``docker`` and what they talk to, for pages that somebody types.

They keep what was made in one JSON file (`state.py`), and refuse what Google would refuse: names that exist, parents and
accounts that do not, APIs that are not enabled, what a flag switched off, flags that a command does not have. That Google Cloud
does the same is not shown here; each rule says where it was read.
"""
