"""PTX as instructions with the order in which they can run. Pure; text that is no PTX gives no instructions.

Names are those of the innermost braces that declare them, as PTX has it: inline assembly reuses labels and registers.
"""

import re
from bisect import bisect
from dataclasses import dataclass, field
from functools import cached_property

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEAD = re.compile(r"\.(entry|func)\s*(?:\([^)]*\)\s*)?([\w$]+)\s*(?:\([^)]*\))?[^{};]*\{")
_STATEMENT = re.compile(
    r"\s*(?:(?P<open>\{)|(?P<close>\})|(?P<label>[%$\w]+)\s*:(?!:)|(?P<line>\.(?:loc|file)\b[^\n]*)"
    r"|(?:@(?P<not>!?)\s*(?P<guard>[%$\w]+)\s+)?(?P<name>\.?[a-z][\w.:]*)(?P<operands>[^;]*);)"
)
_WORD = re.compile(r"[%$A-Za-z_][\w$]*")
_ENDS = frozenset(("ret", "exit", "trap"))


@dataclass(slots=True, eq=False)
class Instruction:
    """One instruction: its place in the module's order, line (from 1), mnemonic with modifiers, operands as text."""

    number: int
    line: int
    name: str
    operands: str
    guard: str = ""
    """The condition (a predicate register) under which it runs, or where `negated` does not."""
    negated: bool = False
    function: int = 0
    follows: list[int] = field(default_factory=list)
    """Numbers of the instructions that may run next in the same thread; calls go through what is called."""

    def __str__(self) -> str:
        return " ".join(f"{self.name} {self.operands}".split())


@dataclass
class Code:
    """The instructions of a module in the order of its text. `threads`: what a block has at most, by its directives."""

    instructions: list[Instruction]
    threads: int
    kernels: set[int] = field(default_factory=set)
    """Numbers of the functions that are kernels."""
    passed: set[str] = field(default_factory=set)
    """Names of what kernels pass to functions, and get back from them."""

    @cached_property
    def before(self) -> list[list[int]]:
        """For each instruction, those that a thread may have run just before it."""
        found: list[list[int]] = [[] for _ in self.instructions]
        for one in self.instructions:
            for number in one.follows:
                found[number].append(one.number)
        return found

    @cached_property
    def block(self) -> list[int]:
        """For each instruction, the number of its basic block: what always runs from its first one to its last one."""
        found: list[int] = []
        for one in self.instructions:
            before = self.before[one.number]
            starts = before != [one.number - 1] or self.instructions[one.number - 1].follows != [one.number]
            found.append(len(found) and found[-1] + starts)
        return found

    def is_of_kernel(self, load: Instruction) -> bool:
        """Whether what a load from parameters reads was given to a kernel when it was launched."""
        return load.function in self.kernels and not self.passed.intersection(_WORD.findall(load.operands))


def parts(operands: str) -> list[str]:
    """Operands at the commas outside of brackets and braces."""
    found, depth, start = [], 0, 0
    if "[" not in operands and "{" not in operands:
        return [part.strip() for part in operands.split(",")]
    for position, character in enumerate(operands):
        if character in "[{(":
            depth += 1
        elif character in "]})":
            depth -= 1
        elif character == "," and depth == 0:
            found.append(operands[start:position].strip())
            start = position + 1
    return [*found, operands[start:].strip()]


def read(ptx: str) -> Code:
    """The code of a PTX module."""
    text = _COMMENT.sub(lambda found: "\n" * found[0].count("\n") or " ", ptx)
    ends = [found.start() for found in re.finditer("\n", text)]
    code = Code([], _threads(text))
    functions, returns, calls = {}, {}, []
    for count, head in enumerate(_HEAD.finditer(text)):
        first = len(code.instructions)
        if head[1] == "entry":
            code.kernels.add(count)
        leaves = _body(text, head.end(), ends, code, count, calls)
        if len(code.instructions) > first:
            functions[head[2]] = first
            returns[head[2]] = leaves
    for number in calls:
        _enter(code.instructions, number, functions, returns)
    return code


