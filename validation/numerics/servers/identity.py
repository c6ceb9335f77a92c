"""What a server says that it is, and whether two of them may be compared."""

import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field, ValidationError

from ...errors import UserError
from ...records import Frozen
from .forms import Form, Refused

SAME = ("model", "tokenizer", "revision", "dtype")
"""What the servers must agree about"""
Get = Callable[[str], Any]
"""A path -> its JSON; None where the server has nothing there"""


class Identity(Frozen):
    """A server. Fields are None where nobody said them."""

    model: str | None = None
    tokenizer: str | None = None
    revision: str | None = None
    dtype: str | None = None
    build: str | None = Field(default=None, description="what tells two builds apart: version, commit, backend, digest")
    served: str | None = Field(default=None, description="the name that requests have to give")
    declared: tuple[str, ...] = Field(default=(), description="fields that the operator said, not the server")


def ask(get: Get, declared: Mapping[str, str]) -> tuple[Identity, Form]:
    """The identity of a server, with the operator's word for what it does not say. Raises UserError where it speaks
    neither interface or contradicts the operator."""
    models, version, info = get("/v1/models"), get("/version"), get("/get_model_info")
    if not isinstance(models, Mapping) and not isinstance(info, Mapping):
        raise UserError("it answers neither /v1/models nor /get_model_info", "name a vLLM, SGLang or fasttrack server")
    said = _said(models, version, info, get)
    form = Form.VLLM if isinstance(version, Mapping) else Form.SGLANG
    if refines(declared.get("build"), said.get("build")):
        said["build"] = None
    for name, value in declared.items():
        if said.get(name) not in (None, value):
            how = "correct the file"
            if name == "build":
                how = f"name {said[name]} in it, with what tells this build apart, such as \"{said[name]}+candidate\""
            raise UserError(f"it says {name} {said[name]}, --declare says {value}", how)
    try:
        whole = Identity(**{**declared, **{name: value for name, value in said.items() if value is not None}})
    except ValidationError as error:
        how = f"it may give {', '.join((*SAME, 'build'))}"
        raise UserError(f"--declare: {error.errors()[0]['msg']}", how) from error
    operators = set(declared) - {name for name, value in said.items() if value is not None}
    return whole.model_copy(update={"declared": tuple(sorted(operators))}), form


def refines(declared: str | None, said: str | None) -> bool:
    """Whether the operator's word for a build names the version that the server says, and more: one version may run two backends."""
    if not declared or not said or declared == said:
        return False
    return bool(re.search(rf"(?<![0-9A-Za-z.]){re.escape(said)}(?![0-9A-Za-z.])", declared))


def _said(models: Any, version: Any, info: Any, get: Get) -> dict[str, str | None]:
    try:
        model = models["data"][0] if models else {}
    except (TypeError, KeyError, IndexError):
        model = {}
    if own := model.get("fasttrack"):
        path = own["path"]
        return {
            "model": own["model"], "tokenizer": path["tokenizer"], "revision": path["revision"], "dtype": path["dtype"],
            "build": version.get("system_fingerprint") if version else None, "served": model["id"],
        }  # fmt: skip
    info = info if isinstance(info, Mapping) else {}
    more = (get("/get_server_info") or {}) if info else {}
    number = (version or {}).get("version") or more.get("version")
    return {
        "model": model.get("root") or info.get("model_path"), "tokenizer": info.get("tokenizer_path"),
        "revision": more.get("revision"), "dtype": more.get("dtype"), "build": number, "served": model.get("id"),
    }  # fmt: skip


def comparable(stock: Identity, other: Identity, name: str, *, other_dtype: bool = False) -> None:
    """Raises Refused unless both serve the same model. `other_dtype`: a float64 oracle may have another type."""
    for field in SAME[:-1] if other_dtype else SAME:
        one, two = getattr(stock, field), getattr(other, field)
        if one is None or two is None:
            silent = "the stock server" if one is None else f"the {name} server"
            raise Refused("unknown", f"{silent} does not say its {field}: state it with --declare")
        if one != two:
            raise Refused(field, f"the servers disagree about {field}: stock has {one}, {name} has {two}")


def different_builds(who: Mapping[str, Identity]) -> None:
    """Raises Refused where two of these servers, by role, may be one build: stock compared with itself, or a candidate
    that is its own noise."""
    known: dict[str, str] = {}
    for name, identity in who.items():
        if identity.build is None:
            raise Refused("unknown", f"the {name} server does not say its build: state it with --declare")
        if identity.build in known:
            raise Refused(
                "same_build",
                f"{known[identity.build]} and {name} are both build {identity.build}, which would be compared with "
                "itself; where one version runs two backends, state each server's build with --declare, such as "
                f"\"{identity.build}+{name}\"",
            )
        known[identity.build] = name
