"""Includes of CUDA sources: the candidate's files and the toolkit's headers by plain names; no way round."""

import subprocess
import sys

import pytest
from fasttrack_validation.judge.cuda_source import check
from fasttrack_validation.judge.kernel_source import KernelSourceError, extract

HONEST = """
#include <cuda_bf16.h>
  #  include   "tile.cuh"   // ours
#include "parts/deep/tile.v2.cuh"
#include <cuda/std/utility>
// include what you use; #import nothing
/* a block comment without the words */
#define LINE \\
    0
int included = 0; // this does not include the tail
asm("ld.global.nc.L1::no_allocate.f32 %0, [%1];");
"""

REFUSED = {
    "absolute": '#include "/etc/passwd"',
    "absolute in brackets": "#include </proc/self/environ>",
    "parent": '#include "../../secret.h"',
    "parent inside": "#include <cuda/../../secret.h>",
    "current folder": '#include "./x.h"',
    "hidden": '#include ".bashrc"',
    "backslash": '#include "..\\\\x.h"',
    "computed": "#define FILE </etc/passwd>\n#include FILE",
    "next": "#include_next <stdint.h>",
    "import": '#import "/etc/passwd"',
    "module": "import x;",
    "embed": '#embed "/etc/passwd"',
    "asked for": '#if __has_include("/etc/passwd")\n#endif',
    "digraph": '%:include "/etc/passwd"',
    "spliced word": '#inc\\\nlude "/etc/passwd"',
    "spliced with blanks": '#inc\\  \nlude "/etc/passwd"',
    "spliced name": '#include "/etc\\\n/passwd"',
    "comment before": '/* */ #include "/etc/passwd"',
    "comment within": '# /* */ include "/etc/passwd"',
    "comment over lines": '# /*\n*/ include "/etc/passwd"',
    "line comment in a block comment": '# /*\n// */ include "/etc/passwd"',
    "block comment after": '#include "x.cuh" /*\n*/ int x;',
    "raw string": 'auto s = R"(/*)"; \n#include "/etc/passwd"\n// */',
    "two on a line": '#include "a.cuh" #include "/etc/passwd"',
    "trigraph": '??=include "/etc/passwd"',
    "trigraph splice": '#inc??/\nlude "/etc/passwd"',
    "two names": '#include "a.cuh" "/etc/passwd"',
}


def test_plain_includes_are_fine():
    check("k.cu", HONEST)


@pytest.mark.parametrize("name", REFUSED)
def test_every_other_way_is_refused(name):
    with pytest.raises(KernelSourceError) as caught:
        check("k.cu", "int first;\n" + REFUSED[name] + "\n")
    assert caught.value.reason in ("include", "trigraph")
    assert caught.value.file == "k.cu" and caught.value.line >= 2


HOST = "def launch(ctx, buffers, axes, config): pass\n"


def test_cuda_files_are_kept_as_they_are():
    files = {"kernel.py": HOST, "k.cu": "int x;\r\n", "parts/t.cuh": "int y;\n"}
    source = extract(files, "kernel.py")
    assert source.files == {} and source.cuda == {"k.cu": "int x;\n", "parts/t.cuh": "int y;\n"}


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"kernel.py": HOST}, "no_kernel"),
        ({"kernel.py": HOST, "t.cuh": ""}, "no_kernel"),
        ({"kernel.py": HOST, "k.cu": "\x00"}, "control_character"),
        ({"kernel.py": HOST, "k.cu": "", "t.cuh": '#include "/x"'}, "include"),
        ({"kernel.py": "import triton\n@gluon.jit\ndef k(): pass\n", "k.cu": ""}, "gluon"),
    ],
)
def test_refused_sources(files, reason):
    with pytest.raises(KernelSourceError) as caught:
        extract(files, "kernel.py")
    assert caught.value.reason == reason


def test_the_check_needs_no_compiler():
    code = "import fasttrack_validation.judge.cuda_source, sys; assert not {'cuda', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
