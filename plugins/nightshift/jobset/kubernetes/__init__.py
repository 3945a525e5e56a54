"""JobSets on a Kubernetes cluster: requests to its API (`api`, `aio`), and following one to its end (`follow`).

Every request has a time limit, so that a connection that only looks alive cannot hang a worker or a trigger, and every
failure is one of four: the object does not exist (JobSetNotFound), its name is taken or it has changed (JobSetExists), the
API refused (RequestRefused), or the API could not be reached (RuntimeUnavailable), which leaves the JobSet's state unknown.
"""
