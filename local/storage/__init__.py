"""A Cloud Storage emulator: one process that speaks the JSON and the XML API over one folder.

    .envs/emulators/bin/python -m local.storage --host 127.0.0.1 --port 9023 --data-dir DIR

Ready when ``GET /_health`` answers 200. Stops with exit code 0 on SIGTERM. No bucket name starts with an underscore, so
the health address hides no bucket.

How it keeps its promises: every object body is a file that is never changed once it is complete; what objects there are
is one SQLite table; everything that reads or changes that table runs on the one thread of the event loop. A write first
completes its body file and then, in one transaction, checks its preconditions and makes the row point at the new file.
So a precondition and its write are atomic, and a reader sees all of the old object or all of the new one.

Fault model
-----------
Survived, and tested: ``kill -9`` at any moment. A request that was answered is kept, one that was not is either there in
full or not there; open resumable and multipart uploads go on where they were. Clients that vanish in the middle of a body.
Any number of racing writers. A second process on the same folder (refused).

Not survived: losing power or the kernel. Nothing is flushed to the disk by ``fsync``; a killed process does not lose what
the kernel holds, a machine does. Full disks and damaged files are not repaired. No fault is injected: this server is
never slow, never answers 429 or 503 by itself, and never loses a reply. Tests that need that put it in front.

Faithful to Cloud Storage: generation and metageneration preconditions on every verb, reads included; consistency of
reads and lists after writes; status codes and reasons; CRC32C and MD5, checked when the client states them; generations
that grow; order, paging and prefixes of lists; decompressive transcoding; resumable sessions, with the final answer
repeated to a client that asks again.

Missing: identity (any credential and any signature is accepted, and a signed URL never expires), IAM and ACLs, object
versions (a bucket holds live objects only) and soft delete, lifecycle and retention (kept as settings, never carried
out), holds, encryption keys, notifications, folders and hierarchical namespaces, the gRPC API, partial responses
(``fields`` is accepted and everything is sent), and rate limits. Copies, rewrites, moves, compositions and batches are
missing because nothing in nightshift sends them; they are refused with 400 ``notImplemented``. A multipart upload of the
JSON API (metadata and body in one request) is held in memory; all other bodies are streamed.
"""
