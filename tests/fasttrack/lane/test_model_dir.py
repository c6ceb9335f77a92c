import shutil
from pathlib import Path

import lane_fakes as fakes
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fasttrack import model_dir, strict_toml
from fasttrack_validation.errors import UserError
from fasttrack_validation.judge.candidate import Candidate

PATH = Path("fasttrack.toml")


def broken(old, new):
    assert old in fakes.MANIFEST
    with pytest.raises(UserError) as error:
        model_dir.parse_manifest(fakes.MANIFEST.replace(old, new), PATH)
    return error.value.what


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ('owner = "Ada"', 'ownr = "Ada"', "fasttrack.toml:1: key 'model.owner' is missing"),
        ('owner = "Ada"', 'owner = "Ada"\nowners = 1', "fasttrack.toml:6: key 'model.owners' is unknown"),
        ("[ops.copy]", "[ops.copy]\nkernel = 'x'", "fasttrack.toml:10: key 'ops.copy.kernel' is unknown"),
        ('dispatch = "dispatch', 'dispatch = "../dispatch', "fasttrack.toml:11: key 'ops.copy.dispatch'"),
        ('"kernels/extra.py"', '"/etc/passwd"', "fasttrack.toml:10: key 'ops.copy.kernels'"),
        ('name = "toy"', 'decode = 1\nname = "toy"', "key 'model.decode' is unknown"),
        ("[ops.copy]", "[decode]\nfactory = '../x.py'\nsources = ['a.py']\n[ops.copy]", "key 'decode.factory'"),
        ("[ops.copy]", "[decode]\nfactory = 'x.py'\nsources = []\n[ops.copy]", "key 'decode.sources'"),
        ("review_by = 2030-01-01", "review_by = 'soon'", "fasttrack.toml:6: key 'model.review_by'"),
        ('hardware = "gb300"', 'hardware = "h200"', "two envelope entries for hardware 'h200' and tp 8"),
        ("rows = [1, 4]", "rows = [4, 1]", "fasttrack.toml:17: key 'envelope.0.rows'"),
        ("rows = [1, 4]", "rows = [0, 4]", "fasttrack.toml:17: key 'envelope.0.rows'"),
        ('dtypes = ["bf16"]', 'dtypes = ["bf17"]', "fasttrack.toml:19: key 'envelope.0.dtypes.0'"),
        ('name = "toy"', 'name = "toy', "not valid TOML"),
        ('name = "toy"', 'name = "../toy"', "fasttrack.toml:2: key 'model.name'"),
    ],
)
def test_manifest_errors_name_file_key_and_line(old, new, expected):
    assert expected in broken(old, new)


def test_a_decode_path_is_named_with_all_of_its_files(checkout):
    directory = model_dir.load("toy", checkout)
    with pytest.raises(UserError, match="names no decode path"):
        directory.decode_sources()
    path = directory.path / "fasttrack.toml"
    path.write_text(path.read_text() + "\n[decode]\nfactory = 'f.py'\nsources = ['f.py', 'g.py']\n")
    (directory.path / "f.py").write_text("one")
    named = model_dir.load("toy", checkout)
    with pytest.raises(UserError, match="g.py"):
        named.decode_sources()
    (directory.path / "g.py").write_text("two")
    assert named.decode_sources() == {"f.py": b"one", "g.py": b"two"}


def test_manifest():
    manifest = model_dir.parse_manifest(fakes.MANIFEST, PATH)
    assert manifest.op("copy").kernels == ("kernels/copy.py", "kernels/extra.py")
    assert [entry.hardware for entry in manifest.envelope] == ["h200", "gb300"]
    with pytest.raises(UserError, match="no op 'paste'"):
        manifest.op("paste")


@given(st.text(max_size=80))
def test_any_text_is_a_manifest_or_a_user_error(text):
    with pytest.raises(UserError):
        model_dir.parse_manifest(text, PATH)


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("a",), 2), (("t", "b"), 5), (("t", "u", "c"), 7), (("l", 0, "d"), 9), (("l", 1, "d"), 11),
        (("l", 1, "q", "x"), 12), (("t", "missing"), 3), (("missing",), 1),
    ],
)  # fmt: skip
def test_line_of(location, line):
    text = '# c\na = 1\n[t] # [x]\n# b = 2\n"b" = 2\n[t.u]\nc = 3\n[[l]]\nd = 4\n[[l]]\nd = 5\nq = {x = 1}\n'
    assert strict_toml.line_of(text, location) == line


