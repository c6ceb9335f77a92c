"""Calls a fasttrack candidate the way FlashInfer-Bench calls a solution. It is copied into every exported solution and
needs torch alone.

Destination passing: `run` gets the inputs, then the outputs to fill. A state is copied into its output, and the
candidate updates that copy in place; the copy is part of what is timed there, as it would not be in serving. `prepare`
runs again whenever a weight is another tensor object, or was written to: never by address, which is reused. Streams are
run one after another on the current one, which is an order that every plan allows, and slower for those that use more.
"""

import contextlib
import weakref
from types import SimpleNamespace

import torch


class Adapter:
    """A candidate (the module with `launch`) and the facts of the op that it was exported with."""

    def __init__(self, candidate, facts):
        self.candidate = candidate
        self.facts = facts
        self._held = None
        self._prepared = {}

    def __call__(self, inputs, outputs):
        """Fills `outputs`; both map names to tensors."""
        facts, device = self.facts, next(iter(outputs.values())).device
        tensors = dict(inputs)
        for name, tensor in outputs.items():
            state = facts["states"].get(name)
            if state is not None:
                tensor.copy_(inputs[state])
            tensors[state or name] = tensor
        axes = dict(facts["fixed"])
        axes.update({axis: tensors[name].shape[at] for axis, (name, at) in facts["sizes"].items()})
        axes.update({axis: tensors[name].stride(at) for axis, (name, at) in facts["strides"].items()})
        with torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext():
            context = Context(facts["hardware"], device)
            tensors.update(self._static(context, {name: inputs[name] for name in facts["static"]}, axes))
            tensors.update(self._scratch(axes, device))
            self.candidate.launch(context, SimpleNamespace(**tensors), dict(axes), dict(facts["config"]))

    def _static(self, context, static, axes):
        if not hasattr(self.candidate, "prepare"):
            return {}
        held = self._held
        same = held is not None and held[1] == axes and all(
            reference() is static[name] and version == static[name]._version
            for name, (reference, version) in held[0].items()
        )
        if not same:
            config = dict(self.facts["config"])
            self._prepared = dict(self.candidate.prepare(context, SimpleNamespace(**static), dict(axes), config))
            seen = {name: (weakref.ref(tensor), tensor._version) for name, tensor in static.items()}
            self._held = (seen, axes)
        return self._prepared

    def _scratch(self, axes, device):
        if not hasattr(self.candidate, "scratch"):
            return {}
        declared = self.candidate.scratch(dict(axes), dict(self.facts["config"]))
        return {name: torch.empty(shape, dtype=dtype, device=device) for name, (shape, dtype) in declared.items()}


class Context:
    """What `prepare` and `launch` receive as `ctx`."""

    def __init__(self, hardware, device):
        if device.type == "cuda":
            card = torch.cuda.get_device_properties(device)
            hardware = {
                "name": card.name,
                "capability": 10 * card.major + card.minor,
                "multiprocessors": card.multi_processor_count,
                "max_shared": card.shared_memory_per_block_optin,
            }
        self.hardware = SimpleNamespace(**hardware)

    def stream(self, name):
        """Launches inside run in order with everything else."""
        return contextlib.nullcontext()

    def wait(self, name):
        """Everything launched so far comes first anyway."""

    def prefetch(self):
        """Launches inside write nothing."""
        return contextlib.nullcontext()
