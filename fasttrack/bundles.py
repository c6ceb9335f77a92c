"""GitHub artifact attestations over evidence, checked offline: Sigstore bundles against a trust root that the base pins.

A bundle over a file of evidence lies at `evidence/attestations/<SHA-256 of the file>.sigstore.json`, as `gh attestation
download` hands it out. Who may attest stands in `.github/attesters.toml` of the base, and what their certificates chain
to in `.github/trusted_root.json`. The cryptography is sigstore's own (https://docs.sigstore.dev); nothing is fetched.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen, sha256

from . import strict_toml
from .signatures import Refused, Signed

DIRECTORY = "evidence/attestations"
SUFFIX = ".sigstore.json"
ATTESTERS, ROOT = ".github/attesters.toml", ".github/trusted_root.json"
GITHUB = "https://token.actions.githubusercontent.com"
STATEMENT = "application/vnd.in-toto+json"
MAX_BYTES = 256 << 10


class Attester(Frozen):
    """One workflow whose attestations count. Every field has to be that of the certificate."""

    name: str = Field(min_length=1, description="as it is shown")
    repository: str = Field(pattern=r"^[\w.-]+/[\w.-]+$", description="owner/name")
    workflow: str = Field(pattern=r"^\.github/workflows/[\w.-]+\.ya?ml$")
    ref: str = Field(default="refs/heads/main", pattern=r"^refs/[\w./-]+$", description="of the workflow file that ran")
    issuer: str = GITHUB
    runner: str | None = Field(default=None, pattern="^(github|self)-hosted$", description="where it has to have run")

    @property
    def identity(self) -> str:
        """The certificate's subject alternative name."""
        return f"https://github.com/{self.repository}/{self.workflow}@{self.ref}"


class Attesters(Frozen):
    """`.github/attesters.toml`."""

    attester: tuple[Attester, ...] = Field(min_length=1)


@dataclass(frozen=True)
class Bundles:
    """The bundles of a head, and whom the base trusts with them."""

    held: Mapping[str, bytes]
    """Files of the model directory, by path relative to it"""
    attesters: bytes | None
    root: bytes | None

    def check(self, data: bytes) -> Signed | Refused | None:
        """Whether one of the trusted workflows attested to `data`; None where there is no bundle over it.

        Reasons: malformed, no_attesters, unchecked, invalid, unknown_attester, other_bytes.
        """
        bundle = self.held.get(place(data))
        if bundle is None:
            return None
        if self.attesters is None or self.root is None:
            return Refused(reason="no_attesters", message=f"the base has no {ATTESTERS} with a {ROOT}: it trusts no workflow")
        return verify(data, bundle, self.attesters, self.root)

    def orphans(self, evidence: Mapping[str, bytes]) -> list[str]:
        """Paths of bundles over none of the files of `evidence`."""
        known = {place(data) for data in evidence.values()}
        return sorted(name for name in self.held if name.startswith(f"{DIRECTORY}/") and name not in known)


def place(data: bytes) -> str:
    """Where the bundle over a file with these contents lies, relative to the model directory."""
    return f"{DIRECTORY}/{sha256(data)}{SUFFIX}"


def verify(data: bytes, bundle: bytes, attesters: bytes, root: bytes) -> Signed | Refused:
    """Checks one bundle, without a network. UserError where the base's own files are not what they should be."""
    try:
        from sigstore.errors import Error
        from sigstore.models import Bundle, InvalidBundle, TrustedRoot
        from sigstore.verify import Verifier
        from sigstore.verify.policy import UnsafeNoOp
    except ImportError:
        return Refused(reason="unchecked", message="sigstore is not installed here, so nobody checked it")
    trusted = strict_toml.parse(attesters.decode("utf-8", "replace"), Attesters, Path(ATTESTERS))
    if len(bundle) > MAX_BYTES:
        return Refused(reason="malformed", message=f"more than {MAX_BYTES} bytes")
    try:
        with tempfile.NamedTemporaryFile(suffix=".json") as file:
            file.write(root)
            file.flush()
            verifier = Verifier(trusted_root=TrustedRoot.from_file(file.name))
    except (Error, ValueError, TypeError, KeyError) as error:
        raise UserError(f"{ROOT} is no trust root: {str(error)[:200]}", "write it with `gh attestation trusted-root`") from None
    try:
        found = Bundle.from_json(bundle)
    except (InvalidBundle, Error, ValueError, TypeError, KeyError) as error:
        return Refused(reason="malformed", message=f"no bundle: {_short(error)}")
    try:
        kind, payload = verifier.verify_dsse(found, UnsafeNoOp())
    except (Error, ValueError, TypeError) as error:
        return Refused(reason="invalid", message=_short(error))
    who = next((one for one in trusted.attester if _is(found, one)), None)
    if who is None:
        return Refused(reason="unknown_attester", message="its certificate is of no workflow that the base names")
    if not _about(data, kind, payload):
        return Refused(reason="other_bytes", message="its statement is about other bytes")
    return Signed(signer=f"{who.name} ({who.repository})")


def _is(bundle: Any, who: Attester) -> bool:
    from sigstore.errors import VerificationError
    from sigstore.verify import policy

    parts = [policy.Identity(identity=who.identity, issuer=who.issuer), policy.GitHubWorkflowRepository(who.repository)]
    if who.runner:
        parts.append(policy.OIDCRunnerEnvironment(who.runner))
    try:
        policy.AllOf(parts).verify(bundle.signing_certificate)
    except VerificationError:
        return False
    return True


def _about(data: bytes, kind: str, payload: bytes) -> bool:
    """Whether an in-toto statement has these bytes among its subjects."""
    if kind != STATEMENT:
        return False
    try:
        subjects = json.loads(payload)["subject"]
        return any(one["digest"].get("sha256") == sha256(data) for one in subjects)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return False


def _short(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
