"""What a run looks like from its ledger alone: `nightshift status`.

`footer` reads what one chunk says of itself, `survey` adds the chunks up, each read once, `rate` says how fast it goes,
`report` holds the sums and their JSON form, `text` the one for people, and `command` is the command. Nothing here writes,
and no worker is asked.
"""
