"""What runs look like from the bucket alone, for commands and for the pages in Airflow. Nothing here writes or asks a worker.

Which runs there are: `runs` lists and finds them, `summary` says of one how it is and whether it needs attention.

One run: `overview` is its first screen, made of `survey` (reads each chunk's footer once and adds them up, with `chunk_footer`,
`rate` and `report`; `text` is the form for terminals) and `workers` (heartbeats). `progress` is one LIST.

Its rows: `dead_letters`, `samples`, `explanation` (one row for an auditor) and `distributions`, through `folder`, `prompts` and
`source_rows`. What they hand out is bounded (`shown`).
"""
