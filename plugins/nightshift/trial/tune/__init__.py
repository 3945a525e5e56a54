"""How an engine is started so that a job's rows go through it fastest: `nightshift tune` (docs/use/before-the-night.md).

- points: what may be chosen, and what a failure rules out. surrogate, search: which trial comes next, and what the trials so
  far have shown. Pure: no I/O, no clock.
- space: the points of a job. sample: the rows of its trials. engines: a trial on a real engine. trials: kept in the bucket.
- session: a tune from its question to its result. text, patch: what the command prints.
"""
