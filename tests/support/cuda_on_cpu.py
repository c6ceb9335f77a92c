"""CUDA C++ compiled for the CPU, so that a test can see what a kernel computes where there is no GPU.

Macros are expanded, then inline PTX is replaced statement by statement by what it means (`_MEANINGS`); an instruction that is
not known is an error. Every thread of every block is a fiber, so blocks may wait for each other. About a million steps of a warp a second.
Needs g++; knows what the kernels at hand use, and a single extern "C" kernel in a file.
"""

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

import torch

_CALLBACK = ctypes.CFUNCTYPE(None)
_SHIM = Path(__file__).with_name("cuda_on_cpu.h")

# First fragment found in the text of a statement -> C++, {o} outputs and {i} inputs in order.
_MEANINGS: dict[str, Callable[[list[str], list[str]], str]] = {
    "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32": lambda o, i: f"emu_mma({', '.join(o + i)});",
    **dict.fromkeys(("fence.mbarrier_init", "fence.proxy.async"), lambda o, i: ";"),
    "mbarrier.init": lambda o, i: f"emu_mbar_init({i[0]}, {i[1] if len(i) > 1 else 1});",
    "mbarrier.try_wait": lambda o, i: f"emu_wait({i[0]}, {i[1]}); {f'{o[0]} = 1;' if o else ''}",
    "mbarrier.arrive.expect_tx": lambda o, i: f"emu_expect({i[0]}, {i[1]});",
    "cp.async.bulk.shared::cluster.global": lambda o, i: f"emu_bulk({', '.join(i[:4])});",
    "mbarrier.arrive.shared": lambda o, i: f"emu_arrive({i[0]});",
    "createpolicy": lambda o, i: f"{o[0]} = 0;",
    "ldmatrix.sync.aligned.m8n8.x4.trans": lambda o, i: f"emu_ldmatrix({', '.join(o + i)}, true);",
    "ldmatrix.sync.aligned.m8n8.x4.shared": lambda o, i: f"emu_ldmatrix({', '.join(o + i)}, false);",
    "ld.shared.v4": lambda o, i: f"emu_lds({', '.join(o + i)});",
    "bar.sync 1, 512": lambda o, i: "emu_bar(1, 512);",
    "bar.sync 3": lambda o, i: f"emu_bar(3, {i[0]});",
    "bar.arrive 3": lambda o, i: f"emu_bar_arrive(3, {i[0]});",
    **{f"bar.sync {n}": lambda o, i, n=n: f"emu_bar({n}, {i[0]});" for n in (4, 5)},
    **{f"bar.arrive {n}": lambda o, i, n=n: f"emu_bar_arrive({n}, {i[0]});" for n in (4, 5)},
    "cvt.rn.bf16.f32": lambda o, i: f"{o[0]} = __float2bfloat16({i[0]}).bits;",
    "mul.rn.bf16x2": lambda o, i: f"{o[0]} = emu_multiply_two({i[0]}, {i[1]});",
    "atom.add.acq_rel.gpu": lambda o, i: f"{o[0]} = *({i[0]}); *({i[0]}) += {i[1]};",
    "ld.acquire.gpu": lambda o, i: f"yield_(); {o[0]} = *({i[0]});",
    "ld.relaxed.gpu": lambda o, i: f"yield_(); {o[0]} = *({i[0]});",
    "red.release.gpu.global.add": lambda o, i: f"*({i[0]}) += {i[1]};",
    "st.release.gpu": lambda o, i: f"*({i[0]}) = {i[1]};",
    "st.relaxed.gpu": lambda o, i: f"*({i[0]}) = {i[1]};",
    "globaltimer": lambda o, i: f"{o[0]} = 0;",
    "griddepcontrol.wait": lambda o, i: "emu_wait_for_predecessor();",
    **dict.fromkeys(("setmaxnreg", "griddepcontrol", "prefetch"), lambda o, i: ";"),
}  # fmt: skip

_DRIVER = """
static struct Arguments {{ {fields} }} arguments;
static void entry() {{
    Arguments& a = arguments;
    {kernel}({passed});
    finish();
}}
extern "C" int run({parameters}, int block_count, int shared_bytes, int backwards, void (*end_predecessor)()) {{
    arguments = {{ {names} }};
    gridDim = {{ unsigned(block_count), 1 }};
    std::vector<Block> blocks(block_count);
    std::vector<Fiber> fibers(block_count * THREADS);
    for (Block& block : blocks) {{
        block.smem = (unsigned char*)aligned_alloc(1024, (shared_bytes + 1023) / 1024 * 1024);
        memset(block.smem, 0xff, shared_bytes);
        block.warps.resize(THREADS / 32);
    }}
    for (size_t i = 0; i < fibers.size(); ++i)
        fibers[i].tid.x = i % THREADS, fibers[i].bid.x = i / THREADS, fibers[i].block = &blocks[i / THREADS];
    char* stacks = start_fibers(fibers, entry);
    predecessor_ended = !end_predecessor;
    if (end_predecessor) {{
        run_fibers(fibers, backwards, 100);  // as far as most get on without it
        end_predecessor(), predecessor_ended = 1;
    }}
    const size_t left = run_fibers(fibers, backwards, 200000);
    release_stacks(stacks, fibers.size());
    for (Block& block : blocks) free(block.smem);
    return left;
}}
"""


