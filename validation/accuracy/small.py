"""Exams that contracts keep for their small models (`contracts/<model>/nano/exams.py`), found by the exam's name."""

from importlib import import_module
from importlib.util import find_spec

from ..contracts import models
from .frozen import Draft, Source

_ROOT = __package__.rpartition(".")[0]


def kinds() -> tuple[str, ...]:
    """Names of all such exams: kimi_k3_nano_product is the small model's exam `product` of kimi_k3."""
    return tuple(f"{model}_nano_{task}" for model in models() for task in _tasks(model))


def build(source: Source) -> Draft:
    """The exam of `source`, whose kind is one of `kinds`."""
    model, _, task = source.kind.partition("_nano_")
    return import_module(f"{_ROOT}.contracts.{model}.nano.exams").build(source, task)


def _tasks(model: str) -> tuple[str, ...]:
    nano = f"{_ROOT}.contracts.{model}.nano"
    if find_spec(nano) is None or find_spec(f"{nano}.exams") is None:
        return ()
    return import_module(f"{nano}.exams").KINDS
