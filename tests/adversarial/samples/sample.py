"""One exploit as data: candidate files, what they try, and what must come of them."""

from dataclasses import dataclass, field

from judging import replaced
from toy_contract import KERNEL
from toy_norm import KERNEL as NORM_KERNEL

from fasttrack_validation.judge.candidate import Candidate

KERNELS = {"accumulate": KERNEL, "normalise": NORM_KERNEL}
"""The honest kernel of each toy op: what every sample is an edit of."""

# Where a sample is ruled on: reading its sources; recording; validating the plan; its machine code; interpreting; the ruling itself.
PLACES = ("source", "recorder", "plan", "compiler", "interpreter", "judge", "gpu")


@dataclass(frozen=True)
class Sample:
    """A candidate that cheats.

    `ids` are of the list in README.md (device code and plans: D-.. and P-..). It must be rejected by `check` for `reason`.
    With `reason` None what it tries is without effect: the verdict must be `accepted`, on the merits of a right kernel.
    A reason that ends in `.*` stands for its family: a wrong stride reads noise, and noise errs in every way.
    `A or B` means that the draw decides which of two shows first.
    `runs` says where; samples that need a device (`gpu`) are recorded and interpreted too, and `reason` is the device's.
    `twin` names the honest sample (HONEST) that does the like and must pass.
    """

    name: str
    ids: tuple[str, ...]
    mechanism: str
    text: str
    check: str | None
    reason: str | None
    runs: str = "interpreter"
    words: str = ""
    twin: str = "plain"
    op: str = "accumulate"
    far: bool = False
    files: dict[str, str] = field(default_factory=dict)
    guard: str | None = None
    """The switch in guards.py without which the exploit is accepted; named by one sample for each guard."""

    @property
    def rejected(self) -> bool:
        """Whether it must be rejected; otherwise it must be without effect."""
        return bool(self.check or self.reason)

    @property
    def candidate(self) -> Candidate:
        return Candidate(op=self.op, entry="kernel.py", files={"kernel.py": self.text} | self.files)

    def for_its_reason(self, reason: str) -> bool:
        """Whether a verdict with `reason` rejects it as it must."""
        if self.reason is None:
            return True
        ids = self.reason.split(" or ")
        return any(reason == one or (one.endswith(".*") and reason.startswith(one[:-1])) for one in ids)


def edit(*edits: tuple[str, str], op: str = "accumulate") -> str:
    """The honest kernel of `op` with each old text, which must be there once, replaced."""
    text = KERNELS[op]
    for old, new in edits:
        text = replaced(text, old, new)
    return text


# Anchors in the honest kernel.
LAUNCH = "def launch(ctx, buffers, axes, config):\n"
GRID = 'accumulate[(axes["rows"],)]('
CALL_TAIL = "buffers.x.stride(0), buffers.acc.stride(0), WIDTH=64,\n    )"
SLOT = "slot = tl.load(slots + row).to(tl.int64)"
PAGE = "tl.store(page + columns, new)"
OUT = "tl.store(out + row * WIDTH + columns, new.to(tl.bfloat16))"
NEW = "new = tl.load(page + columns) + tl.load(x + row * x_stride + columns).to(tl.float32) * tl.load(w + columns)"
DOUBLED = (" * tl.load(w + columns)\n", " * tl.load(w + columns) * 2\n")
"""A wrong result: what would be accepted if an attack on the judge worked."""


def at_import(code: str, *more: tuple[str, str]) -> str:
    """The honest kernel with a class body that runs `code` when the file is imported, and further edits."""
    body = "".join(f"    {line}\n" for line in code.strip("\n").split("\n"))
    return edit(("@triton.jit\n", f"class Import:\n{body}\n\n@triton.jit\n"), *more)


def in_launch(code: str, *more: tuple[str, str]) -> str:
    """The honest kernel with `code` run first in `launch`, and further edits."""
    body = "".join(f"    {line}\n" for line in code.strip("\n").split("\n"))
    return edit((LAUNCH, LAUNCH + body), *more)
