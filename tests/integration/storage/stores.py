"""obstore's client for a bucket in the emulator."""

from __future__ import annotations

import json

from obstore.store import GCSStore


def open_bucket(emulator_url: str, bucket: str) -> GCSStore:
    # Its skip_signature setting would still look for a metadata server; a key without OAuth does not.
    key = {"gcs_base_url": emulator_url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    return GCSStore(bucket, service_account_key=json.dumps(key), client_options={"allow_http": True})
