"""What a run looks like from its ledger alone: `nightshift status`.

`footer` reads what one chunk says about itself, `survey` reads each once and adds them up, `rate` computes the speed,
`report` holds the sums and their JSON form, `text` the form for people, and `command` is the command. Nothing here writes or
asks a worker.
"""
