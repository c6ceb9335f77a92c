"""Bulk copies that may overtake reads: PTX written by hand, with one thing changed, and what compilers make."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fasttrack_validation.judge.device_code.refills import unfenced_refills

FENCE = "fence.proxy.async.shared::cta;"
HEAD = """
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 128 .b8 memory[];
.visible .entry k(.param .u64 k_param_0, .param .u32 k_param_1)
.maxntid 96, 1, 1
{
.reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<9>;
.shared .align 8 .b8 full[16]; .shared .align 8 .b8 empty[16]; .shared .align 16 .b8 ring[256]; .shared .b8 list[64];
ld.param.u64 %rd1, [k_param_0];
ld.param.u32 %r1, [k_param_1];
mov.u32 %r2, %tid.x;
"""
WAIT = "{ .reg .pred p; again: mbarrier.try_wait.parity.shared::cta.b64 p, [BARRIER], %r9; @!p bra again; }\n"
COPY = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [TO], [%rd1], 128, [full];\n"


def wait(barrier):
    return WAIT.replace("BARRIER", barrier)


def copy(to):
    return COPY.replace("TO", to)


ARRIVE = "mbarrier.arrive.shared::cta.b64 _, [empty];\n"


def ring(read="ld.shared.u32 %r5, [%r8];\n", before="", behind=FENCE, arrive=ARRIVE, release=None, refill=""):
    """Two warps: one fills two stages by turns, the other reads them."""
    release = wait("empty") if release is None else release
    return HEAD + f"""
setp.ge.u32 %p1, %r2, 32;
@%p1 bra $consume;
mov.u32 %r3, 0;
$produce:
{release}{refill}
and.b32 %r31, %r3, 1;
shl.b32 %r32, %r31, 7;
mov.u32 %r33, ring;
add.s32 %r7, %r33, %r32;
{copy("%r7")}
add.s32 %r3, %r3, 1;
setp.lt.u32 %p2, %r3, %r1;
@%p2 bra $produce;
ret;
$consume:
mov.u32 %r4, 0;
$again:
{wait("full")}
and.b32 %r34, %r4, 1;
shl.b32 %r35, %r34, 7;
mov.u32 %r36, ring;
add.s32 %r8, %r36, %r35;
{before}{read}{behind}
{arrive}
add.s32 %r4, %r4, 1;
setp.lt.u32 %p3, %r4, %r1;
@%p3 bra $again;
ret;
}}
"""


def lines(ptx, *words):
    return [number for number, line in enumerate(ptx.splitlines(), 1) if any(word in line for word in words)]


def test_a_read_that_is_handed_over_is_named_with_its_lines():
    text = ring(behind="")
    (found,) = unfenced_refills(text)
    assert [found.read[0]] == lines(text, "ld.shared.u32") and found.read[1] == "ld.shared.u32 %r5, [%r8]"
    assert [found.handed[0]] == lines(text, "mbarrier.arrive") and [found.copy[0]] == lines(text, "cp.async.bulk")
    assert f"line {found.read[0]} " in str(found) and f"line {found.handed[0]} " in str(found)


READS = {
    "16 bytes": "ld.shared.v4.u32 {%r10, %r11, %r12, %r13}, [%r8];\n",
    "ldmatrix": "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r8];\n",
    "volatile": "ld.volatile.shared.u32 %r5, [%r8+4];\n",
    "of another block": "mapa.shared::cluster.u32 %r14, %r8, 1;\nld.shared::cluster.u32 %r5, [%r14];\n",
    "generic": "cvt.u64.u32 %rd5, %r8;\ncvta.shared.u64 %rd6, %rd5;\nld.u32 %r5, [%rd6+8];\n",
    "atomic": "atom.shared.add.u32 %r5, [%r8], 1;\n",
    "at an address that is not known": "ld.shared.u32 %r5, [%r1];\n",
}
NO_READS = {
    "another variable": "ld.shared.u32 %r5, [list+4];\n",
    "global": "ld.global.u32 %r5, [%rd1];\n",
    "generic, from a kernel's parameter": "ld.u32 %r5, [%rd1+16];\n",
    "behind the ring": "ld.shared.u32 %r5, [ring+256];\n",
    "by the copies' own proxy": (
        "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%f1, %f2, %f3, %f4}, %rd2, %rd3, 1, 1, 1, 0, 0;\n"
        "cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r8], 128;\n"
    ),
    "by the copy of another kind": "cp.async.ca.shared.global [%r8], [%rd1], 16;\n",
}  # fmt: skip


@pytest.mark.parametrize("name", READS)
def test_every_read_through_the_generic_proxy_counts(name):
    assert len(unfenced_refills(ring(read=READS[name], behind=""))) == 1
    assert unfenced_refills(ring(read=READS[name])) == ()


@pytest.mark.parametrize("name", NO_READS)
def test_what_reads_nothing_that_a_copy_writes_does_not_count(name):
    assert unfenced_refills(ring(read=NO_READS[name], behind="")) == ()


ORDERED = {
    "fence behind the read": ring(),
    "of all spaces": ring(behind="fence.proxy.async;"),
    "release alone": ring(behind="fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster;"),
    "fence by the producer, behind its wait": ring(behind="", refill=FENCE),
    "nobody is told": ring(behind="", arrive=""),
    "the producer waits for nothing": ring(behind="", release=""),
    "another barrier is told": ring(behind="", arrive="mbarrier.arrive.shared::cta.b64 _, [empty+8];\n"),
    "one lane fences for its warp": ring(
        behind="bar.warp.sync -1;\nsetp.ne.s32 %p4, %r2, 32;\n@%p4 bra $over;\n" + FENCE,
        arrive="mbarrier.arrive.shared::cta.b64 _, [empty];\n$over:\n",
    ),
}  # fmt: skip
UNORDERED = {
    "fence in front of the read": ring(before=FENCE, behind=""),
    "fence behind the arrival": ring(behind="mbarrier.arrive.shared::cta.b64 _, [empty];\n" + FENCE, arrive=""),
    "fence of another space": ring(behind="fence.proxy.async.global;"),
    "fence of another proxy": ring(behind="fence.proxy.alias;"),
    "fence of the same proxy": ring(behind="fence.acq_rel.cta;"),
    "fence for some threads": ring(behind="setp.lt.s32 %p4, %r2, 40;\n@%p4 bra $over;\n" + FENCE + "\n$over:\n"),
    "fence under a condition": ring(behind="setp.lt.s32 %p4, %r2, 40;\n@%p4 " + FENCE),
    "acquire alone": ring(behind="fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster;"),
    "fence by the producer, in front of its wait": ring(behind="", release=FENCE + wait("empty")),
    "arrival at a barrier that is not known": ring(behind="", arrive="mbarrier.arrive.shared::cta.b64 _, [%r1];\n"),
    "a named barrier": ring(behind="", arrive="bar.arrive 2, 64;\n", release="bar.sync 2, 64;\n"),
    "a barrier of the cluster": ring(behind="", arrive="barrier.cluster.arrive;\n", release="barrier.cluster.wait;\n"),
}


@pytest.mark.parametrize("name", ORDERED)
def test_what_is_ordered_passes(name):
    assert unfenced_refills(ORDERED[name]) == ()


@pytest.mark.parametrize("name", UNORDERED)
def test_what_is_not_ordered_is_found(name):
    assert unfenced_refills(UNORDERED[name])


def alone(body):
    """One warp that copies and reads."""
    return HEAD + body + "ret;\n}\n"


READ = "ld.shared.u32 %r5, [ring];\n"
LOOP = "$loop:\n{}add.s32 %r3, %r3, 1;\nsetp.lt.u32 %p2, %r3, %r1;\n@%p2 bra $loop;\n"
ONCE = copy("ring") + wait("full") + READ


def test_a_thread_that_fills_again_what_it_read():
    assert unfenced_refills(alone(ONCE)) == ()
    assert unfenced_refills(alone(LOOP.format(ONCE)))
    assert unfenced_refills(alone(LOOP.format(ONCE + FENCE + "\n"))) == ()
    assert unfenced_refills(alone(ONCE + copy("ring")))
    assert unfenced_refills(alone(ONCE + "bar.sync 0;\n" + copy("ring")))
    assert unfenced_refills(alone(ONCE + FENCE + "bar.sync 0;\n" + copy("ring"))) == ()
    assert unfenced_refills(alone(ONCE + copy("ring+128"))) == ()


def test_what_no_copy_has_brought_is_not_handed_over():
    """Shared memory that was something else before: nothing is on its way that a thread waited for."""
    assert unfenced_refills(alone(READ + "bar.sync 0;\n" + LOOP.format(copy("ring")))) == ()


def test_the_last_round_releases():
    """A loop that fences when a stage was read for the last time has fenced when it ends."""
    last = "setp.lt.u32 %p4, %r4, 8;\n@%p4 bra $on;\n" + FENCE + "\n$on:\n"
    body = LOOP.format(READ + last)
    assert unfenced_refills(alone(copy("ring") + wait("full") + body + copy("ring"))) == ()
    assert unfenced_refills(alone(copy("ring") + wait("full") + body.replace(FENCE, "") + copy("ring")))


def test_each_warp_has_a_ring_of_its_own():
    """Told apart by the number of the warp: what another one is told about says nothing of this one's stages."""
    own = "shr.u32 %r20, %r2, 5;\nmul.lo.s32 %r21, %r20, {};\nmov.u32 %r22, memory;\nadd.s32 %r8, %r22, %r21;\n"
    told = "mbarrier.arrive.shared::cta.b64 _, [empty];\n" + wait("empty")
    used = copy("%r8") + wait("full") + "ld.shared.u32 %r5, [%r8+124];\n"
    specialised = "@%p1 bra $other;\n" + used + told + "ret;\n$other:\n" + wait("empty") + LOOP.format(copy("%r8"))
    assert unfenced_refills(alone(own.format(128) + specialised)) == ()
    assert unfenced_refills(alone(own.format(64) + specialised))


