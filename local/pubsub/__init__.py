"""A Pub/Sub emulator: one process that speaks Pub/Sub's gRPC API over one folder.

    .envs/emulators/bin/python -m local.pubsub --host 127.0.0.1 --port 8085 --control-port 8086 --data-dir DIR

Google's clients find it by ``PUBSUB_EMULATOR_HOST=127.0.0.1:8085``. Ready when ``GET /_health`` at the control port answers
200. Stops with exit code 0 on SIGTERM. Exits with 1 if it cannot open the folder (another emulator has it) or a port is taken.
Faults that a test asks for, statistics for each subscription and a clock that can be moved forward are at the control port:
`local.pubsub.control` describes it.

How it works: all requests run on one event loop, and touch the state only between two awaits, so each is atomic. What an
answer promises is first committed to SQLite: a message, which subscriptions hold it, and whether it is acknowledged. Leases are
in memory. `local.pubsub.backlog` decides what is delivered, to whom and for how long; it knows neither gRPC nor the database.

Fault model
-----------
Survived, and tested: ``kill -9`` at any moment. An answered publish, ack, seek or setting is kept, an unanswered one happened
in full or not at all. Delivery attempts are kept where there is a dead-letter policy. A second process on the same folder or
port (refused).

Forgotten by a kill: outstanding leases, so their messages are delivered again at once and their ack ids are over; retry delays;
that a message was acknowledged out of order (it does not come back); the control port's faults, counts and clock.

Not survived: loss of power or a kernel crash, as nothing is flushed to disk with ``fsync``. Full disks and damaged files are
not repaired.

Faithful to Pub/Sub (local/rules.txt lists each rule with its page and its test): names, limits and status codes;
Pull; ack deadlines, nacks, ack ids of today's length; message ordering; retry and dead-letter policies; filters by the presence
of an attribute; exactly-once delivery, with the details that clients read; a subscription's retention, and seeking to a time.

Where the service may do one thing or another, the emulator does what is worse for a client: a late ack is accepted and has no
effect, a Pull gets one batch of an ordering key, and about 25 messages however many it asks for (unless a test wants full
replies), a seek ends all leases. What the service does at its own discretion, the emulator does only on request: duplicates,
acks that are forgotten, lost replies, times without service, delays.

It has what nightshift and its tests send. The rest is refused with UNIMPLEMENTED and a sentence: StreamingPull, snapshots,
lists, updates of a topic, retention of one, other filters, push, BigQuery and Cloud Storage subscriptions, schemas, ingestion,
transforms and encryption keys. Missing besides: identity and IAM (TestIamPermissions grants whatever is asked of what exists),
the REST API, quotas and throughput limits for each key, regions, expiry of unused subscriptions (stored, never carried out),
acks that fail for a while. Order and exactly-once delivery hold over all clients, as if there were one region. All messages are
held in memory as well: about 0.9 kB for one of 500 bytes.
"""
