"""Cells of the grid with simulated paths: right and wrong results, times, faults, and what is left of a dead path."""

import random
import threading
from types import SimpleNamespace

import k3_weights
import pytest
import torch
from fasttrack_validation import contracts
from fasttrack_validation.contracts.kimi_k3.architecture import Architecture
from fasttrack_validation.contracts.kimi_k3.compared_shard import ComparedShard
from fasttrack_validation.contracts.kimi_k3.graph import Via, step
from fasttrack_validation.contracts.grid import Ambiguous
from fasttrack_validation.contracts.kimi_k3.rows_examined import Sample
from fasttrack_validation.performance import runner as running
from fasttrack_validation.performance.arm import ArmFailed, Laid
from fasttrack_validation.performance.hardware import profile
from fasttrack_validation.performance.records import Failed, Measured, NotRun
from fasttrack_validation.timing.clocks import CardState
from fasttrack_validation.timing.comparison import Standing
from fasttrack_validation.timing.plausibility import Reading
from fasttrack_validation.timing.session import differing
from grid_shards import model, small_grid, spec

OF = k3_weights.nano()
H200 = profile("h200")
GIGABYTES = 10**11


class Path:
    """A path that computes as the plain path does, and takes `microseconds` a call."""

    def __init__(self, name: str, microseconds: float, *, spoil=None, dies=False, stale=False, host=None) -> None:
        self.name, self.microseconds, self.spoil, self.dies, self.stale = name, microseconds, spoil, dies, stale
        self.host, self.slots, self.seed, self.freed, self.restarts = host, 0, 0, 0, 0
        self.rng = random.Random(name)

    def machine(self):
        return {"device": "NVIDIA H200", "torch": "2" if self.name == "stock" else "1"}

    def ceiling(self):
        return 4e12

    def lay_out(self, spec, hardware, seeds):
        self.slots = len(seeds)
        self.shard = small_grid(OF).shard(spec, hardware)
        self.seeds = seeds
        return Laid(
            kernels=("a", "b"), prepare_seconds=1, first_call_seconds=2, extra_bytes=3,
            calls=(("front", "kernels/f.py"),),
        )  # fmt: skip

    def produced(self, selection, copy):
        if self.dies:
            raise ArmFailed(f"the {self.name} path's process ended")
        rows, tensors = range(self.shard.spec.rows), self.shard.draw(self.seeds[copy], "cpu")
        if self.name == "stock":
            sample = Sample(self.shard.replicated, self.shard._of_stock(tensors), rows)
        else:
            sample = Sample(self.shard.own, tensors, rows)
        values = sample.walk(lambda contract: contract.plain)
        found = {}
        for value, indices in selection.items():
            if value.endswith(("state", "cache")):
                # The sample numbers pages in the order of rows.
                pages = next(pages for key, pages in sample.pages.items() if key.split(".")[2] == value.split(".")[2])
                indices = torch.tensor([1 + pages.tolist().index(page) for page in indices.tolist()])
            found[value] = values[value][indices].clone()
            if self.spoil and self.spoil in value:
                found[value] *= 1.02
        return found

    def refresh(self, seed):
        self.seed = seed

    def replay(self):
        event = self.microseconds * self.slots * self.rng.gauss(1, 0.002)
        return Reading(event_ns=round(event * 1e3), host_ns=round(((self.host or event) + 20) * 1e3))

    def digests(self):
        if self.name == "stock":
            return None
        return tuple("old" if self.stale else f"{self.seed} {slot}" for slot in range(self.slots))

    def verify(self, replays):
        right = [tuple(f"{r.seed} {slot}" for slot in range(self.slots)) for r in replays]
        return differing(replays, right)

    def free(self):
        self.freed += 1
        if self.dies:
            raise ArmFailed("gone")

    def restart(self):
        self.restarts += 1


class Quiet:
    unavailable = None

    def __init__(self, processes=3, throttles=()):
        self.state = CardState(
            sm_mhz=1980, memory_mhz=3201, celsius=30, watts=100, throttles=throttles, processes=processes
        )

    def look(self):
        return self.state


