"""Near-real-time work on the driver's parts.

- command: `nightshift stream`. subscriber: one life of a process; settle: what happens to a message once its outcome is known.
- in_flight: the messages that are held, and their order; leases: when each must be extended; remembered_ids: which were met.
- messages: what travels; decoding: data to rows. ports: what the subscriber needs of a source, a sink and a topic.
- pubsub, with pubsub_client: Pub/Sub as a source, and the topic of dead letters (dead_letter_message: what is published there).
  folder_source, with folder_objects: a watched folder as a source.
- postgres, files: the sinks, a module each (`nightshift.spec.sinks` names them); schema, table_checks: tables of the first;
  parquet: of the second. sink_writes: what a sink does with a batch that is refused.
- redrive, with dead_letters and redriven_ids: dead letters published again.
- stats: what a subscriber counts; metrics: the same, for Prometheus. bundling: what waits, collected into bundles.
- manifests: what runs a stream in a cluster. bigquery: its files into BigQuery. status: what Prometheus says of it.
"""
