"""Where the next candidate starts from."""

import lane_fakes as fakes

from fasttrack.agents import lineage
from fasttrack.agents.protocol import Evaluation, Proposal
from fasttrack.model_dir import Bucket
from fasttrack_validation.judge.candidate import Candidate
from fasttrack_validation.judge.pack import BufferArgument, KernelPack, KernelVariant, Launch
from fasttrack_validation.judge.verdict import Status

ONE, FOUR = Bucket("h200", 8, (1, 1), "tp8-r1"), Bucket("h200", 8, (2, 4), "tp8-r4")


def evaluation(block=32, island=0, *, bad=False, text="", warps=1):
    config = {"BLOCK": block, "num_warps": warps, "flip": False}
    candidate = Candidate(op="copy", entry="k.py", files={"k.py": text}, config=config)
    judge = fakes.Judge()
    judge.status = lambda _: Status.REJECTED if bad else None
    verdict = judge.screen(candidate)
    total = None if bad else sum(fakes.microseconds(config, w) for w in ("tp8-r1", "tp8-r4"))
    return Evaluation(Proposal(candidate, "", (), island), verdict, total)


def test_the_best_differs_by_bucket():
    small, large = evaluation(16), evaluation(128)
    assert lineage.best_at([small, large], ONE) is small and lineage.best_at([small, large], FOUR) is large


def test_an_island_is_left_after_a_success_and_after_three_failures():
    assert lineage.draw([], [ONE], 1).island == 0
    assert lineage.draw([evaluation()], [ONE], 1).island == 1
    failures = [evaluation(bad=True, text=str(n)) for n in range(3)]
    for count in (1, 2):
        drawn = lineage.draw(failures[:count], [ONE], 1)
        assert drawn.island == 0 and drawn.failed is failures[count - 1]
    drawn = lineage.draw(failures, [ONE], 1)
    assert drawn.island == 1 and drawn.failed is None
    assert lineage.draw([evaluation(island=2)], [ONE], 1).island == 0


def test_islands_keep_apart_but_for_some_migration():
    history = [evaluation(16, 0), evaluation(32, 1), evaluation(64, 2)]
    strangers = 0
    for seed in range(200):
        drawn = lineage.draw(history, [ONE, FOUR], seed)
        assert drawn.island == 0 and drawn.bucket in (ONE, FOUR)
        strangers += drawn.parent is not history[0]
    # One draw in five looks at all islands, and finds a better one at four rows (half of those).
    assert 5 <= strangers <= 45


def test_a_draw_is_a_function_of_history_and_seed():
    history = [evaluation(16, 0), evaluation(32, 1)]
    assert lineage.draw(history, [ONE, FOUR], 5) == lineage.draw(list(history), [ONE, FOUR], 5)


KERNEL = '''import triton

SIZE = 4


@triton.jit
def copy(x, y):
    """{doc}"""
    {body}  # {comment}


def launch(ctx, buffers, axes, config):
    {host}
'''


def packed(*, doc="a", comment="b", host="pass", body="tl.store(y, tl.load(x))", grid=1):
    text = KERNEL.format(doc=doc, comment=comment, host=host, body=body)
    one = evaluation(text=text)
    variant = KernelVariant(
        file="k.py", function="copy", signature={"x": "*bf16"}, constexprs={}, divisible_by_16=(), options={}
    )
    launch = Launch(
        kernel="copy", grid=(grid, 1, 1), arguments={"x": BufferArgument(buffer="x", offset=0, dtype="bf16")}
    )
    plan = KernelPack(op="copy", workload="tp8-r1", candidate_digest=one.proposal.candidate.digest(), kernels={"copy": variant},
                      launches=(launch,), scratch={}, prepared={}, toolchain={})  # fmt: skip
    return Evaluation(one.proposal, one.verdict.model_copy(update={"plan": plan}), one.objective)


def test_candidates_that_come_to_the_same_kernels_are_duplicates():
    first = packed()
    same = [packed(doc="other words"), packed(comment="faster!"), packed(host="print(1)")]
    other = [packed(body="tl.store(y, tl.load(x) + 0)"), packed(grid=2)]
    history = [first, *same, *other]
    assert lineage.duplicates(history) == {1: 0, 2: 0, 3: 0}
    assert lineage.originals(history) == [first, *other]
    # Without a plan nothing is known of the kernels.
    assert lineage.duplicates([evaluation(), evaluation()]) == {}