def test_load_finds_the_checkout_from_below(checkout, monkeypatch):
    monkeypatch.chdir(checkout / "models/toy/kernels")
    directory = model_dir.load("toy", need_checkout=True)
    assert directory.path == checkout / "models/toy" and directory.checkout == checkout
    assert directory.space("copy").default == {"BLOCK": 32, "num_warps": 4, "flip": False}
    assert len(directory.table("copy").entry) == 4


def test_without_a_checkout_the_installed_copy_serves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert model_dir.load("kimi_k3").checkout is None
    with pytest.raises(UserError, match="no checkout"):
        model_dir.load("kimi_k3", need_checkout=True)
    with pytest.raises(UserError, match="no model 'kimi'"):
        model_dir.load("kimi")


def test_a_model_directory_under_another_name_is_refused(checkout):
    shutil.copytree(checkout / "models/toy", checkout / "models/other")
    with pytest.raises(UserError, match="model.name is 'toy'"):
        model_dir.load("other", checkout)


def test_missing_linked_and_unreadable_files(checkout):
    directory = model_dir.load("toy", checkout)
    kernel = directory.path / "kernels/copy.py"
    kernel.unlink()
    with pytest.raises(UserError, match="cannot read .*copy.py"):
        directory.sources("copy")
    kernel.symlink_to("/etc/passwd")
    with pytest.raises(UserError, match="symbolic link"):
        directory.sources("copy")
    kernel.unlink()
    kernel.write_bytes(b"\xff")
    with pytest.raises(UserError, match="cannot read"):
        directory.sources("copy")


def test_a_dispatch_table_may_only_name_the_ops_kernels(checkout):
    directory = model_dir.load("toy", checkout)
    path = directory.path / "dispatch/copy.toml"
    path.write_text(path.read_text().replace("kernels/copy.py", "kernels/other.py", 1))
    with pytest.raises(UserError, match="'kernels/other.py' is not among"):
        directory.table("copy")


def test_place_keeps_relative_imports(checkout):
    directory = model_dir.load("toy", checkout)
    given = Candidate(op="copy", entry="a/mine.py", files={"a/mine.py": "# m", "a/extra.py": "# e"})
    placed = directory.place(given)
    assert placed.entry == "kernels/copy.py"
    assert placed.files == {"kernels/copy.py": "# m", "kernels/extra.py": "# e"}
    assert directory.place(placed) == placed
    # A file that the candidate leaves out is the tree's.
    alone = directory.place(Candidate(op="copy", entry="x.py", files={"x.py": "# x"}))
    assert alone.files == {"kernels/copy.py": "# x", "kernels/extra.py": ""}


def test_buckets_carry_the_workload_that_answers_for_them(checkout):
    directory = model_dir.load("toy", checkout)
    found = [(b.hardware, b.rows, b.workload) for b in directory.buckets(fakes.Op())]
    assert found == [
        ("h200", (1, 1), "tp8-r1"), ("h200", (2, 4), "tp8-r4"),
        ("gb300", (1, 1), "tp8-r1"), ("gb300", (2, 4), "tp8-r4"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("rows = [1, 4]", "rows = [1, 5]", "the contract has rows"),
        ("tp = 8", "tp = 4", "the contract has tp"),
        ("verify_width = 1", "verify_width = 2", "verify_width"),
        ('dtypes = ["bf16"]', 'dtypes = ["fp16"]', "does not examine dtype fp16"),
        ('hardware = "gb300"', 'hardware = "b200"', "no such hardware"),
        ("[ops.copy]", "[ops.paste]", "no op of toy is called 'paste'"),
    ],
)
def test_an_envelope_wider_than_the_contract_is_refused(checkout, old, new, text):
    path = checkout / "models/toy/fasttrack.toml"
    model_dir.load("toy", checkout).check_contract(fakes.Contract())
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(UserError, match=text):
        model_dir.load("toy", checkout).check_contract(fakes.Contract())


def test_an_envelope_past_the_largest_workload_is_refused(checkout):
    path = checkout / "models/toy/fasttrack.toml"
    path.write_text(path.read_text().replace("rows = [1, 4]", "rows = [1, 5]"))
    with pytest.raises(UserError, match="largest declared workload has 4"):
        model_dir.load("toy", checkout).buckets(fakes.Op())
