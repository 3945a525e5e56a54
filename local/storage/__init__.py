"""A Cloud Storage emulator: one process that speaks the JSON and the XML API over one folder.

    .envs/emulators/bin/python -m local.storage --host 127.0.0.1 --port 9023 --data-dir DIR

Ready when ``GET /_health`` answers 200. Stops with exit code 0 on SIGTERM. No bucket name starts with an underscore, so
the health address hides no bucket.

How it works: every object body is a file that never changes once it is complete; one SQLite table lists the objects;
everything that reads or changes that table runs on the event loop's single thread. A write first completes its body file
and then, in one transaction, checks its preconditions and makes the row point to the new file. So a precondition and its
write are atomic, and a reader sees all of the old object or all of the new one.

Fault model
-----------
Survived, and tested: ``kill -9`` at any moment. An answered write is kept, an unanswered one happened in full or not at
all; open resumable and multipart uploads continue where they were. Clients that vanish in the middle of a body. Any
number of racing writers. A second process on the same folder (refused).

Not survived: loss of power or a kernel crash. Nothing is flushed to disk with ``fsync``: what the kernel holds survives a
killed process, but not the machine. Full disks and damaged files are not repaired. No faults are injected: this server is
never slow on purpose, never answers 429 or 503 by itself, and never loses a reply. Tests that need that put a proxy in front.

Faithful to Cloud Storage: generation and metageneration preconditions on every verb, reads included; consistency of
reads and lists after writes; status codes and reasons; CRC32C and MD5, checked if the client states them; growing
generations; order, paging and prefixes of lists; decompressive transcoding; resumable sessions, whose final answer
is repeated to a client that asks again.

Identities and IAM are off unless the server gets a file of them (``--identities``; `local.storage.identities`): then a bearer
token has the roles that the file and the buckets' policies give it, and a question about permissions is answered truly.

Missing: ACLs, managed folders, deny policies, the minutes that a new policy takes to hold, checks of signatures (any is
accepted, and a signed URL never expires), object versions (a bucket holds live objects only) and soft delete, lifecycle and
retention (stored as settings, never carried out), holds, encryption keys, notifications, folders and hierarchical
namespaces, the gRPC API, partial responses (``fields`` is accepted, but everything is sent), and rate limits. Copies,
rewrites, moves, compositions and batches are missing because nothing in nightshift sends them; they are refused with 400
``notImplemented``. A multipart upload of the JSON API (metadata and body in one request) is held in memory; all other bodies
are streamed.
"""
