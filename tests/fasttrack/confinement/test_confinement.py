"""Each rule of confinement: an exploit that fails for the stated reason, and an honest twin that passes."""

import gzip
from pathlib import Path

import pytest
from fasttrack.confinement.check import Confinement, check, model_directory
from fasttrack.confinement.contents import Limits, check_contents
from fasttrack.confinement.rules import RULES
from fasttrack_validation.errors import UserError

M = "models/alpha"
GITLINK = ("160000", b"1" * 40)
HONEST = b"import torch\n"

BASE = {
    "README.md": b"# a serving stack\n",
    "core/shared.py": b"SHARED = 1\n",
    "validation/limits.py": b"LIMIT = 1\n",
    f"{M}/kernels/k.py": b"import triton\n\n\n@triton.jit\ndef k(x):\n    pass\n",
    f"{M}/tests/test_k.py": b"import math\n",
    f"{M}/evidence/statements/k.judge.json": b"{}\n",
    "models/beta/k.py": b"BETA = 1\n" + b"# a line that makes renames easy to detect\n" * 20,
}

# (what it is, rule, changes of the exploit, changes of the honest twin); None deletes a path.
CASES = [
    ("rename from another model", "outside", {"models/beta/k.py": None, f"{M}/k.py": BASE["models/beta/k.py"]},
     {f"{M}/k.py": BASE["models/beta/k.py"]}),
    ("core file moved in", "outside", {"core/shared.py": None, f"{M}/shared.py": BASE["core/shared.py"]},
     {f"{M}/shared.py": BASE["core/shared.py"]}),
    ("core edited", "outside", {"core/shared.py": b"SHARED = 2\n"}, {f"{M}/kernels/k.py": HONEST}),
    ("policy edited", "policy_change", {"validation/limits.py": b"LIMIT = 9\n"}, {f"{M}/limits.py": b"LIMIT = 9\n"}),
    ("prefix directory", "outside", {"models/alpha-evil/k.py": HONEST}, {f"{M}/evil/k.py": HONEST}),
    ("prefix file", "outside", {"models/alpha.py": HONEST}, {f"{M}/alpha.py": HONEST}),
    ("prefix word", "outside", {"models/alphabet/k.py": HONEST}, {f"{M}/alphabet/k.py": HONEST}),
    ("model directory replaced by a file", "outside",
     {path: None for path in BASE if path.startswith(M)} | {M: b"x\n"}, {f"{M}/x.md": b"x\n"}),
    ("model directory replaced by a link", "symlink",
     {path: None for path in BASE if path.startswith(M)} | {M: ("120000", b"../core")}, {f"{M}/core.md": b"../core"}),
    ("newline in a name", "control_character", {f"{M}/new\ncore/evil.py": HONEST}, {f"{M}/new_core/evil.py": HONEST}),
    ("newline outside", "outside", {"models/alpha\ncore/evil.py": HONEST}, {f"{M}/core/evil.py": HONEST}),
    ("zero width in a name", "control_character", {f"{M}/k\u200bk.py": HONEST}, {f"{M}/kk.py": HONEST}),
    ("filler letter in a name", "control_character", {f"{M}/k\u3164.py": HONEST}, {f"{M}/k_.py": HONEST}),
    ("bidi in a name", "bidi", {f"{M}/k\u202eyp.py": HONEST}, {f"{M}/kyp.py": HONEST}),
    ("cyrillic model", "outside", {"models/\u0430lpha/k.py": HONEST}, {f"{M}/k.py": HONEST}),
    ("cyrillic letter inside", "non_ascii", {f"{M}/\u0430.py": HONEST}, {f"{M}/a.py": HONEST}),
    ("not UTF-8", "encoding", {b"models/alpha/\xff.py": HONEST}, {f"{M}/f.py": HONEST}),
    ("NFD", "nfc", {f"{M}/cafe\u0301.py": HONEST}, {f"{M}/cafe.py": HONEST}),
    ("case of a file", "case_collision", {f"{M}/kernels/K.py": HONEST}, {f"{M}/kernels/kk.py": HONEST}),
    ("case of a directory", "case_collision", {f"{M}/Kernels/other.py": HONEST}, {f"{M}/kernels/other.py": HONEST}),
    ("case of the root", "case_collision", {"Models/alpha/k.py": HONEST}, {f"{M}/k.py": HONEST}),
    ("sharp s folds", "case_collision", {f"{M}/a/strasse.md": b"x\n", f"{M}/a/stra\u00dfe.md": b"x\n"},
     {f"{M}/a/strasse.md": b"x\n"}),
    ("NTFS stream", "git_alias", {f"{M}/.git::$INDEX_ALLOCATION/config": b"x\n"}, {f"{M}/git/config.md": b"x\n"}),
    ("NTFS short name", "git_alias", {f"{M}/GIT~1/config.md": b"x\n"}, {f"{M}/GIT1/config.md": b"x\n"}),
    ("HFS ignorable", "git_alias", {f"{M}/.g\u200cit/config.md": b"x\n"}, {f"{M}/g_it/config.md": b"x\n"}),
    ("dot git", "git_alias", {f"{M}/.git/config.md": b"x\n"}, {f"{M}/git_/config.md": b"x\n"}),
    ("dot git dot", "git_alias", {f"{M}/.GIT. /config.md": b"x\n"}, {f"{M}/GIT/config.md": b"x\n"}),
    ("submodule file", "git_alias", {f"{M}/.gitmodules": b"x\n"}, {f"{M}/gitmodules.md": b"x\n"}),
    ("climbing name", "malformed_tree", {f"{M}/../core/x.py": HONEST}, {f"{M}/core/x.py": HONEST}),
    ("device", "reserved_name", {f"{M}/CON.py": HONEST}, {f"{M}/CONE.py": HONEST}),
    ("device in a directory", "reserved_name", {f"{M}/aux/k.py": HONEST}, {f"{M}/auxiliary/k.py": HONEST}),
    ("trailing dot", "reserved_name", {f"{M}/x./k.py": HONEST}, {f"{M}/x.y/k.py": HONEST}),
    ("trailing space", "reserved_name", {f"{M}/x /k.py": HONEST}, {f"{M}/x/k.py": HONEST}),
    ("wildcard", "reserved_name", {f"{M}/k*.py": HONEST}, {f"{M}/kstar.py": HONEST}),
    ("leading dash", "reserved_name", {f"{M}/-rf.py": HONEST}, {f"{M}/rf-.py": HONEST}),
    ("backslash", "backslash", {f"{M}/..\\core.py": HONEST}, {f"{M}/core.py": HONEST}),
    ("symlink to core", "symlink", {f"{M}/shared.py": ("120000", b"../../core/shared.py")},
     {f"{M}/shared.py": BASE["core/shared.py"]}),
    ("symlink to /etc", "symlink", {f"{M}/etc": ("120000", b"/etc")}, {f"{M}/etc.md": b"/etc\n"}),
    ("mode flip", "mode", {f"{M}/kernels/k.py": ("100755", BASE[f"{M}/kernels/k.py"])}, {f"{M}/k.py": HONEST}),
    ("submodule", "gitlink", {f"{M}/vendored": GITLINK}, {f"{M}/vendored/k.py": HONEST}),
    ("too large", "size", {f"{M}/k.py": b"#" * (1 << 20)}, {f"{M}/k.py": b"#" * 1000 + b"\n"}),
    ("attributes -diff", "gitattributes", {f"{M}/.gitattributes": b"*.py -diff\n"}, {f"{M}/attributes.md": b"-diff\n"}),
    ("attributes, other case", "gitattributes", {f"{M}/.GitAttributes": b"* merge=ours\n"},
     {f"{M}/x.md": b"merge=ours\n"}),
    ("gitignore", "ignore_file", {f"{M}/.gitignore": b"*.py\n"}, {f"{M}/ignore.md": b"*.py\n"}),
    ("dockerignore", "ignore_file", {f"{M}/.dockerignore": b"*\n"}, {f"{M}/docker.md": b"*\n"}),
    ("deleted test", "deleted_proof", {f"{M}/tests/test_k.py": None}, {f"{M}/kernels/k.py": None}),
    ("deleted evidence", "deleted_proof", {f"{M}/evidence/statements/k.judge.json": None}, {f"{M}/kernels/k.py": None}),
]  # fmt: skip
# The same for what files hold: no tree is needed to tell.
CONTENTS = [
    ("library", "binary", {f"{M}/k.py": b"\x7fELF\x02\x01\x01\0\0"}, {f"{M}/k.py": HONEST}),
    ("cubin", "file_type", {f"{M}/k.cubin": b"text\n"}, {f"{M}/k.cu": b"__global__ void k() {}\n"}),
    ("pickle", "binary", {f"{M}/evidence/w.json": b"\x80\x05\x95"}, {f"{M}/evidence/w.json": b"[1]\n"}),
    ("signature outside evidence", "file_type", {f"{M}/x.json.sig": b"x\n"}, {f"{M}/evidence/x.json.sig": b"x\n"}),
    ("page outside the report", "file_type", {f"{M}/x.html": b"<p>x</p>\n"}, {f"{M}/report/x.html": b"<p>x</p>\n"}),
    ("packed evidence outside its place", "file_type", {f"{M}/w.json.gz": gzip.compress(b"[1]\n")},
     {f"{M}/evidence/w.json.gz": gzip.compress(b"[1]\n")}),
    ("not gzip", "compressed", {f"{M}/evidence/w.json.gz": b"\x80\x05\x95"},
     {f"{M}/evidence/w.json.gz": gzip.compress(b"[2]\n")}),
    ("data behind gzip", "compressed", {f"{M}/evidence/w.json.gz": gzip.compress(b"[1]\n") + b"\x7fELF"},
     {f"{M}/evidence/w.json.gz": gzip.compress(b"[3]\n")}),
    ("binary inside gzip", "binary", {f"{M}/evidence/w.json.gz": gzip.compress(b"\x7fELF\0\xff")},
     {f"{M}/evidence/w.json.gz": gzip.compress(b"{}\n")}),
    ("bidi in text", "bidi", {f"{M}/k.py": "A = 1  # \u202e }\n".encode()}, {f"{M}/k.py": "# \u0645\u062b\n".encode()}),
    ("zero width in text", "control_character", {f"{M}/n.md": "a\u200bb\n".encode()},
     {f"{M}/n.md": "a\u00e9b\n".encode()}),
    ("escape in text", "control_character", {f"{M}/n.md": b"a\x1b[2Kb\n"}, {f"{M}/n.md": b"a\tb\r\nc\n"}),
    ("script in a page", "active_content", {f"{M}/report/x.html": b"<p>a</p>\n<script>1</script>\n"},
     {f"{M}/report/x.html": b"<p>script</p>\n<a href='#x'>x</a>\n"}),
    ("image from elsewhere", "active_content", {f"{M}/report/x.html": b"<img src='//x.org/y.png'>\n"},
     {f"{M}/report/x.html": b"<img alt='' src='data:image/png;base64,AA=='>\n"}),
    ("generated marker", "generated_marker", {f"{M}/k.py": b"# @generated\nA = 1\n"},
     {f"{M}/k.py": b"# made\nA = 1\n"}),
    ("lint exemption", "generated_marker", {f"{M}/k.py": b"# ruff: noqa\nA = 1\n"},
     {f"{M}/k.py": b"A = 1  # noqa: E1\n"}),
]  # fmt: skip
TOOLS = (
    "conftest.py setup.cfg tox.ini pyproject.toml ruff.toml .ruff.toml .clang-tidy .clang-format mypy.ini .mypy.ini "
    ".pre-commit-config.yaml .flake8 .coveragerc .pylintrc .editorconfig CMakeLists.txt Makefile makefile GNUmakefile "
    "Dockerfile Dockerfile.gpu app.dockerfile Containerfile requirements.txt requirements-gpu.txt constraints.txt "
    "evil.pth sitecustomize.py usercustomize.py setup.py noxfile.py pytest.ini kernels/conftest.py Conftest.py "
    ".github/workflows/x.yml .vscode/settings.json package.json entry_points.txt alpha.egg-info/PKG-INFO "
    "docker-compose.yml pyrightconfig.json BUILD BUILD.bazel meson.build other/fasttrack.toml MANIFEST.in"
).split()
CASES += [
    ("table elsewhere", "tool_configuration", {f"{M}/tables/k.toml": b"x = 1\n"}, {f"{M}/dispatch/k.toml": b"x = 1\n"}),
    ("table of no op", "tool_configuration", {f"{M}/dispatch/+k.toml": b"x = 1\n"}, {f"{M}/dispatch/k+l.toml": b"x = 1\n"}),
    ("other kernel table", "tool_configuration", {f"{M}/kernels/k.toml": b"x = 1\n"}, {
        f"{M}/kernels/k.space.toml": b"x = 1\n"}),
    ("tool configuration", "tool_configuration", {f"{M}/conftest.py": b"x = 1\n"}, {f"{M}/contest.py": b"x = 1\n"})
]