def test_functions_are_followed():
    called = ".func reads(.param .b32 reads_param_0)\n{\n.reg .b32 %r<3>;\nld.param.u32 %r1, [reads_param_0];\n" \
             "ld.shared.u32 %r2, [%r1];\nBEHIND\nret;\n}\n"  # fmt: skip
    call = "{ .param .b32 param0;\nst.param.b32 [param0], %r8;\ncall.uni reads, (param0);\n}\n"
    text = ring(read=call, behind="")
    assert unfenced_refills(text.replace(".visible", called.replace("BEHIND", "") + ".visible"))
    assert unfenced_refills(text.replace(".visible", called.replace("BEHIND", FENCE) + ".visible")) == ()
    releases = ".func releases()\n{\n" + FENCE + "\nret;\n}\n"
    assert unfenced_refills(ring(behind="call.uni releases;\n").replace(".visible", releases + ".visible")) == ()
    assert unfenced_refills(ring(behind="@%p1 call.uni releases;\n").replace(".visible", releases + ".visible"))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32))
def test_what_is_no_ptx_is_no_error(seed):
    """Words of a kernel in any order, and kernels with a part left out."""
    draw = random.Random(seed)
    text = draw.choice((ring(), ring(behind=""), alone(LOOP.format(ONCE))))
    pieces = re.split(r"(\s+|[;,])", text)
    for _ in range(draw.randrange(1, 40)):
        one, other = draw.randrange(len(pieces)), draw.randrange(len(pieces))
        pieces[one] = draw.choice((pieces[other], "", "{", "}", "%r3", "-1"))
    assert isinstance(unfenced_refills("".join(pieces)), tuple)
    assert unfenced_refills("cp.async.bulk" + "".join(pieces)[len(HEAD) :]) == ()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_fence_on_the_way_decides_wherever_other_instructions_stand(data):
    """Between the read and the arrival, in any order with what orders nothing, it is the fence alone that counts."""
    idle = ["bar.warp.sync -1;", "fence.acq_rel.cta;", "mov.u32 %r30, 5;", "st.shared.u32 [list], %r5;"]
    between = data.draw(st.lists(st.sampled_from(idle), max_size=6))
    place = data.draw(st.integers(0, len(between)))
    assert unfenced_refills(ring(behind="\n".join(between)))
    assert unfenced_refills(ring(behind="\n".join([*between[:place], FENCE, *between[place:]]))) == ()


