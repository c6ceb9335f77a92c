"""A record in a file: gzip of one JSON object with the format's name, the record and its digest."""

import gzip
import io
import json
import os
import tempfile
import zlib
from pathlib import Path

from pydantic import ValidationError

from ..records import canonical_json, sha256
from .recorded import Recorded, RecordedError

FORMAT = "fasttrack-pack"
MAX_FILE_BYTES = 256 << 20
MAX_BYTES = 1 << 30


def write(recorded: Recorded, path: Path) -> int:
    """Writes a record, in place of a file that is there; its size in bytes. Equal records give equal files."""
    record = recorded.model_dump(mode="json")
    text = canonical_json({"format": FORMAT, "digest": sha256(canonical_json(record).encode()), "record": record})
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0, filename="") as stream:
        stream.write(text.encode())
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(packed.getvalue())
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
    return len(packed.getvalue())


def read(path: Path) -> Recorded:
    """The record in a file. Raises RecordedError for anything that is not one; nothing in it is believed yet."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise RecordedError("recorded.size", f"{path} is larger than {MAX_FILE_BYTES} bytes")
        with gzip.open(path) as stream:
            data = stream.read(MAX_BYTES + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordedError("recorded.format", f"cannot read {path}: {error}") from error
    if len(data) > MAX_BYTES:
        raise RecordedError("recorded.size", f"{path} unpacks to more than {MAX_BYTES} bytes")
    try:
        document = json.loads(data)
        if set(document) != {"format", "digest", "record"} or document["format"] != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        if sha256(canonical_json(document["record"]).encode()) != document["digest"]:
            raise RecordedError("recorded.digest", f"{path} was changed or damaged: its digest is another")
        return Recorded.model_validate(document["record"])
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise RecordedError("recorded.format", f"{path}: {where}: {first['msg']}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise RecordedError("recorded.format", f"{path} is no record: {error}") from error
