"""Near-real-time work on the driver's parts: a subscriber of messages, and a batcher for callers that wait.

- bundling: what waits, collected into bundles. Both share it.
"""