TRITON = """
import triton
import triton.language as tl

@triton.jit
def product(a, b, c, M, N, K, SCALED: tl.constexpr, APART: tl.constexpr):
    a = tl.make_tensor_descriptor(a, [M, K], [K, 1], [128, 64])
    b = tl.make_tensor_descriptor(b, [K, N], [N, 1], [64, 128])
    c = tl.make_tensor_descriptor(c, [M, N], [N, 1], [128, 128])
    m, n = tl.program_id(0) * 128, tl.program_id(1) * 128
    sum = tl.zeros((128, 128), tl.float32)
    for k in tl.range(0, K, 64, warp_specialize=APART):
        x = a.load([m, k])
        if SCALED:
            x = (x.to(tl.float32) * 2).to(tl.bfloat16)
        sum = tl.dot(x, b.load([k, n]), sum)
    c.store([m, n], sum.to(tl.bfloat16))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("scaled", "apart", "reads"), [(False, False, ""), (True, False, ""), (False, True, ""),
                                                        (True, True, "ldmatrix.sync.aligned")])  # fmt: skip
def test_what_triton_makes_of_a_pipelined_product(lab, compiled, scaled, apart, reads):
    """Triton 3.9 fences where one group of warps copies and reads. Where they are apart it does not: wgmma needs none.

    A tile that the reading warps work on themselves they read with ldmatrix, and tell the others by a barrier alone.
    """
    types = {"a": "*bf16", "b": "*bf16", "c": "*bf16", "M": "i32", "N": "i32", "K": "i32"}
    kernel = lab.variant("product", types, {"SCALED": scaled, "APART": apart})
    (code,) = compiled(kernel, 90, TRITON).codes
    found = unfenced_refills(code.ptx)
    assert "cp.async.bulk.tensor.2d.shared::cta" in code.ptx and "wgmma.mma_async" in code.ptx
    assert all(refill.read[1].startswith(reads) for refill in found) and bool(found) is bool(reads)
    if scaled and not apart:
        assert unfenced_refills(code.ptx.replace("fence.proxy.async.shared::cta;", ""))
