"""What a verdict was made by: the judge's sources, and nothing else."""

import hashlib

from fasttrack_validation import digests


def test_judge_digest_covers_the_judge_only_by_hand():
    files = {
        "judge/verdict.py": b"1",
        "judge/recorder/x.py": b"2",
        "claims/cells.py": b"3",
        "claims/prose.py": b"a rule about texts, no part of a verdict",
        "performance/hardware.toml": b"4",
        "records.py": b"5",
        "judge/replay/kernels.ptx": b"6",
        "judge/README.md": b"not code",
        "contracts/kimi_k3/x.py": b"a contract has a digest of its own",
        "judge.py": b"no room",
    }
    names = (
        "claims/cells.py", "judge/recorder/x.py", "judge/replay/kernels.ptx", "judge/verdict.py",
        "performance/hardware.toml", "records.py",
    )  # fmt: skip
    lines = [f"{hashlib.sha256(files[name]).hexdigest()}  {name}\n" for name in names]
    assert digests.judge_digest(files) == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_installed_judge_has_its_rooms():
    chosen = [name for name in digests.package_files() if digests.is_judge_source(name)]
    assert {name.split("/")[0] for name in chosen if "/" in name} == {*digests.JUDGE_ROOMS, "claims", "contracts"}
    assert len(digests.installed_judge_digest()) == 64
