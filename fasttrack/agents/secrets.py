"""Secrets: where they come from, and their removal from whatever is kept, shown or sent."""

import base64
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, urlsplit

from fasttrack_validation.errors import UserError

KEY, KEY_FILE = "OPENAI_API_KEY", "OPENAI_API_KEY_FILE"
MARK = "[secret removed]"

# Names of environment variables that hold secrets of any kind, ours or not.
_NAMES = re.compile(r"(KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$")
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
# Placeholders ("none", "EMPTY") stand where a local server asks for no key; removing such words would garble text.
_SHORTEST = 8


def api_key(environment: Mapping[str, str] = os.environ) -> str | None:
    """The endpoint's key: $OPENAI_API_KEY, else the content of the file that $OPENAI_API_KEY_FILE names; None: no key.

    Raises UserError where the file cannot be read, or the key could not stand in a header.
    """
    key = environment.get(KEY, "").strip()
    if not key and (name := environment.get(KEY_FILE)):
        try:
            key = Path(name).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is no text"
            raise UserError(f"cannot read the file that {KEY_FILE} names: {why}", "correct the variable") from None
    if not all(33 <= ord(character) <= 126 for character in key):
        raise UserError("the endpoint's key has characters that no key has", f"set {KEY} or {KEY_FILE} again")
    return key or None


class Scrubber:
    """Removes secrets from text, also where they stand JSON-escaped, percent-encoded or in base64."""

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        for secret in secrets:
            if len(secret) >= _SHORTEST:
                encoded = base64.b64encode(secret.encode()).decode().rstrip("=")
                forms |= {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), encoded}
        # Longest first: one secret may be a part of another.
        self._forms = sorted(forms, key=lambda form: (-len(form), form))

    def __call__(self, text: str) -> str:
        """`text` without secrets."""
        for form in self._forms:
            text = text.replace(form, MARK)
        return text

    def data(self, value: object) -> object:
        """JSON-like data without secrets, keys included."""
        if isinstance(value, str):
            return self(value)
        if isinstance(value, Mapping):
            return {self(str(key)): self.data(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.data(item) for item in value]
        return value


def scrubber(environment: Mapping[str, str] = os.environ, *more: str | None) -> Scrubber:
    """A scrubber of the key, of every environment variable named like a secret, of proxies' passwords, and of `more`."""
    found = [value for name, value in environment.items() if _NAMES.search(name.upper())]
    found += [value.strip() for value in found]
    if key := api_key(environment):
        found.append(key)
    for name, value in environment.items():
        if name.upper() in _PROXIES and (password := _password(value)):
            found.append(password)
    return Scrubber([*found, *(value for value in more if value)])


def _password(url: str) -> str | None:
    try:
        return urlsplit(url).password
    except ValueError:
        return None
