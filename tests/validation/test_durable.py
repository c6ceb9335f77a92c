"""Lines that are on disk or not there: what a crash cut off, and what there was no room for."""

import os
import resource

import pytest
from fasttrack_validation.durable import GrowingFile, replace_file


@pytest.mark.parametrize("data,held", [(b"", []), (b"a\nb", [b"a"]), (b"a\n\xe2\x80\xa8b\nc\n", [b"a", b"\xe2\x80\xa8b", b"c"])])
def test_whole_lines_are_held_and_the_rest_is_cut_off(tmp_path, data, held):
    path = tmp_path / "lines"
    path.write_bytes(data)
    file = GrowingFile(path)
    assert file.held == held
    file.append("next")
    file.close()
    assert path.read_bytes() == b"".join(line + b"\n" for line in [*held, b"next"])


def test_of_a_line_that_does_not_fit_nothing_is_there(tmp_path):
    path, limits = tmp_path / "lines", resource.getrlimit(resource.RLIMIT_FSIZE)
    file = GrowingFile(path)
    file.append("four")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError):
            file.append("more than five")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"four\n"
    file.append("five")
    file.close()
    assert path.read_bytes() == b"four\nfive\n"


def test_a_file_that_cannot_be_replaced_is_as_it_was(tmp_path):
    path, limits = tmp_path / "file", resource.getrlimit(resource.RLIMIT_FSIZE)
    replace_file(path, b"old", tmp_path / "new")
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
    try:
        with pytest.raises(OSError):
            replace_file(path, b"longer than ten", tmp_path / "new")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == b"old" and list(tmp_path.iterdir()) == [path]


def test_every_line_is_synced_and_a_new_name_too(tmp_path, monkeypatch):
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.readlink(f"/proc/self/fd/{handle}")), fsync(handle)))
    file = GrowingFile(tmp_path / "lines", 0o600)
    file.append("a")
    file.close()
    GrowingFile(tmp_path / "lines").close()
    assert synced == [str(tmp_path), str(tmp_path / "lines"), str(tmp_path)]
    assert (tmp_path / "lines").stat().st_mode & 0o777 == 0o600