def run(fast, stock, kind="kda_moe", rows=3, card=None, memory=GIGABYTES):
    one = running.Runner(
        model(OF), H200, fast, stock, memory_bytes=memory, device="cpu", source=random.Random(2), card=card or Quiet(),
        quads=8,
    )  # fmt: skip
    return one, one.run(spec(kind, 2, rows))


def paths(fast_us=50.0, stock_us=100.0, **fast):
    return Path("specialised", fast_us, **fast), Path("stock", stock_us)


@pytest.mark.parametrize("kind", ["kda_moe", "mla_moe"])
def test_a_cell_that_is_right_is_measured_with_all_that_its_figures_rest_on(kind):
    one, outcome = run(*paths(), kind=kind)
    assert isinstance(outcome, Measured)
    assert outcome.comparison.standing is Standing.FASTER and outcome.comparison.ratio == pytest.approx(2, rel=0.01)
    shard = small_grid(OF).shard(spec(kind, 2, 3), "h200")
    assert outcome.bytes == shard.cost.bytes and outcome.target_floor_us == shard.cost.bytes / 4e12 * 1e6
    assert outcome.physical_floor_us == shard.cost.bytes / 4.8e12 * 1e6
    assert outcome.stock_bytes == shard.stock_cost.bytes > outcome.bytes
    assert outcome.by_bytes * outcome.by_speed == pytest.approx(outcome.comparison.ratio)
    assert outcome.specialised.launches == 2 and outcome.method.quads == 8 and outcome.examined_rows
    assert outcome.conditions.sm_mhz_lowest == 1980
    assert one.machine == {"device": "NVIDIA H200", "torch": "1", "stock torch": "2"}


@pytest.mark.parametrize("value", ["recurrent_state", "o_proj_residual.partial", "experts.routed", "latent_up.stream"])
def test_a_path_with_a_wrong_result_is_not_timed(value):
    fast, stock = paths(spoil=value)
    _, outcome = run(fast, stock)
    assert isinstance(outcome, Failed) and outcome.stage == "results"
    assert outcome.reason.startswith("specialised path: ") and "limit" in outcome.reason


def test_a_wrong_stock_path_is_named_and_makes_nobody_faster():
    _, outcome = run(Path("specialised", 50), Path("stock", 100, spoil="routed"))
    assert isinstance(outcome, Failed) and outcome.reason.startswith("stock path: ")


def test_a_timed_call_that_was_not_computed_fails_the_cell():
    _, outcome = run(*paths(stale=True))
    assert isinstance(outcome, Failed) and outcome.stage == "timing" and "timing.wrong_result" in outcome.reason


def test_faster_than_the_bytes_allow_fails_the_cell():
    _, outcome = run(*paths(fast_us=1e-3))
    assert isinstance(outcome, Failed) and "timing.impossible" in outcome.reason


def test_clocks_that_disagree_fail_the_cell():
    _, outcome = run(*paths(host=10_000))
    assert isinstance(outcome, Failed) and "timing.clocks_disagree" in outcome.reason


@pytest.mark.parametrize(
    ("card", "text"), [(Quiet(processes=4), "shared"), (Quiet(throttles=("hardware slowdown",)), "slowed itself")]
)
def test_a_card_that_is_not_ours_or_slows_itself_gives_no_figure(card, text):
    _, outcome = run(*paths(), card=card)
    assert isinstance(outcome, Failed) and outcome.stage == "card" and text in outcome.reason


def test_a_path_that_dies_costs_its_cell_and_is_started_again():
    fast, stock = paths(dies=True)
    _, outcome = run(fast, stock)
    assert isinstance(outcome, Failed) and outcome.stage == "path" and "ended" in outcome.reason
    assert (fast.restarts, stock.restarts, stock.freed) == (1, 0, 1)


def test_a_cell_that_the_card_cannot_hold_is_not_run():
    _, outcome = run(*paths(), memory=10**6)
    assert isinstance(outcome, NotRun) and "do not fit" in outcome.reason


