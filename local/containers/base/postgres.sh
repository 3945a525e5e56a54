# What the public image's entry point does with these three variables: a cluster at the first start, then the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username "$POSTGRES_USER" --pwfile <(echo "$POSTGRES_PASSWORD") --auth scram-sha-256
    echo "host all all all scram-sha-256" >> "$PGDATA/pg_hba.conf"
    pg_ctl start --wait --options "-c listen_addresses=''"
    PGPASSWORD=$POSTGRES_PASSWORD createdb --username "$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl stop --wait
fi
exec postgres -c listen_addresses='*'
