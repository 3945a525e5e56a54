"""`nightshift tune`: how an engine is started so that a job's rows go through it fastest.

- points: what may be chosen, and what a failure rules out. surrogate, search: which trial comes next, and what the trials so
  far have shown. Pure: no I/O, no clock. space: the points of a job.
- tuner: a tune from its question to its result. trials: kept in the bucket. tune_text, patch: what the command prints.
"""