def applied(changes: dict, base: dict = BASE) -> dict:
    return {path: value for path, value in (base | changes).items() if value is not None}


def found(forge, changes: dict) -> Confinement:
    base = forge.commit(BASE)
    return check(forge.path, base, forge.commit(applied(changes), base), "alpha")


def rules(confinement: Confinement) -> set[str]:
    return {finding.rule for finding in (*confinement.findings, *confinement.notices)}


@pytest.mark.parametrize(("rule", "exploit", "honest"), [case[1:] for case in CASES], ids=[case[0] for case in CASES])
def test_exploit_fails_for_its_reason_and_twin_passes(forge, rule, exploit, honest):
    caught = found(forge, exploit)
    assert f"confinement.{rule}" in rules(caught), caught.findings
    assert caught.passed is RULES[f"confinement.{rule}"].notice
    twin = found(forge, honest)
    assert rules(twin) == set(), twin.findings
    assert {file.path for file in twin.files} == {
        path for path in honest if applied(honest).get(path) != BASE.get(path)
    }


@pytest.mark.parametrize(
    ("rule", "exploit", "honest"), [case[1:] for case in CONTENTS], ids=[case[0] for case in CONTENTS]
)
def test_contents_fail_for_their_reason_and_twins_pass(rule, exploit, honest):
    def broken(files: dict[str, bytes]) -> set[str]:
        return {problem.rule for path, data in files.items()
                for problem in check_contents(path.removeprefix(f"{M}/"), data, Limits())}  # fmt: skip

    assert f"confinement.{rule}" in broken(exploit)
    assert broken(honest) == set()


