"""SSH signatures over evidence and decisions, made and checked by OpenSSH's `ssh-keygen -Y`; no own cryptography.

Who may sign is a list in the `allowed_signers` format of ssh-keygen(1): principals, options, public key. It comes from
the base revision. A signature counts only where `ssh-keygen -Y verify` exits with 0; what it prints is read for the
reason alone. The format: https://github.com/openssh/openssh-portable/blob/master/PROTOCOL.sshsig
"""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from fasttrack_validation.errors import UserError
from fasttrack_validation.records import Frozen

NAMESPACE = "evidence@fasttrack.dev"
"""What the signature is for. A signature that the same key made for git, or for files, is not one over evidence."""
SUFFIX = ".sig"
MAX_BYTES = 16 << 10
_SECONDS = 60
_INSTALL = "install OpenSSH 8.9 or newer (package openssh-client) and put ssh-keygen on PATH"
# What ssh-keygen says on standard error -> reason. Only names the refusal: the exit code made it.
_SAYS = (
    ("couldn't parse signature", "malformed", "it is cut off, or no SSH signature"),
    ("sshsig_armor", "malformed", "it is cut off, or no SSH signature"),
    ("namespace does not match", "namespace", "it was made for another purpose"),
    ("not permitted for use in signature namespace", "namespace", "the base lets this key sign for other purposes"),
    ("incorrect signature", "other_bytes", "it is over other bytes than these"),
    ("key has expired", "expired", "the base no longer lets this key sign"),
    ("key is not yet valid", "not_yet_valid", "the base does not let this key sign yet"),
)  # fmt: skip


class Signed(Frozen):
    """A signature that counts, by a principal that the base names."""

    signer: str


class Refused(Frozen):
    """A signature that does not count.

    `reason`: malformed, namespace, other_bytes, expired, not_yet_valid, unknown_signer.
    """

    reason: str
    message: str


def installed() -> bool:
    """Whether ssh-keygen is there."""
    return shutil.which("ssh-keygen") is not None


def require() -> str:
    """The path of ssh-keygen. UserError without it."""
    program = shutil.which("ssh-keygen")
    if program is None:
        raise UserError("ssh-keygen is not installed, and signatures are made and checked with it", _INSTALL)
    return program


def sign(data: bytes, key: Path, namespace: str = NAMESPACE) -> bytes:
    """The armoured signature over `data`. `key` is a private key, or a public one whose private half ssh-agent holds.

    UserError without ssh-keygen, without the key, or where it cannot sign.
    """
    if not key.is_file():
        raise UserError(f"{key} is no file", "name an SSH key: `ssh-keygen -t ed25519 -f KEY` makes one")
    # The terminal stays ssh-keygen's, for a passphrase.
    done = _keygen(["-Y", "sign", "-q", "-f", str(key), "-n", namespace], data)
    if done.returncode or not done.stdout.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        raise UserError(f"cannot sign with {key}: {_first(done)}", "give an SSH private key that this account can read")
    return done.stdout


def verify(
    data: bytes, signature: bytes, allowed_signers: bytes, namespace: str = NAMESPACE
) -> Signed | Refused:
    """Whether `signature` is one over `data`, for this purpose, by somebody whom `allowed_signers` lets sign today.

    A signature carries no time that could be trusted, so a key's dates are held against the clock.
    UserError without ssh-keygen.
    """
    if len(signature) > MAX_BYTES:
        return Refused(reason="malformed", message=f"it has more than {MAX_BYTES} bytes")
    with tempfile.TemporaryDirectory(prefix="fasttrack-signature-") as name:
        mark, allowed = Path(name, "signature"), Path(name, "allowed_signers")
        mark.write_bytes(signature)
        allowed.write_bytes(allowed_signers)
        # First without asking who signed: whether it is one over these bytes, for this purpose.
        done = _keygen(["-Y", "check-novalidate", "-n", namespace, "-s", str(mark)], data)
        if done.returncode:
            return _refused(done)
        done = _keygen(["-Y", "find-principals", "-s", str(mark), "-f", str(allowed)])
        for principal in done.stdout.decode("utf-8", "replace").splitlines() if not done.returncode else ():
            asked = ["-Y", "verify", "-f", str(allowed), "-I", principal, "-n", namespace, "-s", str(mark)]
            done = _keygen(asked, data)
            if done.returncode == 0:
                return Signed(signer=principal)
        return _refused(done)


def _refused(done: subprocess.CompletedProcess[bytes]) -> Refused:
    said = done.stderr.decode("utf-8", "replace").lower()
    for words, reason, message in _SAYS:
        if words in said:
            return Refused(reason=reason, message=message)
    return Refused(reason="unknown_signer", message="the base names no such key among those that may sign")


def _keygen(arguments: Sequence[str], data: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    try:
        return subprocess.run([require(), *arguments], input=data, capture_output=True, check=False, timeout=_SECONDS,
                              env=os.environ | {"LC_ALL": "C"})  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise UserError(f"ssh-keygen gave no answer in {_SECONDS} s", "check the key's agent or token") from error


def _first(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else f"exit code {done.returncode}"
