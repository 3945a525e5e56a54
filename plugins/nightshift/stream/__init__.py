"""Near-real-time work on the driver's parts.

- bundling: what waits, collected into bundles.
- batcher: `nightshift batcher`, for callers that wait for their answer.
"""
