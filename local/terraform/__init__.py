"""Runs `infra/` without Google Cloud: OpenTofu, and a provider that serves the Google provider's schema and calls nothing.

    python3 -m local.terraform build       # OpenTofu, the provider and its schema, once per machine: 5 minutes on two cores
    python3 -m local.terraform validate    # infra/ against the schema
    python3 -m local.terraform test        # that, and the assertions of infra/tests/
    python3 -m local.terraform schema      # writes `used.json`, the part of the schema that infra/ uses, for the gate

`build` makes the tools, `schema` reads the schema from its npm package, `check` is the gate's part, `tofu` runs commands on a
copy of `infra/`, `state` turns OpenTofu's state into that of the stand-ins (`local.google_cloud.state`), and `mutants` breaks
`infra/` to see who notices.
"""