@pytest.mark.parametrize("name", TOOLS)
def test_tool_configuration_of_every_kind(name):
    assert "confinement.tool_configuration" in {problem.rule for problem in check_contents(name, b"x = 1\n", Limits())}


@pytest.mark.parametrize("name", ["kernels/build_plan.py", "setup_kernel.py", "kernels/make.py", "README.md", "x.json"])
def test_names_like_those_of_tools_are_fine(name):
    assert list(check_contents(name, b"{}\n", Limits())) == []


def test_manifest_is_the_one_configuration(forge):
    assert found(forge, {f"{M}/fasttrack.toml": b"[model]\n"}).passed


def test_edit_and_revert_is_seen_in_history(forge):
    base = forge.commit(BASE)
    edited = forge.commit(applied({"core/shared.py": b"EVIL = 1\n"}), base)
    head = forge.commit(applied({f"{M}/k.py": HONEST}), edited)
    (finding,) = check(forge.path, base, head, "alpha").findings
    assert (finding.rule, finding.path, finding.commit) == ("confinement.history", "core/shared.py", edited)
    squashed = forge.commit(applied({f"{M}/k.py": HONEST}), base)
    assert check(forge.path, base, squashed, "alpha").passed


def test_hidden_history_of_an_empty_outcome_is_no_empty_change(forge):
    base = forge.commit(BASE)
    head = forge.commit(BASE, forge.commit(applied({"core/shared.py": b"EVIL = 1\n"}), base))
    confinement = check(forge.path, base, head, "alpha")
    assert rules(confinement) == {"confinement.history", "confinement.empty"}
    assert not confinement.empty