@pytest.mark.parametrize(
    "megabytes,gigabytes,slots",
    [(200, 200, 12), (200, 100, 10), (1600, 200, 4), (0.04, 200, 512)],  # 4.8 TB/s: 200 MB take 41.7 us
    ids=["so many last it", "so many fit", "the L2 asks for more", "never more than that"],
)
def test_a_replay_lasts_half_a_millisecond_where_memory_allows(megabytes, gigabytes, slots):
    shard = SimpleNamespace(
        copies=None, cost=SimpleNamespace(bytes=int(megabytes * 1e6), flops=0), path_bytes=(min(4 * 10**9, int(megabytes * 2e7)), 1)
    )  # fmt: skip
    one = running.Runner(model(OF), H200, *paths(), memory_bytes=gigabytes * 10**9)
    assert one._slots(shard) == slots


def test_rows_whose_experts_hang_on_a_rounding_are_not_examined():
    shard = small_grid(OF).shard(spec("kda_moe", 2, 1), "h200")
    tensors = shard.draw(4, "cpu")
    assert {path: found.rows for path, found in shard.examined(tensors).items()} == {"specialised": (0,), "stock": (0,)}
    hang_on_a_rounding(tensors)
    with pytest.raises(Ambiguous):
        shard.examined(tensors)


def hang_on_a_rounding(tensors, layer=1):
    """The router knows every second expert twice, and the first one is chosen without its twin: of an even number of experts the
    last one chosen and the first one left are equals."""
    router, bias = tensors[f"stock:{layer}.front.router"], tensors[f"{layer}.routing.correction_bias"]
    router[1::2] = router[0::2]
    bias.zero_()
    bias[:2] = torch.tensor([10.0, -10.0])


def test_what_is_ambiguous_is_told_before_an_expert_is_looked_at(monkeypatch):
    shard = small_grid(OF).shard(spec("kda_moe", 2, 1), "h200")
    tensors = shard.draw(4, "cpu")
    seen = []
    for op, contract in shard.own.contracts.items():
        oracle = type(contract).oracle
        monkeypatch.setattr(
            type(contract), "oracle", lambda self, *given, op=op, oracle=oracle: seen.append(op) or oracle(self, *given)
        )
    shard.examined(tensors)
    # Nothing is worked out twice; where the arrangements differ there are two of them.
    assert seen.count("in_projection") == 1 and seen.count("experts") == 2
    seen.clear()
    hang_on_a_rounding(tensors)
    with pytest.raises(Ambiguous):
        shard.examined(tensors)
    assert "routing" in seen and "experts" not in seen


def test_the_first_copy_that_is_clear_is_examined():
    """Nothing is laid out again for it, and each path is asked for that copy's results."""
    shard_of = small_grid(OF).shard
    drawn = []

    def unclear(self, seed, device):
        tensors = type(shard_of(spec("kda_moe", 2, 1), "h200")).draw(self, seed, device)
        drawn.append(seed)
        if len(drawn) < 3:
            hang_on_a_rounding(tensors)
        return tensors

    fast, stock = paths()
    laid, asked = [], []
    for path in (fast, stock):
        path.lay_out = lambda spec, hardware, seeds, path=path: laid.append(seeds) or Path.lay_out(path, spec, hardware, seeds)
        path.produced = lambda selection, copy, path=path: asked.append(copy) or Path.produced(path, selection, copy)
    one = running.Runner(
        model(OF), H200, fast, stock, memory_bytes=GIGABYTES, device="cpu", source=random.Random(2), card=Quiet(), quads=8
    )
    shard = shard_of(spec("kda_moe", 2, 1), "h200")
    copy, right = one._examined(Drawing(shard, unclear), (5, 6, 7, 8))
    assert copy == 2 and drawn == [5, 6, 7] and right["specialised"].rows == (0,)
    with pytest.raises(Ambiguous):
        one._examined(Drawing(shard, lambda self, seed, device: drawn.clear() or unclear(self, seed, device)), (5, 6))
    outcome = one.run(spec("kda_moe", 2, 1))
    assert isinstance(outcome, Measured) and len(laid) == 2 and laid[0] == laid[1] and asked[0] == asked[1]


class Drawing:
    """A shard that draws in its own way."""

    def __init__(self, shard, draw):
        self.shard, self.draw = shard, lambda seed, device: draw(shard, seed, device)

    def examined(self, tensors):
        return self.shard.examined(tensors)


