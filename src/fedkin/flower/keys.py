"""Certificates and node keys for a Flower federation: `python -m fedkin.flower.keys DIR --nodes 5 --host 127.0.0.1`.

    ca.pem                       the authority: nodes and users verify the SuperLink with it
    superlink.pem, superlink.key the SuperLink's certificate and private key
    node-0, node-0.pub, …        a key pair for each node; the public keys are registered with the SuperLink

The authority's own key is not kept: to add the name of a machine, make a new set. In a federation of several owners,
let every node make its own pair (`ssh-keygen -t ecdsa -b 384`) and send the public half.
"""

import argparse
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

DAYS = 365


def make(folder: Path, nodes: int, hosts: tuple[str, ...] = ("127.0.0.1", "localhost")) -> None:
    """Write certificates and keys into a folder that only its owner can read."""
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
    names = x509.SubjectAlternativeName([_host(host) for host in hosts])
    server = (
        _certificate(_name("superlink"), issuer, own)
        .add_extension(names, critical=False)
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
    path.touch(mode=0o600)
    path.write_bytes(content)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m fedkin.flower.keys", description="Certificates and node keys.")
    parser.add_argument("folder", type=Path, help="folder for the files")
    parser.add_argument("--nodes", type=int, default=5, help="number of key pairs")
    parser.add_argument("--host", action="append", help="a name or address of the SuperLink; repeatable")
    given = parser.parse_args()
    make(given.folder, given.nodes, tuple(given.host or ("127.0.0.1", "localhost")))
    print(f"wrote certificates and {given.nodes} key pairs to {given.folder}")


if __name__ == "__main__":
    main()