def test_link_that_comes_and_goes_is_seen_in_history(forge):
    base = forge.commit(BASE)
    linked = forge.commit(applied({f"{M}/x.py": ("120000", b"/etc")}), base)
    confinement = check(forge.path, base, forge.commit(applied({f"{M}/y.py": HONEST}), linked), "alpha")
    assert rules(confinement) == {"confinement.history"}


def test_root_commit_in_the_range_is_read(forge):
    base = forge.commit(BASE)
    orphan = forge.commit({"core/evil.py": HONEST})
    head = forge.commit(applied({f"{M}/k.py": HONEST}), base, orphan)
    assert rules(check(forge.path, base, head, "alpha")) == {"confinement.history"}


def test_moved_base_raises_no_false_alarm(forge):
    fork = forge.commit(BASE)
    base = forge.commit(applied({"core/shared.py": b"SHARED = 3\n"}), fork)
    head = forge.commit(applied({f"{M}/k.py": HONEST}), fork)
    confinement = check(forge.path, base, head, "alpha")
    assert confinement.passed
    assert [file.path for file in confinement.files] == [f"{M}/k.py"]


def test_merging_the_base_into_the_branch_is_honest_and_an_evil_merge_is_not(forge):
    fork = forge.commit(BASE)
    moved = {"core/shared.py": b"SHARED = 3\n"}
    base = forge.commit(applied(moved), fork)
    side = forge.commit(applied({f"{M}/k.py": HONEST}), fork)
    merged = forge.commit(applied(moved | {f"{M}/k.py": HONEST}), side, base)
    assert check(forge.path, base, merged, "alpha").passed
    evil = forge.commit(applied({"core/shared.py": b"SHARED = 666\n", f"{M}/k.py": HONEST}), side, base)
    back = forge.commit(applied(moved | {f"{M}/k.py": HONEST}), evil)
    assert rules(check(forge.path, base, back, "alpha")) == {"confinement.history"}


