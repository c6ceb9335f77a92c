"""Figures in texts: what is found, what is not a figure, and what stands behind one."""

import json
import subprocess
from pathlib import Path

import claim_records as records
import pytest

from fasttrack_validation.claims.check import check
from fasttrack_validation.claims.prose import remarks
from fasttrack_validation.claims.render import markdown
from fasttrack_validation.claims.typed import typed

CLAIMS = {
    "range": check(records.parsed({**records.whole_range(), "id": "range"})),
    "users": check(records.parsed({**records.twice_the_gpus(), "id": "users"})),
    "simple": check(records.parsed({**records.simple(1.73), "id": "simple"})),
}


def found(text, claims=CLAIMS):
    return [(remark.rule, remark.line) for remark in remarks(text, claims)]


@pytest.mark.parametrize(
    ("line", "kinds"),
    [
        ("decode is 1.73x faster", ["ratio"]),
        ("decode is 1.73× faster", ["ratio"]),
        ("2x Faster decode", ["ratio"]),
        ("a gain of 1.73X", ["ratio"]),
        ("from 1.62x to 1.71x", ["ratio", "ratio"]),
        ("1.36-1.75x in decode", ["ratio", "ratio"]),
        ("x1.8 in throughput", ["ratio"]),
        ("a 2-fold gain", ["ratio"]),
        ("3 times faster than stock", ["ratio"]),
        ("a speed-up of 1.4", ["ratio"]),
        ("Speedup: 1.4", ["ratio"]),
        ("73% faster", ["percent"]),
        ("latency drops by 30 %", ["percent"]),
        ("twice as fast as before", ["words"]),
        ("it doubles throughput", ["words"]),
        ("an order of magnitude faster", ["words"]),
        ("842 tok/s", ["rate"]),
        ("1,234.5 tokens per second", ["rate"]),
        ("1.2k tok/s/user", ["rate"]),
        ("Output token throughput (tok/s): 842.1", ["rate"]),
        ("65 TPS at batch 1", ["rate"]),
        ("403.2 against 223.7 tok/s/user", ["rate", "rate"]),
    ],
)
def test_figures(line, kinds):
    assert [one.kind for one in typed(line)] == kinds


