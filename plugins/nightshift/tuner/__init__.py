"""How an engine is started so that a job's rows go through it fastest: a tune (docs/adr/0030-tune.md).

- points: what may be chosen, and what a failure rules out. surrogate, search: which trial comes next, and what the trials so
  far have shown. Pure: no I/O, no clock.
"""