def test_conflict_and_unrelated_history(forge):
    fork = forge.commit(BASE)
    one, two = (forge.commit(applied({f"{M}/kernels/k.py": text}), fork) for text in (b"A = 1\n", b"A = 2\n"))
    assert rules(check(forge.path, one, two, "alpha")) == {"confinement.conflict"}
    assert rules(check(forge.path, fork, forge.commit(BASE, message="other"), "alpha")) == {
        "confinement.unrelated_history"
    }


def test_attributes_of_the_head_do_not_steer_the_merge(forge):
    """`merge=union` would merge the two edits in silence."""
    attributes = {f"{M}/.gitattributes": b"*.py merge=union\n"}
    fork = forge.commit(applied(attributes))
    one, two = (forge.commit(applied(attributes | {f"{M}/kernels/k.py": text}), fork) for text in (b"A\n", b"B\n"))
    assert rules(check(forge.path, one, two, "alpha")) == {"confinement.conflict"}


def test_empty_change(forge):
    base = forge.commit(BASE)
    assert check(forge.path, base, base, "alpha").empty
    assert check(forge.path, base, forge.commit(BASE, base), "alpha").empty


def test_trees_that_git_would_not_write(forge):
    base = forge.commit(BASE)
    blob = forge.write("blob", HONEST)
    inner = forge.raw_tree([(b"100644", b"k.py", blob), (b"100644", b"k.py", forge.write("blob", b"A = 2\n"))])
    slash = forge.raw_tree([(b"100644", b"kernels/k.py", blob)])
    for alpha in (inner, slash):
        models = forge.raw_tree([(b"40000", b"alpha", alpha)])
        head = forge.commit(forge.raw_tree([(b"40000", b"models", models)]), base)
        assert "confinement.malformed_tree" in rules(check(forge.path, base, head, "alpha"))


def test_submodule_ignored_by_configuration_is_seen(forge):
    linked = {"vendored": ("160000", b"1" * 40)}
    base = forge.commit(applied(linked))
    head = forge.commit(applied({"vendored": ("160000", b"2" * 40), f"{M}/k.py": HONEST}), base)
    forge.git("config", "diff.ignoreSubmodules", "all")
    assert rules(check(forge.path, base, head, "alpha")) == {"confinement.outside", "confinement.gitlink"}


def test_replace_refs_do_not_hide_a_change(forge):
    base = forge.commit(BASE)
    evil = forge.commit(applied({"core/shared.py": b"EVIL = 1\n"}), base)
    innocent = forge.commit(applied({f"{M}/k.py": HONEST}), base)
    forge.git("replace", evil, innocent)
    assert rules(check(forge.path, base, evil, "alpha")) == {"confinement.outside"}


def test_limits_count_files_bytes_and_commits(forge):
    base = forge.commit(BASE)
    many = forge.commit(applied({f"{M}/k{n}.py": b"A = 1\n" for n in range(4)}), base)
    for limits in (Limits(max_files=3), Limits(max_total_bytes=23)):
        assert rules(check(forge.path, base, many, "alpha", limits)) == {"confinement.size"}
    assert check(forge.path, base, many, "alpha", Limits(max_files=4, max_total_bytes=24)).passed
    bomb = forge.commit(applied({f"{M}/evidence/x.json.gz": gzip.compress(b" " * 100_000)}), base)
    assert rules(check(forge.path, base, bomb, "alpha", Limits(max_unpacked_bytes=99_999))) == {
        "confinement.compressed"
    }
    assert check(forge.path, base, bomb, "alpha", Limits(max_unpacked_bytes=100_000)).passed
    longer = forge.commit(applied({f"{M}/k.py": HONEST}), many)
    assert rules(check(forge.path, base, longer, "alpha", Limits(max_commits=1))) == {"confinement.range_too_long"}


