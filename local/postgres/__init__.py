"""PostgreSQL 16 with pgvector 0.6 in AlloyDB's place: the programs that the package ``pgserver`` bundles, over one folder.

    .envs/emulators/bin/python -m local.postgres --port 5433 --data-dir DIR

Runs in the foreground and listens at 127.0.0.1 only. SIGTERM and SIGINT stop it in order, without waiting for clients, with
exit code 0. Exits with 1 if it cannot start: another one has the folder, the port is taken, the package is missing (it has no
wheel for Python 3.13 and later).

The database is ``nightshift``, owned by the user ``nightshift``, and has the extension ``vector``; so has each new database.
`local.postgres.access.url` gives the address with its password.

**Who may connect.** A password, made at random once for each folder and readable by its owner alone. ``trust`` would let every
user of the machine in, since any user reaches a port of 127.0.0.1. The superuser cannot connect at all: there is no Unix
socket, and the one line of ``pg_hba.conf`` names ``nightshift``.

**Who it runs as.** PostgreSQL refuses to run as root. Started by another user it runs as that user. Started by root it runs as
``nobody``, who owns the database files and keeps one capability, CAP_DAC_OVERRIDE: the programs and the folder may lie below
``/root``, which no other user may enter. Clients cannot use it, as only a superuser of the database can open files. This needs
the program ``setpriv`` (util-linux).

**Fault model.** ``fsync`` is on, as PostgreSQL has it by default, so an answered commit survives ``kill -9`` of any of its
processes, of all of them, and a crash of the machine as far as its disk keeps what it has promised. With this process dies the
server: the kernel sends it SIGKILL, and its own processes notice. The next start ends what is left of an earlier run (found by
its working folder), removes its ``postmaster.pid``, and PostgreSQL recovers from its log and takes over its shared memory. A
first start that was cut off is made again from nothing.

**Not AlloyDB**: its columnar engine, its embedding functions, its ScaNN index, its adaptive vacuum, replicas and IAM logins.
No contrib modules: of extensions there are ``plpgsql`` and ``vector``. A folder that is deleted after ``kill -9`` leaves 56
bytes of System V shared memory until the machine restarts.
"""
