"""A Sigstore of our own: certificate authority, certificate log and signature log, whose bundles the real library checks.

Formats: RFC 6962 (signed certificate timestamps, Merkle leaves), Rekor v1 entries of kind dsse 0.0.1, C2SP signed notes.
"""

import base64
import datetime
import hashlib
import json
import struct
from dataclasses import dataclass, field

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

SCTS = ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
FULCIO = "1.3.6.1.4.1.57264.1."
ISSUER = "https://token.actions.githubusercontent.com"
ORIGIN = "rekor.example - 1"
WHEN = datetime.datetime(2026, 3, 1, 12, 0, 0, tzinfo=datetime.UTC)
DAY = datetime.timedelta(days=1)


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def der(key) -> bytes:
    return key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)


def sign(key, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def key():
    return ec.generate_private_key(ec.SECP256R1())


def utf8(text: str) -> bytes:
    raw = text.encode()
    return b"\x0c" + (bytes([len(raw)]) if len(raw) < 128 else b"\x81" + bytes([len(raw)])) + raw


@dataclass
class World:
    """Keys of one such world. `bundle` makes what a workflow of it would hand out."""

    ca: object = field(default_factory=key)
    ctlog: object = field(default_factory=key)
    rekor: object = field(default_factory=key)

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(self.ca.public_key())
        made = made.serial_number(1).not_valid_before(WHEN - 365 * DAY).not_valid_after(WHEN + 3650 * DAY)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True)
        made = made.add_extension(x509.SubjectKeyIdentifier.from_public_key(self.ca.public_key()), critical=False)
        self.authority = made.sign(self.ca, hashes.SHA256())

    def root(self) -> bytes:
        """The trust root, as the library reads it."""
        valid = {"start": (WHEN - 365 * DAY).isoformat().replace("+00:00", "Z")}

        def log(key) -> dict:
            public = {"rawBytes": b64(der(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": valid}
            return {"baseUrl": "https://log.example", "hashAlgorithm": "SHA2_256", "publicKey": public,
                    "logId": {"keyId": b64(hashlib.sha256(der(key)).digest())}}  # fmt: skip

        chain = {"certificates": [{"rawBytes": b64(self.authority.public_bytes(serialization.Encoding.DER))}]}
        return json.dumps({
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.rekor)], "ctlogs": [log(self.ctlog)], "timestampAuthorities": [],
            "certificateAuthorities": [{"subject": {"organization": "example", "commonName": "authority"},
                                        "uri": "https://ca.example", "certChain": chain, "validFor": valid}],
        }).encode()  # fmt: skip

    def certificate(self, signer, repository: str, workflow: str, ref: str, runner: str) -> x509.Certificate:
        identity = f"https://github.com/{repository}/{workflow}@{ref}"

        def build(scts: bytes):
            made = x509.CertificateBuilder().subject_name(x509.Name([])).issuer_name(self.authority.subject)
            made = made.public_key(signer.public_key()).serial_number(77)
            made = made.not_valid_before(WHEN - datetime.timedelta(minutes=5)).not_valid_after(WHEN + datetime.timedelta(minutes=5))
            made = made.add_extension(x509.KeyUsage(True, False, False, False, False, False, False, False, False), critical=True)
            made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            made = made.add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity)]), critical=True)  # fmt: skip
            made = made.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.ca.public_key()), critical=False)  # fmt: skip
            for number, value in (("1", ISSUER.encode()), ("5", repository.encode()), ("6", ref.encode()),
                                  ("8", utf8(ISSUER)), ("11", utf8(runner))):  # fmt: skip
                made = made.add_extension(x509.UnrecognizedExtension(ObjectIdentifier(FULCIO + number), value), critical=False)
            made = made.add_extension(x509.UnrecognizedExtension(SCTS, scts), critical=False)
            return made.sign(self.ca, hashes.SHA256())

        # What the log signs leaves its own timestamp out, so that any placeholder will do to get at it.
        draft = build(self._scts(b"\0" * 8))
        tbs = draft.tbs_precertificate_bytes
        stamp = int(WHEN.timestamp() * 1000)
        signed = struct.pack("!BBQH", 0, 0, stamp, 1) + hashlib.sha256(der(self.ca)).digest()
        signed += len(tbs).to_bytes(3, "big") + tbs + struct.pack("!H", 0)
        return build(self._scts(sign(self.ctlog, signed), stamp))

    def _scts(self, signature: bytes, stamp: int = 0) -> bytes:
        one = b"\0" + hashlib.sha256(der(self.ctlog)).digest() + struct.pack("!QH", stamp, 0)
        one += struct.pack("!BBH", 4, 3, len(signature)) + signature
        listed = struct.pack("!H", len(one)) + one
        whole = struct.pack("!H", len(listed)) + listed
        # An OCTET STRING inside the extension's own.
        size = bytes([len(whole)]) if len(whole) < 128 else b"\x81" + bytes([len(whole)])
        return b"\x04" + size + whole

    def bundle(
        self, data: bytes, repository: str = "lane/stack", workflow: str = ".github/workflows/gpu.yml",
        ref: str = "refs/heads/main", runner: str = "self-hosted", kind: str = "application/vnd.in-toto+json",
    ) -> dict:  # fmt: skip
        """A bundle over `data`, as JSON."""
        signer = key()
        certificate = self.certificate(signer, repository, workflow, ref, runner)
        payload = json.dumps({
            "_type": "https://in-toto.io/Statement/v1", "predicateType": "https://slsa.dev/provenance/v1", "predicate": {},
            "subject": [{"name": "evidence.json", "digest": {"sha256": hashlib.sha256(data).hexdigest()}}]}).encode()  # fmt: skip
        encoded = b"DSSEv1 %d %b %d %b" % (len(kind), kind.encode(), len(payload), payload)
        signature = sign(signer, encoded)
        pem = certificate.public_bytes(serialization.Encoding.PEM)
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": {
            "envelopeHash": {"algorithm": "sha256", "value": "0" * 64},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": b64(signature), "verifier": b64(pem)}]}}, sort_keys=True, separators=(",", ":")).encode()  # fmt: skip
        raw = certificate.public_bytes(serialization.Encoding.DER)
        return {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {"certificate": {"rawBytes": b64(raw)}, "tlogEntries": [self._entry(body)]},
            "dsseEnvelope": {"payload": b64(payload), "payloadType": kind, "signatures": [{"sig": b64(signature)}]},
        }  # fmt: skip

    def _entry(self, body: bytes) -> dict:
        """The only leaf of its tree, so that the root is the leaf's hash."""
        log_id = hashlib.sha256(der(self.rekor)).digest()
        leaf = hashlib.sha256(b"\0" + body).digest()
        note = f"{ORIGIN}\n1\n{b64(leaf)}\n"
        mark = b64(log_id[:4] + sign(self.rekor, note.encode()))
        at = int(WHEN.timestamp())
        promised = json.dumps({"body": b64(body), "integratedTime": at, "logID": log_id.hex(), "logIndex": 0},
                              sort_keys=True, separators=(",", ":")).encode()  # fmt: skip
        return {
            "logIndex": "0", "logId": {"keyId": b64(log_id)}, "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(at), "inclusionPromise": {"signedEntryTimestamp": b64(sign(self.rekor, promised))},
            "inclusionProof": {"logIndex": "0", "rootHash": b64(leaf), "treeSize": "1", "hashes": [],
                               "checkpoint": {"envelope": f"{note}\n\u2014 {ORIGIN.split()[0]} {mark}\n"}},
            "canonicalizedBody": b64(body),
        }  # fmt: skip
