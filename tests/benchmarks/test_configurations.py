"""Other configurations of a tree: what is changed, what is refused, and how states are told apart."""

import importlib.util
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("configurations", ROOT / "benchmarks/configurations.py")
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


def test_a_state_is_the_tree_with_other_configurations(tmp_path):
    name, of = module.changes('pdl, late:kda_front.pdl=true,moe_half.early=0,moe_half.structure="x"')
    assert name == "pdl, late" and of == {"kda_front": {"pdl": True}, "moe_half": {"early": 0, "structure": "x"}}
    place = module.changed(ROOT / "models/kimi_k3", tmp_path / "state", of)
    for table, values in of.items():
        before, after = (
            tomllib.loads((folder / f"dispatch/{table}.toml").read_text())["entry"] for folder in (ROOT / "models/kimi_k3", place)
        )
        assert after == [{**entry, "config": {**entry["config"], **values}} for entry in sorted(before, key=lambda e: (e["hardware"], e["tp"], e["rows"]))]
    assert not (place / "evidence").exists()
    assert (place / "kernels/kda_front.py").read_bytes() == (ROOT / "models/kimi_k3/kernels/kda_front.py").read_bytes()


@pytest.mark.parametrize("text", ["pdl", "pdl:kda_front=true", "pdl:kda_front.pdl=yes", ":kda_front.pdl=true", "a:b.c=true,"])
def test_what_is_no_state_is_refused(text):
    with pytest.raises(SystemExit, match="--state"):
        module.changes(text)


def test_a_key_that_no_kernel_reads_and_a_name_given_twice_are_refused(tmp_path):
    with pytest.raises(SystemExit, match="no kernel reads 'pld'"):
        module.changed(ROOT / "models/kimi_k3", tmp_path / "state", {"kda_front": {"pld": True}})
    for name in (module.AS_IT_STANDS, "one"):
        with pytest.raises(SystemExit, match="two states"):
            module.main(["--cell", "tp8-kda_moe-r1", "--state", "one:kda_front.pdl=true", "--state", f"{name}:kda_front.pdl=true"])
    with pytest.raises(SystemExit, match="one at least"):
        module.main(["--cell", "tp8-kda_moe-r1", "--turns", "0"])


def test_a_table_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SystemExit, match="no dispatch/kda_back.toml"):
        module.changed(ROOT / "models/kimi_k3", tmp_path / "state", {"kda_back": {"pdl": True}})


class Timed:
    """A state that takes so many nanoseconds a call, of two copies."""

    slots = 2

    def __init__(self, nanoseconds, bits="same"):
        self.nanoseconds, self.bits, self.seed = nanoseconds, bits, None

    def refresh(self, seed):
        self.seed = seed

    def replay(self):
        # All states get slower together: ratios do not.
        return SimpleNamespace(event_ns=2 * self.nanoseconds * (1 + self.seed))

    def digests(self):
        return (f"{self.bits} {self.seed}",)


def test_ratios_are_of_the_same_turn_and_other_bits_are_told():
    found = module.timed({"one": Timed(1000), "two": Timed(900), "three": Timed(2000, "other")}, 3)
    assert [found[name]["ratio"] for name in found] == [1, 0.9, 2]
    assert [found[name]["microseconds"] for name in found] == [4, 3.6, 8]  # of turns 2, 3 and 4 the middle one
    assert [found[name]["same_bits"] for name in found] == [True, True, False]
