"""`nightshift batcher`: merges the requests of callers that wait, and gives each its own answer (docs/parts/batcher.md).

- server: the program; its socket, signals and drain. connections: what each may take before its request is whole. app: what
  happens to a request. admission: who is turned away.
- routes: which requests can be merged. endpoint: what that needs of a kind of request; openai and kserve: the kinds. headers:
  which headers have to agree. division: which replies could not be divided, and into which parts a refused request is divided.
- dispatch: who waits, and when a bundle goes. oversized: a caller's own request that is too large for one. upstream: what a
  reply means for each caller.
- passthrough: everything else, as it is. metrics: what is counted.
"""
