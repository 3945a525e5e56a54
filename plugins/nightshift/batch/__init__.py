"""OpenAI batch files through the driver's engine and ledger: `nightshift batch` (docs/batch.md).

A line of the file is a row of a run, its number the ordinal; the ledger lies in a folder beside the output. What is here reads
the file, names the run and writes the output; sending, retrying, committing and resuming are the driver's own.
"""