def test_another_layer_of_a_step_is_examined_where_the_first_hangs_on_a_rounding():
    shard = small_grid(OF).shard(spec("step", 2, 1), "h200")
    tensors = shard.draw(4, "cpu")

    before = {value.partition(".")[0] for value in shard.examined(tensors)["specialised"].selection}
    first = min(int(layer) for layer in before if layer.isdigit())
    hang_on_a_rounding(tensors, first)
    after = {value.partition(".")[0] for value in shard.examined(tensors)["specialised"].selection}
    assert len(after) == len(before) and str(first) not in after
    kinds = [{name.partition(".")[2] for name in shard.names if name.startswith(f"{layer}.")} for layer in before ^ after]
    assert kinds[0] == kinds[1]
    for layer in range(OF.moe.first_layer, OF.layers):
        hang_on_a_rounding(tensors, layer)
    with pytest.raises(Ambiguous):
        shard.examined(tensors)


def test_the_paths_are_given_one_layer_in_two_arrangements():
    """This rank's rows are those of the whole weights; what is gathered is what all of these rows give."""
    shard = small_grid(OF).shard(spec("kda_moe", 2, 3), "h200")
    tensors = shard.draw(4, "cpu")
    whole, own = tensors["stock:1.front.router"], tensors["1.front.router"]
    assert own.data_ptr() == whole.data_ptr() and len(whole) == 2 * len(own) == OF.moe.experts
    assert tensors["1.latent_up.latent_up"].data_ptr() == tensors["stock:1.latent_up.latent_up"].data_ptr()
    assert torch.equal(tensors["1.latent_up.shared"], tensors["stock:1.latent_up.shared"][..., : OF.hidden_size // 2])
    theirs = Sample(shard.replicated, shard._of_stock(tensors), range(3)).walk(lambda contract: contract.plain)
    mine = Sample(shard.own, tensors, range(3)).walk(lambda contract: contract.plain)
    assert torch.equal(tensors["1.routing.logits"], theirs["1.front.logits"])
    assert torch.equal(mine["1.routing.ids"], theirs["1.routing.ids"])
    assert torch.equal(mine["1.front.latent"], theirs["1.front.latent"][:, : OF.moe.latent_size // 2])
    inputs, states = shard.volatile()
    assert {"1.routing.logits", "1.experts.x", "stock:1.latent_up.shared"} <= set(inputs) <= set(tensors)
    assert set(states) == {"1.kda_decode.conv_state", "1.kda_decode.recurrent_state"}
    kept = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
    assert sum(kept.values()) == shard.slot_bytes


def test_both_paths_draw_the_same_bits_and_other_seeds_other_ones():
    shard = small_grid(OF).shard(spec("mla_moe", 2, 2), "h200")
    one, same, other = (shard.draw(seed, "cpu") for seed in (7, 7, 8))
    assert set(one) == set(same) and all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["3.front.router"], other["3.front.router"])
    assert one["3.attention_mix.stream"] is one["3.o_proj_residual.residual"]


def test_choices_of_experts_are_as_even_as_the_bytes_are_counted():
    """Distinct experts of a batch against the expectation of even choices, which the floor is made of."""
    shard: ComparedShard = small_grid(OF).shard(spec("kda_moe", 2, 16), "h200")
    sample = Sample(shard.own, shard.draw(3, "cpu"), range(16))
    ids = sample.walk(lambda contract: contract.plain)["1.routing.ids"]
    expected = shard.own.contracts["experts"].expected_experts(shard.own.workloads["1.experts"])
    assert len(ids.unique()) == pytest.approx(expected, rel=0.15)


def test_cached_rows_count_once_for_each_row_that_sees_them():
    """By hand: 40 cached tokens and the new one, 80 channels of two bytes, beside what a context of none has."""
    grid = small_grid(OF)
    long = spec("mla_moe", 2, 3)
    short = long.model_copy(update={"context": 0})
    width = OF.mla.kv_lora_rank + OF.mla.qk_rope_head_dim
    assert grid.shard(long, "h200").cost.bytes_read - grid.shard(short, "h200").cost.bytes_read == 3 * 40 * 2 * width


def test_a_step_reads_what_was_counted_for_the_whole_model():
    """Against a count made apart: a step at TP 16 and one row moves 15.0 GB without a cache where router and latent
    down-projection are replicated; 92 layers keep a sixteenth of 4480 x 7168 weights."""
    grid = contracts.load("kimi_k3").grid
    cells = {cell.key: cell for cell in grid.cells("h200")}
    one = grid.shard(cells["tp16-step-r1-c1024"], "h200")
    # 24 MLA layers of 1025 cached rows of 576 channels, two bytes each.
    divided = 92 * 2 * 4480 * 7168 * 15 // 16
    assert one.cost.bytes - 24 * 1025 * 576 * 2 == pytest.approx(15.0e9 - divided, rel=0.005)
    # The stock path reads all rows of the latent up-projection as well.
    whole_up = 92 * 2 * 7168 * 3584 * 15 // 16
    assert one.stock_cost.bytes - one.cost.bytes == pytest.approx(divided + whole_up, rel=0.01)
    assert one.names == tuple(step(Architecture.from_config()).nodes)
    # Either path repacks the 896 experts of 3 x 192 x 3584 weights of 17 / 32 bytes in each of four sets of weights.
    for needed in one.path_bytes:
        assert 1 < (needed - one.slot_bytes) / (4 * 896 * 3 * 192 * 3584 * 17 / 32) < 1.6


def test_a_layer_that_reads_what_another_left_on_this_rank_is_not_examined():
    """Layer 1: the dense layer in front of it sums its stream on every rank, and nothing is gathered in between."""
    grid = contracts.load("kimi_k3").grid
    cells = {cell.key: cell for cell in grid.cells("h200")}
    kda, mla = grid.shard(cells["tp16-step-r1-c1024"], "h200").groups
    assert kda[0] == 13 and mla[0] == 15 and 1 not in kda
    assert len(set(kda)) == len(set(mla)) == 6 and all(number % 4 == 3 for number in mla)
    assert not any(number % 4 == 3 for number in kda)


def test_what_is_examined_of_a_step_is_what_its_layer_was_given():
    """With all layers bound at once, the path leaves of each layer that may be examined what the layer alone gives."""
    shard = small_grid(OF).shard(spec("step", 2, 2), "h200")
    tensors = shard.draw(4, "cpu")
    alone = {}
    for number in {number for numbers in shard.groups for number in numbers}:
        part = shard.parts[number]
        alone |= Sample(part.own, tensors, range(2)).walk(lambda contract: contract.plain)
    values: dict = {}
    for part in shard.parts:
        sample = Sample(part.own, tensors, range(2))
        # As a path that has the whole step does: what an earlier layer left on this rank is read where it lies.
        for node in part.own.nodes:
            for name, sources in node.reads.items():
                if name != "blocks" and len(sources) == 1 and sources[0].via in (Via.HERE, Via.COLUMNS):
                    value = values.get(sources[0].value)
                    if value is not None:
                        sample.tensors[f"{node.name}.{name}"] = value if sources[0].via is Via.HERE else value.chunk(2, 1)[0]
        values |= sample.walk(lambda contract: contract.plain)
    assert alone and all(torch.equal(values[value], found) for value, found in alone.items())
    first = Sample(shard.parts[1].own, tensors, range(2)).walk(lambda contract: contract.plain)
    assert not all(torch.equal(values[value], found) for value, found in first.items())


def test_layers_of_a_step_take_few_sets_of_weights_in_turn():
    shard = small_grid(OF, {"mla_moe": 3}).shard(spec("step", 2, 2), "h200")
    tensors = shard.draw(5, "cpu")
    assert tensors["1.front.router"] is tensors["5.front.router"] is tensors["9.front.router"]
    assert tensors["1.front.router"] is not tensors["2.front.router"]
    assert tensors["0.kda_decode.recurrent_state"] is not tensors["4.kda_decode.recurrent_state"]
    own = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors.values()}
    assert sum(own.values()) == pytest.approx(shard.slot_bytes, rel=0.01)


class Meeting(Path):
    """A path whose preparing ends when its neighbour's has begun, or after `seconds` alone."""

    def __init__(self, name, microseconds, meeting, seconds):
        super().__init__(name, microseconds)
        self.meeting, self.seconds, self.met = meeting, seconds, None

    def lay_out(self, spec, hardware, seeds):
        try:
            self.meeting.wait(self.seconds)
            self.met = True
        except threading.BrokenBarrierError:
            self.met = False
            self.meeting.reset()
        return super().lay_out(spec, hardware, seeds)

    def produced(self, selection, copy):
        raise ArmFailed("this is enough")


@pytest.mark.parametrize(
    ("kind", "share", "size", "seconds", "meet"),
    [
        ("kda_moe", "BESIDE_SHARE", running.BESIDE_SHARE, 60, True),  # of a card that holds all three
        ("kda_moe", "BESIDE_SHARE", 1e-6, 0.2, False),  # of one that holds the paths, and nothing beside them
        ("step", "WHOLE_SHARE", running.WHOLE_SHARE, 60, True),
        ("step", "WHOLE_SHARE", None, 0.2, False),  # what is drawn for the oracle has to be gone before
    ],
)
def test_paths_are_prepared_side_by_side_where_the_card_holds_them(kind, share, size, seconds, meet, monkeypatch):
    if size is None:
        shard = small_grid(OF).shard(spec(kind, 2, 3), "h200")
        size = (sum(shard.path_bytes) + 1) / GIGABYTES
    monkeypatch.setattr(running, share, size)
    meeting = threading.Barrier(2)
    fast, stock = (Meeting(name, us, meeting, seconds) for name, us in (("specialised", 50.0), ("stock", 100.0)))
    run(fast, stock, kind)
    assert (fast.met, stock.met) == (meet, meet)


def test_a_path_that_cannot_be_prepared_fails_its_cell_and_leaves_the_other_answered():
    fast, stock = paths()

    def broken(spec, hardware, seeds):
        raise ArmFailed("no kernel for these rows")

    fast.lay_out = broken
    one, outcome = run(fast, stock)
    assert isinstance(outcome, Failed) and outcome.stage == "path" and "no kernel for these rows" in outcome.reason
    assert stock.slots and (fast.freed, stock.freed) == (1, 1)


def test_a_step_that_two_paths_do_not_fit_beside_is_not_run():
    fast, stock = paths()
    shard = small_grid(OF, {"mla_moe": 3}).shard(spec("step", 2, 2), "h200")
    one = running.Runner(
        model(OF), H200, fast, stock, memory_bytes=sum(shard.path_bytes), device="cpu", source=random.Random(2),
        card=Quiet(),
    )  # fmt: skip
    outcome = one.run(spec("step", 2, 2))
    assert isinstance(outcome, NotRun) and "both paths need" in outcome.reason


@pytest.mark.parametrize("width", [1, 2])
def test_of_a_cache_the_rows_are_compared_that_anybody_touches(width):
    """The new row of each examined request, and whatever else a path changed: one element of one old row is seen."""
    shard = small_grid(OF).shard(spec("mla_moe", 2, 4, width), "h200")
    tensors = shard.draw(6, "cpu")
    examined = shard.examined(tensors)["specialised"]
    (key,) = [value for value in examined.selection if value.endswith("cache")]
    plain = Sample(shard.own, tensors, range(4)).walk(lambda contract: contract.plain)[key]
    table = tensors[next(name for name in tensors if name.endswith("mla_query.page_table"))]
    pool = tensors[key.rpartition(".")[0] + ".cache"].clone()
    for request, pages in enumerate(table[::width].long()):
        pool[pages] = plain[1 + request * len(pages) : 1 + (request + 1) * len(pages)]
    honest = pool[examined.selection[key]]

    def result(cache):
        values = {value: torch.zeros(0) for value in examined.selection} | {key: cache}
        (wanted,) = [one for one in examined._wanted if one.value == key]
        examined._wanted = [wanted]
        return examined.results(values)[wanted.comparison.tensor], wanted.comparison

    (exact, rounded, got), _ = result(honest)
    fresh = width * len({row // width for row in examined.rows})
    assert got.shape == (fresh, 1, honest.shape[-1]) and torch.equal(got, rounded)
    assert (exact - got.double()).abs().max() < 0.05
    broken = honest.clone()
    broken[0, 3, 5] = broken[0, 3, 5] + 1
    (exact, _, got), comparison = result(broken)
    assert got.shape[0] == fresh + 1
    ruled = running.ruled(
        SimpleNamespace(comparisons=(comparison,), results=lambda produced: {comparison.tensor: result(broken)[0]}), {}
    )
    assert ruled[0].decision == "fail"
