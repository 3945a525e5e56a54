"""`nightshift batcher`: merges the requests of callers that wait, and gives each its own answer (docs/batcher.md).

- server: the program; its socket, signals and drain. app: what happens to a request. admission: who is turned away.
- routes: which requests can be merged. endpoint: what that needs of a kind of request; openai and kserve: the kinds. headers:
  which headers have to agree. usage: tokens of a merged request.
- dispatch: who waits, and when a bundle goes. upstream: what a reply means for each caller. bisection: finds the request that
  is refused.
- passing: everything else, as it is. metrics: what is counted.
"""
