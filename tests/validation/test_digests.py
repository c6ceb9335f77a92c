"""What a verdict was made by: the judge's sources, and nothing else."""

import hashlib

import grimp

from fasttrack_validation import digests


def test_judge_digest_covers_the_judge_only_by_hand():
    files = {
        "judge/verdict.py": b"1",
        "judge/recorder/x.py": b"2",
        "claims/cells.py": b"3",
        "claims/prose.py": b"a rule about texts, no part of a verdict",
        "numerics/calibrate.py": b"4a",
        "numerics/servers/client.py": b"whole servers, no part of a verdict",
        "performance/runner.py": b"the grid's",
        "performance/hardware.toml": b"4",
        "records.py": b"5",
        "judge/replay/kernels.ptx": b"6",
        "judge/README.md": b"not code",
        "contracts/kimi_k3/x.py": b"a contract has a digest of its own",
        "judge.py": b"no room",
    }
    names = (
        "claims/cells.py", "judge/recorder/x.py", "judge/replay/kernels.ptx", "judge/verdict.py", "numerics/calibrate.py",
        "performance/hardware.toml", "records.py",
    )  # fmt: skip
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in names]
    assert digests.judge_digest(files) == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_everything_that_a_verdict_runs_through_is_in_the_digest_and_little_else():
    """By what is imported, from the judge's rooms on; contracts are where it ends, having digests of their own."""
    package = "fasttrack_validation"
    graph = grimp.build_graph(package, cache_dir=None)
    rooms = tuple(f"{package}.{room}" for room in digests.JUDGE_ROOMS)
    reached, waiting = set(), [module for module in graph.modules if module.startswith(rooms)]
    while waiting:
        module = waiting.pop()
        if module in reached or (module.startswith(f"{package}.contracts") and module != f"{package}.contracts.base"):
            continue
        reached.add(module)
        waiting += graph.find_modules_directly_imported_by(module)
    files = digests.package_files()
    stems = {name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") for name in files if name.endswith(".py")}
    needed = {module.removeprefix(f"{package}.") for module in reached} & stems
    chosen = {name for name in files if digests.is_judge_source(name)}
    assert len(needed) > 60
    assert {name.replace(".", "/") for name in needed} == {
        name.removesuffix(".py").removesuffix("/__init__") for name in chosen if name.endswith(".py")
    }
    assert set(digests.JUDGE_FILES) <= chosen and len(digests.installed_judge_digest()) == 64
