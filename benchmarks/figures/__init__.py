"""What batching costs and brings, measured on a real vLLM, for docs/develop/benchmarks.md.

``make figures`` makes that part of the page and its plots again.

`measure` writes batching.json, which is the only source: `page` and `draw` make everything else from it.
"""
