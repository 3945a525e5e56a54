"""A deterministic simulator of whole runs: the real ledger and driver under seeded schedules of faults.

virtual.py    an event loop in virtual time, and processes that can be frozen and killed in it
storage.py    object storage, and the clients that suffer what networks do
engines.py    the engines;  rows.py: what is wrong with which row, and the answer that each must get
scenario.py   draws one seed's schedule;  world.py runs it;  check.py holds it to the invariants
streams.py    a stream instead of a run: the real subscriber;  stream_parts.py: its Pub/Sub and its database
mutants.py    the protocol with one mistake in it, and the seed that catches it

What runs is nightshift's own `Ledger`, `Worker` and all that these are made of; what stands in is time, chance, the store below
`store.Objects`, the engine below `health.EngineLike`, the rows and, in 19 of 20 seeds, the codec.

Not simulated: the process around the worker (signals, start-up), HTTP, real Parquet input, objects that rows name (images),
clocks that run at different speeds, and a store that breaks its own promises.
"""

from __future__ import annotations

import tests.conftest  # noqa: F401  Airflow, whose task `publish` is run, reads its environment when it is imported.
