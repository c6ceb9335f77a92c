"""What a jail may read: the interpreter's needs, not the surroundings they lie in."""

import os
import sys
from pathlib import Path

import fasttrack_validation
from fasttrack_validation.sandbox import landlock, roots


def test_own_packages_come_without_their_checkout():
    readable = roots.readable(["fasttrack_validation"], roots.home())
    package = Path(fasttrack_validation.__file__).parent
    assert roots.covered(str(package), readable)
    assert not roots.covered(str(package.parent / "pyproject.toml"), readable)
    assert not roots.covered(roots.home(), readable)


def test_interpreter_and_standard_library_are_there():
    readable = roots.readable([], roots.home())
    for path in (sys.prefix, sys.base_prefix, os.__file__, "/usr/bin"):
        assert roots.covered(path, readable), path


def test_work_trees_homes_and_the_root_are_left_out(monkeypatch, tmp_path):
    home, tree, plain = (tmp_path / name for name in ("home", "tree", "plain"))
    for folder in (home / "deep", tree / ".git", plain):
        folder.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(home), str(home / "deep"), str(tree), str(plain), "/", ""])
    readable = roots.readable([], str(home))
    assert str(plain) in readable and str(home / "deep") in readable
    assert not {str(tmp_path), str(home), str(tree), "/", ""} & set(readable)


def test_only_the_outermost_stays_and_links_bring_their_targets(monkeypatch, tmp_path):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to("real")
    paths = [tmp_path / "real", tmp_path / "real" / "inner", tmp_path / "link"]
    monkeypatch.setattr(sys, "path", [str(path) for path in paths])
    readable = [path for path in roots.readable([], "/nonexistent") if path.startswith(str(tmp_path))]
    assert readable == [str(tmp_path / "link"), str(tmp_path / "real")]


def test_landlock_rights_by_abi():
    # <linux/landlock.h>: ABI 1 ends with MAKE_SYM (bit 12); 2 adds REFER (13), 3 TRUNCATE (14), 5 IOCTL_DEV (15).
    def highest(abi):
        return landlock.read_write(abi).bit_length() - 1

    assert [highest(abi) for abi in (1, 2, 3, 4, 5, 6, 7)] == [12, 13, 14, 14, 15, 15, 15]
    for forbidden in (0, 6, 9, 11):  # EXECUTE, MAKE_CHAR, MAKE_SOCK, MAKE_BLOCK
        assert not landlock.read_write(7) >> forbidden & 1
