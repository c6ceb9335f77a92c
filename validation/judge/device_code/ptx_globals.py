"""Whether code can write to a module's .global variables, from PTX. Pure; what is not understood can write.

Compilers keep tables there (the digits of 2/pi that sin and cos need, texts that libdevice never reads), so that a kernel
has such variables says little: what can be written counts. The address of a variable, and everything computed from it,
may go into loads, address arithmetic and comparisons; anywhere else it could come to be written through.
"""

import re

_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_DECLARED = re.compile(r"(?<![\w.])\.global\s+(?P<kind>\.[^;={]*?)(?P<name>[\w$]+)\s*(?:\[\s*\d*\s*\]\s*)*(?P<value>=[^;]*)?;")
_HEAD = re.compile(r"\.(?:entry|func)\s*(?:\([^)]*\)\s*)?(?P<name>[\w$]+)[^{;]*\{")
_LINE = re.compile(r"^\s*\.(?:loc|file|version|target|address_size)\b[^\n]*$", re.MULTILINE)
_TOKEN = re.compile(r"[%$\w]+")
# Braces, labels and a predicate aside: a mnemonic and its operands.
_STATEMENT = re.compile(r"^(?:[{}\s]|[$\w]+:)*(?:@!?[%$\w]+\s+)?([a-z]\w*)[\w.:]*(.*)$", re.DOTALL)
_MOVES = frozenset(
    "mov add sub mad mul shl shr and or xor not min max selp cvt cvta prmt lop3 bfe bfi addc subc neg".split()
)
_READS = frozenset(("ld", "ldu", "setp"))


def only_read(ptx: str) -> bool:
    """Whether a PTX module has .global variables and its code can only read them. What is not in it may do anything."""
    text = _COMMENT.sub(" ", ptx)
    declared = {found["name"]: found for found in _DECLARED.finditer(text)}
    pointed = {token for found in declared.values() for token in _TOKEN.findall(found["value"] or "")}
    if not declared or pointed & set(declared) or any("attribute" in found["kind"] for found in declared.values()):
        return False
    known = {found["name"] for found in _HEAD.finditer(text)}
    text = _LINE.sub(" ", _HEAD.sub(";", _DECLARED.sub(";", text)))
    statements = [_parsed(part) for part in text.split(";") if part.strip()]
    if any(name == "call" and not known.intersection(_TOKEN.findall(operands)) for name, operands in statements):
        return False
    held = set(declared)
    while True:
        before = len(held)
        for name, operands in statements:
            if not held.intersection(_TOKEN.findall(operands)):
                continue
            if name in _MOVES:
                held.update(_TOKEN.findall(_target(operands)))
            elif name not in _READS:
                return False
        if len(held) == before:
            return True


def _parsed(part: str) -> tuple[str, str]:
    """(mnemonic without modifiers, operands); ("", everything) for what is no statement."""
    found = _STATEMENT.match(part)
    return (found[1], found[2].strip()) if found else ("", part)


def _target(operands: str) -> str:
    """The first operand: a register, or several in braces."""
    return operands.partition("}")[0] if operands.startswith("{") else operands.partition(",")[0]
