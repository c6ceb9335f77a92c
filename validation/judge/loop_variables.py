"""Loop variables that are read behind their loop: Python leaves the last index there, compiled code nothing."""

import ast

from .kernel_names import dotted, reject

COMPILED_LOOPS = frozenset({"range", "tl.range"})


def check(file: str, body: list[ast.stmt]) -> None:
    """Raises KernelSourceError where the statements of a kernel, already vetted, read such a variable."""
    _Reader(file).gone(body, frozenset())


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file

    def gone(self, statements: list[ast.stmt], gone: frozenset[str]) -> frozenset[str]:
        """Refuses reading a variable of a loop behind that loop: compiled, it holds nothing there (ub.poison).

        `gone` are such variables before the statements; returned are those behind them, until assigned again.
        """
        for node in statements:
            match node:
                case ast.For(target=target, iter=loop, body=body):
                    self._read(loop, gone)
                    inner = self.gone(body, gone - {target.id})
                    inner = self.gone(body, (gone | inner) - {target.id})
                    gone = gone - {target.id} | inner - {target.id}
                    if dotted(loop.func) in COMPILED_LOOPS:
                        gone |= {target.id}
                case ast.While(test=test, body=body):
                    self._read(test, gone)
                    gone |= self.gone(body, gone)
                    self._read(test, gone)
                    gone |= self.gone(body, gone)
                case ast.If(test=test, body=body, orelse=orelse):
                    self._read(test, gone)
                    gone = self.gone(body, gone) | self.gone(orelse, gone)
                case ast.AugAssign(target=target, value=value):
                    self._read(value, gone)
                    if target.id in gone:
                        self._fail_gone(target)
                case _:
                    self._read(node, gone)
                    gone -= {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        return gone

    def _read(self, node: ast.AST, gone: frozenset[str]) -> None:
        for name in ast.walk(node):
            if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Load) and name.id in gone:
                self._fail_gone(name)

    def _fail_gone(self, name: ast.Name) -> None:
        reject(self._file, name, "loop_variable", f"{name.id} is read behind its loop, where it has no value once compiled")