def compiled(
    texts: Mapping[str, str], file: str, constants: Mapping[str, bool | int | float], threads: int, directory: Path
) -> Callable[..., None]:
    """run(*arguments, blocks=..., shared_bytes=..., backwards=False): the kernel of `file` on CPU tensors and numbers.

    `end_predecessor`, if given: the launch is programmatic and begins beside another one, which ends when this is called.
    `texts`: path -> source; includes are found beside `file`. Raises RuntimeError where the kernel never ends.
    """
    macros = [
        f"-D{name}={f'{value!r}f' if isinstance(value, float) else int(value)}" for name, value in constants.items()
    ]
    source = _expanded(re.sub(r"#pragma.*", "", _inlined(texts, file, set())), macros)
    source = re.sub(
        r"extern __shared__ __align__\(\d+\) unsigned char memory\[\];", "unsigned char* memory = cur->block->smem;", source
    )
    # What a function keeps in shared memory beside that.
    source = re.sub(r"__shared__ (\w+) (\w+);", r"\1& \2 = emu_shared<\1, __COUNTER__>();", source)
    found = re.search(
        r'extern "C" __global__ void __launch_bounds__\([^)]*\)\s+(\w+)\((.*?)\)\s+\{', source, re.DOTALL
    )
    parameters = [" ".join(parameter.split()) for parameter in found[2].split(",")]
    names = [parameter.split()[-1].lstrip("*") for parameter in parameters]
    source = source.replace(found[0], f"static void {found[1]}({', '.join(parameters)}) {{")
    driver = _DRIVER.format(
        kernel=found[1], fields=" ".join(f"{p};" for p in parameters), parameters=", ".join(parameters),
        passed=", ".join(f"a.{name}" for name in names), names=", ".join(names),
    )  # fmt: skip
    path, library = directory / "kernel.cpp", directory / "kernel.so"
    path.write_text(f'#include "{_SHIM}"\n{_without_ptx(source)}{driver}')
    command = ["g++", "-O2", "-std=c++17", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", f"-DTHREADS={threads}"]
    subprocess.run([*command, str(path), "-o", str(library)], check=True, capture_output=True, text=True)
    function = ctypes.CDLL(str(library)).run

    def run(
        *arguments, blocks: int, shared_bytes: int, backwards: bool = False, end_predecessor: Callable[[], None] | None = None
    ) -> None:
        ends = _CALLBACK(end_predecessor) if end_predecessor else _CALLBACK()
        left = function(*map(_argument, arguments), blocks, shared_bytes, int(backwards), ends)
        if left:
            raise RuntimeError(f"{left} threads wait for ever")

    return run


def _argument(value):
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return (ctypes.c_bool if isinstance(value, bool) else ctypes.c_int)(value)


def _inlined(texts: Mapping[str, str], file: str, seen: set[str]) -> str:
    seen.add(file)

    def include(match: re.Match) -> str:
        name = match[1]
        if name[0] == "<":
            return ""
        path = f"{file.rpartition('/')[0]}/{name.strip(chr(34))}"
        return "" if path in seen else _inlined(texts, path, seen)

    return re.sub(r"#include (<[^>]*>|\"[^\"]*\")", include, texts[file])


def _expanded(source: str, macros: list[str]) -> str:
    command = ["g++", "-E", "-P", "-undef", "-x", "c++", *macros, "-"]
    return subprocess.run(command, input=source, check=True, capture_output=True, text=True).stdout


def _without_ptx(source: str) -> str:
    made, at = "", 0
    for match in re.finditer(r"asm(?: volatile)?\s*\(", source):
        end, depth, quoted = match.end(), 1, False
        while depth:
            quoted ^= source[end] == '"' and source[end - 1] != "\\"
            if not quoted:
                depth += {"(": 1, ")": -1}.get(source[end], 0)
            end += 1
        made += f"{source[at : match.start()]}{{ {_meaning(source[match.end() : end - 1])} }}"
        at = end + (source[end] == ";")  # a block is a statement without it
    return made + source[at:]


def _meaning(statement: str) -> str:
    text, sections = _sections(statement)
    operands = [_operands(section) for section in sections[:2]]
    for known, meaning in _MEANINGS.items():
        if known in text:
            return meaning(*operands, *[[]] * (2 - len(operands)))
    raise ValueError(f"what does this mean on a CPU? {text}")


def _sections(statement: str) -> tuple[str, list[str]]:
    """The instructions, and what stands behind each colon: outputs, inputs, clobbers."""
    text = ""
    while match := re.match(r'\s*"((?:[^"\\]|\\.)*)"', statement):
        text += match[1]
        statement = statement[match.end() :]
    sections, depth, quoted = [""], 0, False
    for character in statement:
        quoted ^= character == '"'
        depth += 0 if quoted else {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == ":" and not depth and not quoted:
            sections.append("")
        else:
            sections[-1] += character
    return text, sections[1:]


def _operands(section: str) -> list[str]:
    found, at = [], 0
    while match := re.compile(r'"[^"]*"\s*\(').search(section, at):
        at, depth = match.end(), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(section[at], 0)
            at += 1
        found.append(section[match.end() : at - 1])
    return found
