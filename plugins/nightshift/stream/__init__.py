"""Near-real-time work on the driver's parts.

- command: `nightshift stream`. subscriber: one life of a process; settle: what happens to a message once its outcome is known.
- hold: the messages that are held; leases: when each must be extended; lanes: the order of those with an ordering key.
- messages: what travels; decoding: data to rows. parts: what the subscriber needs of Pub/Sub and of the database.
- pubsub: the real source, and the topic of dead letters (announcement: what is published there). postgres: the real sink;
  schema: its tables. stats: what a subscriber counts; metrics: the same, for Prometheus.
- bundling: what waits, collected into bundles. Subscriber and batcher share it.
- batcher: `nightshift batcher`, for callers that wait for their answer.
"""
