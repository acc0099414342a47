"""Certificates and node keys for a Flower federation: `python -m fedkin.flower.keys DIR --nodes 5 --host 127.0.0.1`.

    ca.pem                       the authority: nodes and users verify the SuperLink with it
    superlink.pem, superlink.key the SuperLink's certificate and private key
    node-0, node-0.pub, …        a key pair for each node; the public keys are registered with the SuperLink

The authority's own key is not kept: to add the name of a machine, make a new set. In a federation of several owners,
let every node make its own pair (`ssh-keygen -t ecdsa -b 384`) and send the public half.
"""

import argparse
import base64
import hashlib
import ipaddress
import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedkin.errors import BadInput

DAYS = 365
FINGERPRINT = 16  # characters of 6 bits each


def make(
    folder: Path, nodes: int, hosts: tuple[str, ...] = ("127.0.0.1", "localhost"), *, replace: bool = False
) -> None:
    """Write certificates and keys, files that only their owner can read, into a folder that is made if need be.

    replace  whether a set that is there already may be overwritten: nodes with keys of the former one are then refused
    """
    if nodes < 1:
        raise BadInput(f"--nodes {nodes} is out of range: make keys for at least one node")
    names = [
        "ca.pem",
        "superlink.pem",
        "superlink.key",
        *(f"node-{i}{end}" for i in range(nodes) for end in ("", ".pub")),
    ]
    if not replace and (found := next((name for name in names if os.path.lexists(folder / name)), None)):
        raise BadInput(
            f"{folder / found} exists already: choose another folder, or overwrite the keys with --replace and "
            "register the nodes again"
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = _name("fedkin example authority")
    ca = (
        _certificate(issuer, issuer, authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    own = ec.generate_private_key(ec.SECP384R1())
    alternatives = x509.SubjectAlternativeName([_host(host) for host in hosts])
    server = (
        _certificate(_name("superlink"), issuer, own)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA384())
    )
    _write(folder / "ca.pem", ca.public_bytes(serialization.Encoding.PEM))
    _write(folder / "superlink.pem", server.public_bytes(serialization.Encoding.PEM))
    _write(folder / "superlink.key", _private(own, serialization.PrivateFormat.PKCS8))
    for node in range(nodes):
        pair = ec.generate_private_key(ec.SECP384R1())
        public = pair.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        _write(folder / f"node-{node}", _private(pair, serialization.PrivateFormat.OpenSSH))
        _write(folder / f"node-{node}.pub", public + b"\n")


def fingerprint(public_key: bytes) -> str:
    """A short name for a public key as a SuperLink knows it: the beginning of what `ssh-keygen -l` shows for it."""
    try:
        key: Any = serialization.load_pem_public_key(public_key)
        line = key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
        public_key = base64.b64decode(line.split()[1])
    except (ValueError, TypeError, UnsupportedAlgorithm):  # any other encoding is as it is
        pass
    return "SHA256:" + base64.b64encode(hashlib.sha256(public_key).digest()).decode()[:FINGERPRINT]


def _certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=DAYS))
    )


def _name(common: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: ec.EllipticCurvePrivateKey, layout: serialization.PrivateFormat) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, layout, serialization.NoEncryption())


def _write(path: Path, content: bytes) -> None:
    """Write a file of mode 0600. A former one of another mode, or a link, is replaced, not written to."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)
    with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(content)
    temporary.replace(path)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m fedkin.flower.keys", description="Certificates and node keys.")
    parser.add_argument("folder", type=Path, help="folder for the files")
    parser.add_argument("--nodes", type=int, default=5, help="number of key pairs")
    parser.add_argument("--host", action="append", help="a name or address of the SuperLink; repeatable")
    parser.add_argument("--replace", action="store_true", help="overwrite keys that are there already")
    given = parser.parse_args()
    try:
        make(given.folder, given.nodes, tuple(given.host or ("127.0.0.1", "localhost")), replace=given.replace)
    except (BadInput, OSError) as error:
        sys.exit(str(error))
    print(f"wrote certificates and {given.nodes} key pairs to {given.folder}")


if __name__ == "__main__":
    main()
