"""What the sections of a job file are made of: a base class, types of single values, and what is said about a wrong one.

The job (`nightshift.spec`) and the ``request:`` of each task kind (`nightshift.tasks`) are both made from these, so
nothing here knows either.
"""
