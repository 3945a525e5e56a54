"""One authority for a cluster's certificates: servers, clients and webhooks."""

from __future__ import annotations

import base64
import datetime
import ipaddress
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

VALID: Final = datetime.timedelta(days=365)


class Authority:
    """Signs with a key that it makes; everything lies in `folder` as NAME.crt and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = _name("nightshift-test-ca")
        constraints = x509.BasicConstraints(ca=True, path_length=None)
        certificate = self._certificate(self._subject, self._key.public_key()).add_extension(constraints, critical=True)
        self._write("ca", self._key, certificate.sign(self._key, hashes.SHA256()))

    def issue(self, name: str, common_name: str, organization: str | None = None, hosts: tuple[str, ...] = ()) -> None:
        """A certificate for a server (hosts: its names and addresses) or a client (organization: its group)."""
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._certificate(_name(common_name, organization), key.public_key())
        certificate = certificate.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        if hosts:
            certificate = certificate.add_extension(
                x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
            )
        self._write(name, key, certificate.sign(self._key, hashes.SHA256()))

    def key(self, name: str) -> Path:
        """A bare key pair, for example for service account tokens."""
        key = ec.generate_private_key(ec.SECP256R1())
        return self._write_key(name, key)

    def kubeconfig(self, name: str, server: str) -> dict[str, Any]:
        """For the client whose certificate is `name`."""
        cluster = {"server": server, "certificate-authority-data": self.data("ca.crt")}
        user = {"client-certificate-data": self.data(f"{name}.crt"), "client-key-data": self.data(f"{name}.key")}
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "cluster",
            "clusters": [{"name": "cluster", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "cluster", "context": {"cluster": "cluster", "user": name}}],
        }

    def data(self, file: str) -> str:
        """A file in base64, as Kubernetes' documents hold it."""
        return base64.b64encode((self._folder / file).read_bytes()).decode()

    def _certificate(self, subject: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._subject).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        return builder.not_valid_before(now - datetime.timedelta(hours=1)).not_valid_after(now + VALID)

    def _write(self, name: str, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._write_key(name, key)
        (self._folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def _write_key(self, name: str, key: ec.EllipticCurvePrivateKey) -> Path:
        file = self._folder / f"{name}.key"
        file.touch(mode=0o600)
        pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        file.write_bytes(key.private_bytes(*pem))
        return file


def _name(common_name: str, organization: str | None = None) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
