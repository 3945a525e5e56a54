"""What the sections of a job file are made of: a base class, types of single values, and messages about wrong ones.

The job (`nightshift.spec`) and the ``request:`` of each task kind (`nightshift.tasks`) both use these, so this package
imports neither.
"""