def test_a_path_outside_is_found_in_a_change_of_any_size(forge):
    """The interface of a forge cuts long lists of files off; trees are whole."""
    many = {f"{M}/evidence/samples/{n}.json": b"{}\n" for n in range(3000)} | {"zz/last.py": HONEST}
    caught = found(forge, many)
    assert [finding.path for finding in caught.findings if finding.rule == "confinement.outside"] == ["zz/last.py"]
    assert len(caught.files) == 3001 and "confinement.size" in rules(caught)


@pytest.mark.parametrize("name", "k.so k.cubin k.fatbin k.ptx w.pt w.pkl w.npz w.safetensors k.whl k.a k.pyc k.pyd".split())
def test_kinds_that_nobody_can_read_have_no_place(name):
    """By name where they could pass for text, in sources and evidence alike; their like in text does."""
    for place in (name, f"evidence/{name}", f"kernels/{name}"):
        assert "confinement.file_type" in {problem.rule for problem in check_contents(place, b"text\n", Limits())}
    assert list(check_contents("evidence/w.json", b"[1]\n", Limits())) == []


def test_an_accented_model_name_is_one_directory_in_both_spellings(forge):
    for spelling in ("models/caf\u00e9/k.py", "models/cafe\u0301/k.py"):
        assert "confinement.outside" in rules(found(forge, {spelling: HONEST}))
    both = found(forge, {"models/caf\u00e9/k.py": HONEST, "models/cafe\u0301/l.py": HONEST})
    assert "confinement.case_collision" in rules(both)


def test_attributes_that_drop_or_fold_files_are_one_rule(forge):
    for line in (b"*.py linguist-generated\n", b"kernels export-ignore\n", b"* merge=ours\n", b"*.py diff=evil\n"):
        assert "confinement.gitattributes" in rules(found(forge, {f"{M}/kernels/.gitattributes": line}))


def test_it_is_told_from_another_directory_and_from_inside_the_repository(forge, tmp_path, monkeypatch):
    base = forge.commit(BASE)
    head = forge.commit(applied({"core/shared.py": b"EVIL = 1\n"}), base)
    answers = []
    for place in (tmp_path, forge.path, Path("/")):
        monkeypatch.chdir(place)
        monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))
        monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
        answers.append(check(forge.path, base, head, "alpha"))
    assert answers[0] == answers[1] == answers[2] and rules(answers[0]) == {"confinement.outside"}


def test_findings_carry_line_title_and_remedy(forge):
    (finding,) = found(forge, {f"{M}/k.py": b"import torch\n\nimport os\n"}).findings
    assert (finding.path, finding.line, finding.rule) == (f"{M}/k.py", 3, "content.import")
    assert finding.title == RULES["content.import"].title and finding.remedy


def test_nothing_is_written(forge, tmp_path):
    def snapshot() -> set[Path]:
        return {path.relative_to(tmp_path) for path in tmp_path.rglob("*")}

    fork = forge.commit(BASE)
    base = forge.commit(applied({"core/shared.py": b"SHARED = 3\n"}), fork)
    head = forge.commit(applied({f"{M}/k.py": HONEST}), fork)
    before = snapshot()
    assert check(forge.path, base, head, "alpha").passed
    assert snapshot() == before


def test_other_root(forge):
    base = forge.commit({"vllm/models/alpha/k.py": b"A = 1\n"})
    head = forge.commit({"vllm/models/alpha/k.py": b"A = 2\n"}, base)
    assert check(forge.path, base, head, "alpha", root="vllm/models").passed
    assert not check(forge.path, base, head, "alpha").passed


@pytest.mark.parametrize("model", ["../core", "a/b", "", "Alpha", "\u0430lpha", "."])
def test_model_names_that_are_no_directory(model):
    with pytest.raises(UserError):
        model_directory(model)


def test_every_rule_has_a_case():
    tested = {f"confinement.{case[1]}" for case in CASES + CONTENTS} | {
        f"confinement.{name}" for name in ("history", "conflict", "unrelated_history", "range_too_long", "empty")
    }
    assert tested == {rule for rule in RULES if rule.startswith("confinement.")}


def test_the_rooms_page_lists_every_rule():
    page = (Path(check_contents.__code__.co_filename).parent / "README.md").read_text("utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == set(RULES)
    assert all(rule.title in rows[rule.id] and rule.remedy in rows[rule.id] for rule in RULES.values())
