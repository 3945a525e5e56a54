"""What a run looks like from its ledger alone: `nightshift status`.

`chunk_footer` reads what one chunk says about itself, `survey` reads each once and adds them up, `rate` computes the speed,
`report` holds the sums and their JSON form, and `text` the form for people. Nothing here writes or asks a worker.
"""
