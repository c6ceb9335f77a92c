"""The exchange's CUDA C++ on the CPU: all threads of all ranks as fibers of one thread (see cuda_on_cpu.py).

Ranks run in turns, forwards or backwards, sequentially consistent: it shows what is sent, summed and waited for, not what a
weaker memory may do. The clock ticks once a look, so waits end.
"""

import ctypes
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from unittest import mock

import cuda_on_cpu
import torch

_MEANINGS = {
    "st.relaxed.sys.global.b128": lambda o, i: f"emu_put({', '.join(i)});",
    "ld.relaxed.sys.global.b128": lambda o, i: f"yield_(); emu_get({', '.join(o + i)});",
    "barrier.cluster.arrive": lambda o, i: "emu_cluster_arrive();",
    "barrier.cluster.wait": lambda o, i: "emu_cluster_wait();",
    "mapa.shared::cluster": lambda o, i: f"{o[0]} = {i[0]} | (1 + {i[1]}) << 24;",
    "st.shared::cluster.f32": lambda o, i: f"emu_store({', '.join(i)});",
    "globaltimer": lambda o, i: f"{o[0]} = ++emu_time;",
}

_SHIM = """
#define CLUSTER 8
static inline __nv_bfloat16 __float2bfloat16_rn(float value) { return __float2bfloat16(value); }
static inline uint16_t __bfloat16_as_ushort(__nv_bfloat16 value) { return value.bits; }
static inline int atomicCAS(int* at, int old, int fresh) { int found = *at; if (found == old) *at = fresh; return found; }
static inline int atomicExch_system(int* at, int fresh) { int found = *at; *at = fresh; return found; }
static uint64_t emu_time;
struct Group { int arrived = 0; long generation = 0; };
static std::vector<Block> emu_blocks;
static std::vector<Group> emu_groups;
static std::vector<long> emu_turn;  // of each fiber: the barrier that it arrived at
static std::vector<Fiber> emu_fibers;
static inline int emu_block() { return cur->block - emu_blocks.data(); }
static inline Group& emu_group() { return emu_groups[emu_block() / CLUSTER]; }
static inline void emu_put(void* at, uint64_t low, uint64_t high) { uint64_t* to = (uint64_t*)at; to[0] = low, to[1] = high; }
static inline void emu_get(uint64_t& low, uint64_t& high, const void* at) {
    const uint64_t* from = (const uint64_t*)at;
    low = from[0], high = from[1];
}
static inline void emu_cluster_arrive() {
    Group& group = emu_group();
    emu_turn[cur - emu_fibers.data()] = group.generation;
    if (++group.arrived == CLUSTER * THREADS) group.arrived = 0, ++group.generation;
}
static inline void emu_cluster_wait() {
    while (emu_group().generation == emu_turn[cur - emu_fibers.data()]) yield_();
}
static inline void emu_store(uint32_t address, float value) {
    Block& there = emu_blocks[emu_block() / CLUSTER * CLUSTER + (address >> 24) - 1];
    memcpy(there.smem + (address & 0xffffff), &value, 4);
}
"""

_DRIVER = """
struct Arguments {{ {fields} }};
static Arguments* emu_arguments;
static int emu_blocks_of_a_rank;
static void entry() {{
    Arguments& a = emu_arguments[emu_block() / emu_blocks_of_a_rank];
    {kernel}({passed});
    finish();
}}
extern "C" long run(Arguments* arguments, int ranks, int rows, int backwards) {{
    emu_arguments = arguments, emu_blocks_of_a_rank = CLUSTER * rows;
    const int count = ranks * CLUSTER * rows;
    emu_blocks = std::vector<Block>(count);
    emu_groups = std::vector<Group>(ranks * rows);
    emu_fibers = std::vector<Fiber>(count * THREADS);
    emu_turn = std::vector<long>(emu_fibers.size());
    for (Block& block : emu_blocks) {{
        block.smem = (unsigned char*)aligned_alloc(1024, 4096);
        memset(block.smem, 0xff, 4096);
        block.warps.resize(THREADS / 32);
    }}
    for (size_t i = 0; i < emu_fibers.size(); ++i) {{
        Fiber& f = emu_fibers[i];
        const int block = i / THREADS;
        f.tid = {{unsigned(i % THREADS), 0}}, f.bid = {{unsigned(block % CLUSTER), unsigned(block / CLUSTER % rows)}};
        f.block = &emu_blocks[block];
    }}
    char* stacks = start_fibers(emu_fibers, entry);
    const size_t left = run_fibers(emu_fibers, backwards, 20000);
    release_stacks(stacks, emu_fibers.size());
    for (Block& block : emu_blocks) free(block.smem);
    return left;
}}
"""