def _threads(text: str) -> int:
    found = re.findall(r"\.(?:maxntid|reqntid)\s+(\d{1,6})(?:\s*,\s*(\d{1,6}))?(?:\s*,\s*(\d{1,6}))?", text)
    sizes = [int(x) * int(y or 1) * int(z or 1) for x, y, z in found]
    return min(max(sizes, default=1024), 1024)


class _Scope:
    """What one pair of braces declares: labels, and registers under names of their own."""

    def __init__(self, outer: "_Scope | None", mark: str) -> None:
        self.outer, self.mark = outer, mark
        self.labels: dict[str, int] = {}
        self.tables: dict[str, str] = {}
        self.renamed: dict[str, str] = dict(outer.renamed) if outer else {}

    def label(self, name: str) -> int | None:
        scope = self
        while scope:
            if name in scope.labels:
                return scope.labels[name]
            scope = scope.outer
        return None

    def targets(self, operands: str) -> list[int]:
        """Where an indirect branch may go: to the labels of its table."""
        names = _WORD.findall(operands)
        scope = self
        while scope:
            names += [label for name in names if name in scope.tables for label in _WORD.findall(scope.tables[name])]
            scope = scope.outer
        return [number for number in map(self.label, names) if number is not None]

    def own(self, operands: str) -> str:
        if not self.renamed:
            return operands
        return _WORD.sub(lambda found: self.renamed.get(found[0], found[0]), operands)


def _body(text: str, place: int, ends: list[int], code: Code, function: int, calls: list[int]) -> list[int]:
    """Reads one function's statements; gives the instructions that leave it."""
    into = code.instructions
    scope = outermost = _Scope(None, "")
    jumps, leaves, last = [], [], None
    table = ""
    while found := _STATEMENT.match(text, place):
        place = found.end()
        kind = found.lastgroup
        if kind == "open":
            scope = _Scope(scope, f"@{place}")
        elif kind == "close":
            if scope is outermost:
                break
            scope = scope.outer
        elif kind == "label":
            scope.labels[found["label"]] = len(into)
            table = found["label"]
        elif kind == "operands":
            name = found["name"]
            if name[0] == ".":
                if name == ".reg" and scope is not outermost:
                    declared = _WORD.findall(found["operands"])
                    scope.renamed.update((word, word + scope.mark) for word in declared)
                elif name == ".param":
                    code.passed.update(_WORD.findall(found["operands"]))
                elif name == ".branchtargets":
                    scope.tables[table] = found["operands"]
                continue
            guard = scope.own(found["guard"] or "")
            made = Instruction(
                len(into), bisect(ends, found.start("name")) + 1, name, scope.own(found["operands"].strip()), guard,
                bool(found["not"]), function,
            )  # fmt: skip
            into.append(made)
            if last is not None:
                last.follows.append(made.number)
            base = name.partition(".")[0]
            last = made
            if base in ("bra", "brx"):
                jumps.append((made, scope))
            elif base == "call":
                calls.append(made.number)
            elif base in _ENDS:
                leaves += [made.number] if base == "ret" else []
            if base in _ENDS or base in ("bra", "brx"):
                last = made if guard else None
    if last is not None:
        leaves.append(last.number)
    for made, at in jumps:
        made.follows += [number for number in at.targets(made.operands) if number < len(into)]
    return leaves


def _enter(code: list[Instruction], number: int, functions: dict[str, int], returns: dict[str, list[int]]) -> None:
    """A call runs a function of the module and goes on behind it; one by a register may run any of them."""
    names = _WORD.findall(code[number].operands)
    known = [name for name in names if name in functions]
    if not known and any(name[0] == "%" for name in names[:1]):
        known = list(functions)
    behind = list(code[number].follows)
    if known and not code[number].guard:
        code[number].follows.clear()
    for name in known:
        code[number].follows.append(functions[name])
        for last in returns[name]:
            code[last].follows += behind
