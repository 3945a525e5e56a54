"""obstore's client for a bucket in the emulator."""

from __future__ import annotations

import json

from obstore.store import GCSStore


def open_bucket(emulator_url: str, bucket: str, token: str | None = None) -> GCSStore:
    """token: of an identity; None: the client sends none."""
    # Its skip_signature setting would still look for a metadata server; a key without OAuth does not.
    key = {"gcs_base_url": emulator_url, "disable_oauth": True, "client_email": "", "private_key": "", "private_key_id": ""}
    provider = None if token is None else lambda: {"token": token, "expires_at": None}
    return GCSStore(
        bucket,
        service_account_key=json.dumps(key),
        credential_provider=provider,  # type: ignore[arg-type]
        client_options={"allow_http": True},
    )
