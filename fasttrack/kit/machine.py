"""Checks of a machine before a kit's first hour is spent. Python's own library alone: it runs before anything is installed.

Run inside the kit: `python3 check_machine.py [--gpus N]`. Prints a line for each check, writes results/machine.json, and
conditions.toml, servers/*.toml and inputs/declare.json from their templates with what was found. What cannot be found out
stays unknown.
Exit: 0 all in order, 1 something is not.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

TEMPLATES = ("*.toml.in", "servers/*.toml.in", "inputs/*.json.in")
STATED = {"engine_build": "the engine's build", "model_revision": "the revision of the weights"}
QUERY = "name,driver_version,clocks.sm,clocks.mem,clocks_event_reasons.hw_slowdown,memory.total"


def main(arguments=None, folder=None):
    """The checks. `folder`: the kit, by default where this file lies."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, help="linked GPUs over all nodes; by default those of this node")
    given = parser.parse_args(arguments)
    folder = Path(folder or __file__).resolve()
    folder = folder if folder.is_dir() else folder.parent
    kit = json.loads((folder / "kit.json").read_text("utf-8"))
    facts, checks = look(folder), []
    if given.gpus is not None:
        facts["gpus"] = given.gpus
    checks = check(kit["requirement"], facts)
    for good, said, remedy in checks:
        print(f"{'ok  ' if good else 'FAIL'} {said}" + ("" if good else f"\n     {remedy}"))
    results = folder / "results"
    results.mkdir(exist_ok=True)
    write(results / "machine.json", json.dumps({"kit": kit["commit"], "facts": facts}, indent=1, sort_keys=True) + "\n")
    for template in sorted(path for kind in TEMPLATES for path in folder.glob(kind)):
        write(template.with_suffix(""), filled(template.read_text("utf-8"), facts))
    return 0 if all(good for good, _, _ in checks) else 1


def look(folder):
    """Facts about this machine."""
    cards = nvidia_smi()
    facts = {
        "host": platform.machine(), "python": platform.python_version(), "cpus": os.cpu_count(),
        "disk_gb": shutil.disk_usage(folder).free // 10**9, "memory_gb": memory_gb(), "gpus": len(cards),
        "signs": bool(os.environ.get("KEY")),
        "programs": sorted(name for name in ("ssh-keygen", "vllm", "aiperf", "curl", "tar") if shutil.which(name)),
    }  # fmt: skip
    if cards:
        facts.update({name: one_value(cards, name) for name in ("gpu", "driver", "sm_clock", "memory_clock", "throttled")})
    for name in ("CLOCKS_LOCKED", "ENGINE_BUILD", "MODEL_REVISION", "INTERCONNECT", "NODES"):
        if os.environ.get(name):
            facts[name.lower()] = os.environ[name]
    return facts


def nvidia_smi():
    """One dictionary for each GPU of this node; none without the driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader,nounits"], capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return []
    if done.returncode:
        return []
    names = ("gpu", "driver", "sm_clock", "memory_clock", "throttled", "memory_mb")
    lines = (line for line in done.stdout.splitlines() if line.strip())
    rows = [dict(zip(names, (one.strip() for one in line.split(",")))) for line in lines]
    for row in rows:
        row["throttled"] = {"Active": "true", "Not Active": "false"}.get(row.get("throttled"))
    return rows


def one_value(cards, name):
    """What all cards agree on; None where they do not, or where it is not said."""
    values = {card.get(name) for card in cards}
    value = values.pop() if len(values) == 1 else None
    return None if value in ("", "[N/A]", "[Not Supported]") else value


def memory_gb():
    """Of the host; None where it cannot be read."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 10**9
    except (ValueError, OSError):
        return None


def check(wanted, facts):
    """(in order, what, remedy) of every requirement."""
    found = []

    def say(good, said, remedy):
        found.append((bool(good), said, remedy))

    version = tuple(int(part) for part in facts["python"].split(".")[:2])
    oldest = ".".join(map(str, wanted["python"]))
    say(version >= tuple(wanted["python"]), f"Python {facts['python']}", f"use Python {oldest} or newer")
    say(facts["disk_gb"] >= wanted["disk_gb"], f"{facts['disk_gb']} GB free, {wanted['disk_gb']} GB needed",
        "put the kit, and the weights, on a larger disk")  # fmt: skip
    memory = facts.get("memory_gb")
    say(memory is not None and memory >= wanted["memory_gb"], f"{memory} GB of memory, {wanted['memory_gb']} GB needed",
        "use a larger host")  # fmt: skip
    for name in (*wanted["programs"], *(("ssh-keygen",) if facts.get("signs") else ())):
        there = name in facts["programs"]
        say(there, f"{name} {'is there' if there else 'is missing'}", f"install {name}")
    if wanted["gpu"] is not None:
        name = facts.get("gpu")
        say(name is not None and wanted["gpu"] in name, f"GPU {name}, wanted a {wanted['gpu']}",
            "figures of another GPU are no figures of this one: run the kit of your hardware")  # fmt: skip
        said = f"{facts['gpus']} GPUs, {wanted['gpus']} needed at once"
        remedy = "say how many are linked over all nodes (GPUS=N), or write a kit for fewer (`fasttrack kit --gpus N`)"
        say(facts["gpus"] >= wanted["gpus"], said, remedy)
        driver = facts.get("driver")
        if wanted["driver"] is not None:
            good = driver is not None and numbers(driver) >= numbers(wanted["driver"])
            say(good, f"driver {driver}, {wanted['driver']} or newer needed", "update the NVIDIA driver")
        say(facts.get("throttled") != "true", f"hardware slowdown: {facts.get('throttled') or 'unknown'}",
            "see to cooling and power first: a throttled card measures nothing")  # fmt: skip
        say(facts.get("clocks_locked") in ("true", "false"), f"clocks locked: {facts.get('clocks_locked') or 'not said'}",
            "lock them (`nvidia-smi -lgc MHZ`) and export CLOCKS_LOCKED=true, or export CLOCKS_LOCKED=false")  # fmt: skip
        for name in wanted["stated"]:
            say(facts.get(name), f"{STATED[name]}: {facts.get(name) or 'not said'}",
                f"export {name.upper()}=...: numerics and claims refuse what nobody names")  # fmt: skip
    return found


def numbers(version):
    """"580.95.05" -> (580, 95, 5)."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def filled(text, facts):
    """A template with @NAME@ replaced by facts. A line with a fact that is not known is left out: it is unknown."""
    lines = []
    for line in text.splitlines():
        names = re.findall(r"@([A-Z_]+)@", line)
        if any(facts.get(name.lower()) is None for name in names):
            continue
        for name in names:
            line = line.replace(f"@{name}@", str(facts[name.lower()]).replace("\\", "").replace('"', ""))
        lines.append(line)
    return "\n".join(lines) + "\n"


def write(path, text):
    """In full or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_text(text, "utf-8")
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
