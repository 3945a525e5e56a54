"""docs/develop/batching.md: what batching costs and brings, measured on a real vLLM. ``make figures`` makes page and plots
again.

`measure` writes batching.json, which is the only source: `page` and `draw` make everything else from it.
"""
