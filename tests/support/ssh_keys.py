"""SSH keys made for a test, and signatures by `ssh-keygen` itself, apart from the code that is tested."""

import subprocess
from pathlib import Path

from fasttrack.signatures import NAMESPACE


class Keys:
    """A trusted key and another one, and `ssh-keygen` itself as the second opinion that makes signatures."""

    def __init__(self, place: Path) -> None:
        self.place = place
        for name in ("trusted", "other"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", place / name], check=True)

    def public(self, name: str) -> str:
        return " ".join((self.place / f"{name}.pub").read_text().split()[:2])

    def allow(self, options: str = "", key: str = "trusted") -> bytes:
        return f"gpu-runner@example.org {options} {self.public(key)}\n".encode()

    def sign(self, data: bytes, key: str = "trusted", namespace: str = NAMESPACE) -> bytes:
        command = ["ssh-keygen", "-Y", "sign", "-q", "-f", self.place / key, "-n", namespace]
        return subprocess.run(command, input=data, check=True, capture_output=True).stdout
