"""What runs look like from the bucket alone, for commands and for the pages in Airflow. Nothing here writes or asks a worker.

How a run is: `nightshift.run.observed.progress` measures counts, rate and time left. `summary` adds its state and whether it
needs attention; `runs` lists and finds runs. `overview` is the first screen of one, with `workers` (heartbeats) and `fleets`
(pods); `text` is its form for terminals. `chunk_footer` adds up what is committed, for the record of a night that has failed.

Its rows: `dead_letters`, `samples`, `explanation` (one row for an auditor) and `distributions`, through `folder`, `prompts` and
`source_rows`. What they hand out is bounded (`shown`).
"""
