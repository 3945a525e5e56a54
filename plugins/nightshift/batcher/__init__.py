"""`nightshift batcher`: merges the requests of callers that wait, and gives each its own answer (docs/parts/batcher.md).

- server: the program, its signals and drain. connections: what is held for callers, in bytes and connections. app: what
  happens to a request. rate: when who is turned away should come again.
- routes: which requests can be merged. endpoint: what that needs of a kind of request; openai and kserve: the kinds; usage:
  their tokens. headers: which headers have to agree. readiness: what is known of the server and its models.
- dispatch: who waits, and when a bundle goes. oversized: a caller's own request that is too large for one. upstream: what a
  reply means for each caller, and the parts of a refused request.
- passthrough: everything else, as it is. metrics: what is counted.
"""
