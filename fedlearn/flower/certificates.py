"""Certificates and keys for real clients: the server proves itself by TLS, each client by a key
that the server knows."""

import datetime
import ipaddress
import os
from collections.abc import Iterable, Sequence
from pathlib import Path


def make_certificates(folder: Path, names: Sequence[str]) -> None:
    """``ca.pem``, which clients need, and ``server.pem`` and ``server.key`` for a server of these
    names, good for a year."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import Encoding, PrivateFormat
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)

    def certificate(name, key, signer, issuer, *extensions):
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = x509.CertificateBuilder(
            issuer or subject, subject, key.public_key(), x509.random_serial_number()
        )
        builder = builder.not_valid_before(now - datetime.timedelta(minutes=5))
        builder = builder.not_valid_after(now + datetime.timedelta(days=365))
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical)
        return builder.sign(signer, hashes.SHA256())

    def alternative(name):
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    ca_key, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    may_not = "digital_signature content_commitment key_encipherment data_encipherment "
    may_not += "key_agreement encipher_only decipher_only"
    usage = dict.fromkeys(may_not.split(), False) | {"key_cert_sign": True, "crl_sign": True}
    ca = certificate(
        "fedlearn",
        ca_key,
        ca_key,
        None,
        (x509.BasicConstraints(True, 0), True),
        (x509.KeyUsage(**usage), True),
        (x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False),
    )
    server = certificate(
        names[0],
        key,
        ca_key,
        ca.subject,
        (x509.SubjectAlternativeName([alternative(n) for n in names]), False),
        (x509.BasicConstraints(False, None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False),
    )
    folder.mkdir(parents=True, exist_ok=True)
    # the authority's own key is not kept: it signs this one certificate
    _write_key(folder / "server.key", key, PrivateFormat.PKCS8)
    for name, made in (("ca.pem", ca), ("server.pem", server)):
        (folder / name).write_bytes(made.public_bytes(Encoding.PEM))


def _write_key(path, key, form):
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption

    own = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # for its owner's eyes only
    with open(own, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, form, NoEncryption()))


def make_key(path: Path) -> None:
    """A client's private key in ``path`` and its public half beside it, ``path``.pub."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    path.parent.mkdir(parents=True, exist_ok=True)
    _write_key(path, key, s.PrivateFormat.OpenSSH)
    Path(f"{path}.pub").write_bytes(
        key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH) + b"\n"
    )


def read_key(path: str | Path) -> bytes:
    """The public key that ``make_key`` wrote, as Flower registers it (PEM)."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization as s

    try:
        key = s.load_ssh_public_key(Path(path).read_bytes())
    except (ValueError, UnsupportedAlgorithm):
        raise ValueError(f"{path} is not a public key that `fedlearn join` has made.") from None
    return key.public_bytes(s.Encoding.PEM, s.PublicFormat.SubjectPublicKeyInfo)


def check_certificate(path: str | Path, names: Iterable[str] = ()) -> None:
    """``ValueError`` for a file that is no certificate, whose time is over, or that is not made out
    to one of these names."""
    from cryptography import x509

    path = Path(path)
    again = "remove the server's folder tls, start it again and copy the new ca.pem"
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
    except FileNotFoundError:
        raise ValueError(
            f"There is no certificate {path}: the server makes ca.pem in its folder tls when it is "
            "first started."
        ) from None
    except ValueError:
        raise ValueError(f"{path} is not a certificate in PEM format.") from None
    if found.not_valid_after_utc < datetime.datetime.now(datetime.UTC):
        raise ValueError(
            f"The certificate {path} expired on {found.not_valid_after_utc:%Y-%m-%d}: {again}."
        )
    if names:
        made = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        for name in set(names) - {str(entry.value) for entry in made}:
            raise ValueError(f"The certificate {path} is not made out to {name}: {again}.")
