"""OpenAI batch files through the driver's engine and ledger: `nightshift batch` (docs/parts/batch.md).

A line of the file is a row of a run, and its number is the ordinal. The ledger is in a folder next to the output. This package
reads the file, names the run and writes the output; the driver sends, retries, commits and resumes.
"""
