"""The base of every record: frozen, strict about unknown keys, digestible."""

import hashlib
import json

from pydantic import BaseModel, ConfigDict


class Frozen(BaseModel):
    """An immutable record. Unknown keys are errors; the canonical JSON form is stable."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def canonical_json(self) -> str:
        """UTF-8 JSON with sorted keys and no spaces: the bytes that digests are taken over."""
        return canonical_json(self.model_dump(mode="json"))

    def digest(self) -> str:
        """SHA-256 (hex) of the canonical JSON."""
        return sha256(self.canonical_json().encode())


def canonical_json(value: object) -> str:
    """JSON text of `value` with sorted keys, no spaces, and no NaN or infinity (ValueError)."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def sha256(data: bytes) -> str:
    """SHA-256 of `data` as lower-case hex."""
    return hashlib.sha256(data).hexdigest()


def digest_files(files: dict[str, bytes]) -> str:
    """One SHA-256 over a set of files: names (POSIX, relative) and contents, in name order."""
    return sha256("".join(f"{sha256(files[name])}  {name}\n" for name in sorted(files)).encode())
