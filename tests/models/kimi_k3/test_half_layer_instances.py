"""Every instance of a layer's first half that the dispatch tables lead to on an H200: as many registers as its threads have."""

import tomllib
from functools import cache

import pytest
from fasttrack_models.kimi_k3.kernels.kda_front import rows_at_once, split
from fasttrack_validation import contracts
from fasttrack_validation.contracts.base import Workload
from fasttrack_validation.judge.device_code import cuda_compiler, sass
from half_layers import HARDWARE, MEMORY, ROOT, HalfLayer, listed

KDA = "attn_res_norm+in_projection+kda_decode+o_proj_residual+attn_res_norm+front"
MLA = "attn_res_norm+mla_projection+mla_query+mla_core+mla_value+o_proj_residual+attn_res_norm+front"


def dispatched():
    """(part, name, TP, configuration, rows) of each; two row counts with equal constants once."""
    for part, name in ((KDA, "kda_front"), (MLA, "mla_front")):
        for entry in tomllib.loads((ROOT / f"dispatch/{name}.toml").read_text())["entry"]:
            first, last = entry["rows"]
            instances = {}
            for rows in range(last, first - 1, -1):
                blocks = split(rows * 96 // entry["tp"], HARDWARE["multiprocessors"])
                of = (rows_at_once(rows), blocks) if name == "kda_front" else ()
                instances[*of, rows == 1] = rows
            for rows in instances.values():
                yield pytest.param(part, name, entry["tp"], entry["config"], rows, id=f"{name}-tp{entry['tp']}-{rows}")


@cache
def contract(part):
    return contracts.load("kimi_k3").op(part)


def test_there_are_instances_of_both():
    names = [param.id for param in dispatched()]
    assert len(names) == len(set(names)) and {"kda_front-tp8-1", "kda_front-tp16-9", "mla_front-tp8-2"} <= set(names)


SWITCHES = {"as dispatched": {}, "programmatic": {"pdl": True}, "programmatic, not cooperative": {"pdl": True, "cooperative": False}}


@pytest.mark.parametrize("switches", list(SWITCHES)[:2])
@pytest.mark.parametrize(("part", "name", "tp", "config", "rows"), list(dispatched()))
def test_no_dispatched_instance_spills(part, name, tp, config, rows, switches, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    launch, variant = recorded(part, name, tp, config | SWITCHES[switches], rows, tmp_path)
    assert variant.constexprs["ALONE"] == (rows == 1)
    for target in (90, 103):
        made = cuda_compiler.compile_kernel(launch.cuda_sources, variant, target)
        report = sass.ptxas_report(made.log)
        assert (report.spill_store_bytes, report.spill_load_bytes, report.stack_bytes) == (0, 0, 0)
        assert report.registers == 96, "what 640 threads have before they move between warps"
        if SWITCHES[switches]:
            touches_nothing_but_weights_before_it_waits(listed(made, tmp_path))


def touches_nothing_but_weights_before_it_waits(code):
    """Roles wait each for itself. No access to memory but bulk copies in front of the first wait, and between another one and the
    jump to it."""
    waits = [place for place, one in enumerate(code) if one == "ACQBULK"]
    assert len(waits) >= 2 and not MEMORY & set(code[: waits[0]])
    for place in waits[1:]:
        jump = max(before for before in range(place) if code[before] in ("BRA", "EXIT", "RET"))
        assert not MEMORY & set(code[jump:place])
    assert MEMORY & set(code[waits[-1] :]) and "PREEXIT" in code


@pytest.mark.parametrize("switches", SWITCHES)
@pytest.mark.parametrize(("part", "name"), [(KDA, "kda_front"), (MLA, "mla_front")])
def test_a_configuration_says_how_it_is_launched(part, name, switches, tmp_path):
    pytest.importorskip("cuda.bindings.nvrtc", reason="CUDA C++ needs the extra fasttrack[cuda]")
    config = SWITCHES[switches]
    _, variant = recorded(part, name, 8, config, 1, tmp_path)
    assert variant.options["launch_pdl"] == variant.constexprs["PDL"] == config.get("pdl", False)
    assert variant.options["launch_cooperative_grid"] == config.get("cooperative", True)


def recorded(part, name, tp, config, rows, directory):
    """What launches so many rows, and its one kernel."""
    launch = HalfLayer(part, name, **config)
    op = contract(part)
    base = next(w for w in op.workloads() if w.axes["tp"] == tp)
    strides = dict.fromkeys(("attn_res_norm_1_block_stride", "attn_res_norm_2_block_stride", "peer_stride"), rows * 7168)
    pack = launch.recorded(op, Workload(name=base.name, axes=base.axes | strides | {"rows": rows}), directory)
    (variant,) = pack.kernels.values()
    return launch, variant
