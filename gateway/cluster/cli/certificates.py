"""A certificate authority for one cluster, and a certificate for each of its nodes."""

import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agentmem.console import Mistake
from agentmem.durable import sync, sync_directory
from agentmem.process.cluster_tls import CA, CERT, KEY

CA_KEY: Final = "ca-key.pem"
"""Nodes never need it: it stays where certificates are made."""

_CA_DAYS: Final = 3650
_SKEW: Final = timedelta(hours=1)
"""Most by which clocks of nodes lag."""


class Authority(NamedTuple):
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def authority(directory: Path) -> Authority:
    """Return the authority of a directory, made where there is none. Raises Mistake, OSError."""
    certificate_file, key_file = directory / CA, directory / CA_KEY
    if not certificate_file.exists():
        made = _new_authority()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        _write(key_file, _pem(made.key))
        _write(certificate_file, _pem(made.certificate), 0o644)
        return made
    try:
        key = serialization.load_pem_private_key(key_file.read_bytes(), None)
        certificate = x509.load_pem_x509_certificate(certificate_file.read_bytes())
    except FileNotFoundError:
        raise Mistake(f"{key_file} is not there, so {CA} cannot sign; name the directory that has both") from None
    except (ValueError, TypeError):
        pair = f"{certificate_file} and {key_file}"
        raise Mistake(f"{pair} are no certificate and its key, without a passphrase") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        raise Mistake(f"{key_file} is not the key of {certificate_file}")
    return Authority(certificate, key)


def issue(by: Authority, directory: Path, host: str, days: int) -> Path:
    """Write the --cluster-tls of the node at `host` into a directory of its name, which is returned.

    Raises Mistake where the node has a certificate, and OSError.
    """
    place = directory / host.replace(":", "_")
    if (place / KEY).exists():
        raise Mistake(f"{place} has a certificate; remove that directory for a new one")
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    made = (
        _builder(
            host, by.certificate.subject, key, now, min(now + timedelta(days=days), by.certificate.not_valid_after_utc)
        )
        .add_extension(x509.SubjectAlternativeName([_name(host)]), critical=False)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.key.public_key()), critical=False)
        .sign(by.key, hashes.SHA256())
    )
    place.mkdir(mode=0o700, exist_ok=True)
    _write(place / CA, _pem(by.certificate), 0o644)
    _write(place / CERT, _pem(made), 0o644)
    _write(place / KEY, _pem(key))
    return place


def check_host(host: str) -> str:
    """Return a host's name or IP address. Raises Mistake."""
    try:
        ip_address(host)
    except ValueError:
        labels = host.split(".")
        plain = all(label and len(label) < 64 and label.replace("-", "").replace("_", "").isalnum() for label in labels)
        if not (plain and host.isascii() and len(host) < 254):
            raise Mistake(f"{host!r} is no host's name and no IP address; leave out the port") from None
    return host


def _new_authority() -> Authority:
    now, key = datetime.now(UTC), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Agentmem cluster")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    certificate = (
        _builder("Agentmem cluster", name, key, now, now + timedelta(days=_CA_DAYS))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def _builder(
    subject: str, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject[:64])])
    made = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(key.public_key())
    return made.serial_number(x509.random_serial_number()).not_valid_before(begins - _SKEW).not_valid_after(ends)


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(what: x509.Certificate | ec.EllipticCurvePrivateKey) -> bytes:
    if isinstance(what, x509.Certificate):
        return what.public_bytes(serialization.Encoding.PEM)
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return what.private_bytes(*formats)


def _write(path: Path, content: bytes, mode: int = 0o600) -> None:
    with open(path, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content)
        file.flush()
        sync(file.fileno())
    sync_directory(path.parent)