@pytest.mark.parametrize(
    "line",
    [
        "weights of 6144 x 7168", "tiles of 16x16", "measured on 8x H200 and 72x GB300", "16× RTX PRO 6000",
        "x86_64 and sm_90", "0x1F", "version 1.2.3", "in 3 of 4 cells", "at batch 16 to 64", "TP8 and TP16",
        "https://example.org/1.8x/faster", "10 times, in turns", "<!-- 1.8x -->", "see [the log](2x.txt)",
        "takes 2 times the memory", "the time of the best, x 0.8", "1920 MHz", "acceptance length 4.2", "7.13 ms a step", "50 % of the time",
    ],
)  # fmt: skip
def test_what_is_no_figure(line):
    assert list(typed(line)) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Decode is 1.73x faster.", [("prose.unbacked", 1)]),
        ("Fine.\n\nDecode is 1.73x faster [claim:simple].", []),
        ("Decode is 1.7x faster [claim:simple].", []),
        ("Decode is 73 % faster [claim:simple].", []),
        ("Decode is 2x faster [claim:simple].", [("prose.mismatch", 1)]),
        ("Decode is 1.80x faster [claim:simple].", [("prose.mismatch", 1)]),
        ("It is twice as fast [claim:simple].", [("prose.mismatch", 1)]),
        ("173 tok/s/user against 100 tok/s/user [claim:simple]", []),
        ("842 tok/s [claim:simple]", [("prose.mismatch", 1)]),
        ("1.73x [claim:other]", [("prose.unknown_claim", 1)]),
        ("1.73x\n\n[claim:simple] in another paragraph", [("prose.unbacked", 1)]),
        ("two lines,\n1.73x,\none paragraph [claim:simple]", []),
        # What is suppressed is not derived: per user it may not be written, per GPU it may.
        ("1.80x per user [claim:users]", [("prose.mismatch", 1)]),
        ("0.90x per GPU [claim:users]", []),
        ("403.2 tok/s/user on 16 GPUs [claim:users]", []),
        ("Up to 1.71x [claim:range]", [("prose.best_alone", 1)]),
        ("It is 1.71x [claim:range]", [("prose.best_alone", 1)]),
        ("1.62x to 1.71x [claim:range]", [("prose.best_alone", 1)]),
        ("1.66x [claim:range]", []),
        ("1.62x [claim:range]", []),
        ("1.62x at worst, 1.66x in the geometric mean, up to 1.71x [claim:range]", []),
        ("up to 1.71x", [("prose.unbacked", 1)]),
        ("| case | tok/s |\n| --- | --- |\n| a | 842 |\n| b | **488** |", [("prose.unbacked", 3), ("prose.unbacked", 4)]),
        ("| case | speed-up |\n| --- | ---: |\n| a | 1.4 |", [("prose.unbacked", 3)]),
        ("| case | rows |\n| --- | ---: |\n| a | 14 |", []),
        ("```\nOutput throughput: 842 tok/s\n```", [("prose.unbacked", 2)]),
        ("```python\nx = '842 tok/s'\n```", []),
        ("~~~text\n1.7x\n~~~\n", [("prose.unbacked", 2)]),
    ],
)  # fmt: skip
def test_texts(text, expected):
    assert found(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.73x in step time [claim:forced]", [("prose.scope", 1)]),
        ("1.73x in step time, acceptance forced, single stream [claim:forced]", []),
        ("1.54x [claim:decode]", [("prose.scope", 1)]),
        ("1.54x, decode only [claim:decode]", []),
        ("1.50x [claim:provisional]", [("prose.scope", 1)]),
        ("1.50x, provisional [claim:provisional]", []),
        ("1.50x of one rank, decode-only [claim:shard]", []),
        ("1.50x in decode [claim:shard]", [("prose.scope", 1)]),
    ],
)
def test_a_figure_carries_its_scope(text, expected):
    shard = records.simple(scope="rank_shard", collectives=[], timed__phase="decode", workload__context=1024)
    data = {
        "forced": records.forced_single_stream(), "decode": records.decode_only(), "shard": shard,
        "provisional": records.simple(validity__accuracy=None),
    }  # fmt: skip
    claims = {name: check(records.parsed({**one, "id": name})) for name, one in data.items()}
    assert found(text, claims) == expected


def test_a_rendered_claim_stands_as_it_was_rendered():
    block = markdown(CLAIMS["simple"])
    assert found(f"Before.\n\n{block}\nAfter.") == []
    assert found(f"Before.\n\n{block.replace('1.73x', '1.93x')}\nAfter.") == [("prose.altered", 3)]
    assert found(block.replace("<!-- end of claim -->\n", "")) == [("prose.altered", 1)]
    assert found(block, {}) == [("prose.unknown_claim", 1)]
    assert found(block + "\n1.73x") == [("prose.unbacked", len(block.splitlines()) + 2)]


def test_a_claim_that_is_withheld_backs_nothing():
    data = {**records.simple(1.73, hardware__driver=None), "id": "open"}
    claims = {"open": check(records.parsed(data))}
    assert found("1.73x [claim:open]", claims) == [("prose.mismatch", 1)]
    # Absolute values are shown, so they may be written.
    assert found("173 tok/s/user [claim:open]", claims) == []


def test_an_invalid_arm_backs_not_even_its_own_figure():
    claims = {"bad": check(records.parsed({**records.simple(result__failed=1), "id": "bad"}))}
    assert found("150 tok/s/user [claim:bad]", claims) == [("prose.mismatch", 1)]


def test_a_claim_in_a_text_is_data():
    data = json.dumps({**records.simple(), "title": "Specialised decode"})
    assert found(f"```claim\n{data}\n```\n") == []


def test_our_own_texts():
    """What this repository says of itself. Pages show what is wrong; reports are drawn from evidence, which the gate checks."""
    root = Path(__file__).parents[3]
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=root, capture_output=True, check=True).stdout
    names = [
        name
        for name in listed.decode().split("\0")
        if name and not {"pages", "golden", "evidence", "report"} & set(Path(name).parts)
    ]
    assert len(names) > 20
    assert [(name, one) for name in names for one in remarks((root / name).read_text("utf-8"), {})] == []
