"""JobSets on a Kubernetes cluster: what is asked of its API (`api`, `aio`), and following one to its end (`follow`).

Every request has a time limit, so that a connection that only looks alive cannot hang a worker or a trigger, and every
failure is one of four: what is asked for is not there (JobSetNotFound), its name is taken or it has changed (JobSetExists),
the API has said no (RequestRefused), or it could not be asked (RuntimeUnavailable), which says nothing about the JobSet.
"""