class Context:
    """A `ctx` for ranks on the CPU: what each of them launches is kept, and `run` runs it for all of them at once.

    `spoil` changes the source first: for faults that have to be found.
    """

    def __init__(self, texts: Mapping[str, str], folder: Path, spoil: Callable[[str], str] = lambda text: text) -> None:
        self._texts, self._folder, self._spoil = texts, folder, spoil
        self._built: dict[str, tuple] = {}
        self._waiting: list[tuple[str, dict, int, Sequence]] = []

    def scalar(self, type: str, value: int) -> int:
        return value

    def cuda(self, file: str, kernel: str, *, threads: int, constants: Mapping = {}):
        def launch(grid):
            return lambda *arguments: self._waiting.append((f"{kernel} {sorted(constants.items())}", dict(constants), grid[1], arguments))

        self._file, self._threads = file, threads
        return type("Kernel", (), {"__getitem__": lambda _, grid: launch(grid)})()

    def run(self, *, backwards: bool = False) -> None:
        """The launches since the last run, one a rank: the same kernel for the same rows."""
        waiting, self._waiting = self._waiting, []
        key, constants, rows, _ = waiting[0]
        assert all(one[0] == key for one in waiting)
        rows = max(one[2] for one in waiting)
        function, structure = self._built.setdefault(key, None) or self._build(key, constants)
        every = (structure * len(waiting))(*(structure(*map(_value, arguments)) for *_, arguments in waiting))
        if left := function(every, len(waiting), rows, int(backwards)):
            raise RuntimeError(f"{left} threads wait for ever")

    def _build(self, key: str, constants: Mapping) -> tuple:
        kernel = key.split()[0]
        source = self._spoil(re.sub(r"#pragma.*", "", cuda_on_cpu._inlined(self._texts, self._file, set())))
        source = re.sub(r"__cluster_dims__\([^)]*\)|__launch_bounds__\([^)]*\)", "", source)
        # Shared memory: every block's lies at the same place of its own.
        place = 0
        for type_, name in re.findall(r"__shared__ ([^;]*) (\w+);", source):
            source = source.replace(f"__shared__ {type_} {name};", f"auto& {name} = *({type_}*)(cur->block->smem + {place});")
            place += 1024
        found = re.search(rf'extern "C" __global__ void\s+{kernel}\((.*?)\) \{{', source, re.DOTALL)
        parameters = [" ".join(parameter.split()) for parameter in found[1].split(",")]
        names = [parameter.split()[-1].lstrip("*") for parameter in parameters]
        with mock.patch.object(cuda_on_cpu, "_MEANINGS", _MEANINGS | cuda_on_cpu._MEANINGS | _MEANINGS):
            body = cuda_on_cpu._without_ptx(source)
        driver = _DRIVER.format(
            kernel=kernel, fields=" ".join(f"{p};" for p in parameters), passed=", ".join(f"a.{name}" for name in names)
        )
        path = self._folder / f"{kernel}{len(self._built)}"
        path.with_suffix(".cpp").write_text(f'#include "{cuda_on_cpu._SHIM}"\n{_SHIM}{body}{driver}')
        macros = [f"-D{name}={f'{value!r}f' if isinstance(value, float) else value}" for name, value in constants.items()]
        command = ["g++", "-O2", "-std=c++17", "-fno-strict-aliasing", "-w", "-shared", "-fPIC", f"-DTHREADS={self._threads}"]
        subprocess.run([*command, *macros, path.with_suffix(".cpp"), "-o", path.with_suffix(".so")], check=True)
        kinds = [ctypes.c_uint64 if "*" in one or "long long" in one else ctypes.c_int for one in parameters]
        structure = type("Arguments", (ctypes.Structure,), {"_fields_": list(zip(names, kinds, strict=True))})
        function = ctypes.CDLL(str(path.with_suffix(".so"))).run
        function.restype = ctypes.c_long
        self._built[key] = (function, structure)
        return self._built[key]


def _value(argument) -> int:
    return argument.data_ptr() if isinstance(argument, torch.Tensor) else int(argument)
