import json
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from fasttrack import cli, doctor
from fasttrack_validation.errors import UserError

ROOT = Path(doctor.__file__).parent.parent


def state(line):
    return line.state


def bounds(low_high):
    low, high = low_high
    return SpecifierSet(f">={'.'.join(map(str, low))},<{'.'.join(map(str, high))}")


def test_ranges_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {r.name: r.specifier for r in map(Requirement, project["dependencies"])}
    assert {name: needed[name] for name in doctor.RANGES} == {name: bounds(r) for name, r in doctor.RANGES.items()}
    assert SpecifierSet(project["requires-python"]) == bounds(doctor.PYTHON)


@pytest.mark.parametrize(
    ("version", "expected"),
    [("3.8.0", "ok"), ("3.9.0+git1", "ok"), ("3.7.9", "fail"), ("3.10.0", "fail"), ("4.0", "fail"), ("odd", "fail")],
)
def test_triton_range(monkeypatch, version, expected):
    monkeypatch.setattr(metadata, "version", lambda name: version)
    line = doctor.package("triton")
    assert line.state == expected and line.how == 'pip install "triton>=3.8,<3.10"'
    if expected == "fail":
        with pytest.raises(UserError, match="supported range >=3.8,<3.10|>=3.11"):
            doctor.require_toolchain()


def test_who_records_nothing_needs_no_particular_triton(monkeypatch):
    monkeypatch.setattr(metadata, "version", lambda name: "3.6.0" if name == "triton" else "2.11.0")
    doctor.require_toolchain(records=False)
    with pytest.raises(UserError, match="triton: 3.6.0"):
        doctor.require_toolchain()


def test_a_missing_package(monkeypatch):
    def missing(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert (doctor.package("torch").state, doctor.package("torch").what) == ("fail", "not installed")


def test_python_range(monkeypatch):
    assert doctor.python().state == "ok"
    monkeypatch.setattr(doctor.sys, "version_info", (3, 14, 0))
    assert doctor.python().state == "fail" and ">=3.11,<3.14" in doctor.python().what


@pytest.mark.parametrize(("version", "expected"), [("2.38.0", "ok"), ("2.37.9", "fail"), ("3.0.1", "ok")])
def test_git_version(monkeypatch, version, expected):
    done = subprocess.CompletedProcess([], 0, stdout=f"git version {version}\n", stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *args, **kwargs: done)
    assert doctor.git().state == expected


def test_no_git(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert doctor.git().state == "fail" and doctor.identity(Path("/")).state == "fail"


def test_checkout_and_identity(checkout, tmp_path, monkeypatch):
    assert doctor.checkout(checkout / "models").state == "ok"
    assert doctor.checkout(tmp_path).state == "warn"
    assert doctor.identity(checkout).state == "warn" and "fasttrack@localhost" in doctor.identity(checkout).what
    (tmp_path / "home").mkdir()
    (tmp_path / "home/.gitconfig").write_text("[user]\nname = Ada\nemail = ada@example.org\n")
    assert doctor.identity(checkout).what == "Ada <ada@example.org>"


def test_space(monkeypatch, tmp_path):
    usage = type("Usage", (), {"free": doctor.FREE_BYTES - 1})
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda path: usage)
    assert doctor.space("x", tmp_path).state == "warn"
    usage.free += 1
    assert doctor.space("x", tmp_path).state == "ok"


def test_state_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "new"))
    assert doctor.state_directory().state in ("ok", "warn")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FASTTRACK_HOME", str(tmp_path / "file"))
    assert doctor.state_directory().state == "fail" and "cannot be written" in doctor.state_directory().what
    monkeypatch.setenv("FASTTRACK_HOME", "relative")
    assert doctor.state_directory().state == "fail"


def test_a_sandbox_that_does_not_hold_fails_with_what_is_missing(monkeypatch):
    import fasttrack_validation.sandbox as room

    def probe():
        raise UserError("no user namespaces", "enable them")

    monkeypatch.setattr(room, "probe", probe, raising=False)
    line = doctor.sandbox()
    assert (line.state, line.what, line.how) == ("fail", "no user namespaces", "enable them")
    monkeypatch.setattr(room, "probe", lambda: type("Rung", (), {"name": "namespaces", "description": "all of it"}))
    assert doctor.sandbox().what == "namespaces: all of it"


@pytest.mark.parametrize(("gpu_tools", "state"), [(True, "warn"), (False, "ok")])
def test_what_only_a_gpu_machine_needs(monkeypatch, tmp_path, gpu_tools, state):
    from fasttrack_validation.judge.device_code import cuda_compiler
    from fasttrack_validation.judge.replay import sanitizer

    def missing(*_):
        raise metadata.PackageNotFoundError

    def none():
        raise cuda_compiler.NoCudaCompiler("cuda-bindings is not installed")

    if gpu_tools:
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(metadata, "version", missing)
    monkeypatch.setattr(cuda_compiler, "available", none)
    monkeypatch.setattr(sanitizer, "find", lambda: None)
    bindings, nvrtc, tool = doctor.bindings(), doctor.nvrtc(), doctor.sanitizer()
    assert [bindings.state, nvrtc.state, tool.state] == [state, "ok", state]
    assert "never launched" in bindings.what and "not run" in nvrtc.what and "C15" in tool.what
    assert all(line.how for line in (bindings, nvrtc, tool))


def test_what_is_there_is_named(monkeypatch):
    from fasttrack_validation.judge.device_code import cuda_compiler
    from fasttrack_validation.judge.replay import sanitizer

    monkeypatch.setattr(metadata, "version", lambda name: {"cuda-bindings": "13.1"}[name])
    monkeypatch.setattr(cuda_compiler, "available", lambda: "NVRTC 13.0")
    monkeypatch.setattr(sanitizer, "find", lambda: "/opt/cuda/bin/compute-sanitizer")
    lines = doctor.bindings(), doctor.nvrtc(), doctor.sanitizer()
    assert [line.state for line in lines] == ["ok"] * 3
    for line, word in zip(lines, ("13.1", "NVRTC 13.0", "/opt/cuda/bin/compute-sanitizer"), strict=True):
        assert word in line.what


def test_exit_code_and_output(monkeypatch, capsys):
    lines = [doctor.Line("a", "ok", "fine"), doctor.Line("b", "warn", "so so", "do this")]
    monkeypatch.setattr(doctor, "examine", lambda: lines)
    assert cli.run(["doctor"]) == 0
    assert capsys.readouterr().out == "ok   a: fine\nwarn b: so so\n     do this\n"
    lines.append(doctor.Line("c", "fail", "bad", "do that"))
    assert cli.run(["doctor", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[2] == {"name": "c", "state": "fail", "what": "bad", "how": "do that"}
