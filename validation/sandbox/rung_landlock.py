"""Rung 2, for systems that refuse namespaces: Landlock, seccomp, limits, and as root a uid of the job's own.

What it does not hide: names and metadata of files, the process list by way of timing, host name and load. The scratch
directory is measured instead of sized.
"""

import os
import shutil
import tempfile

from . import landlock, rung_namespaces, seccomp, system
from .plan import Plan, SetupError

CONFINES = True


def outside(plan: Plan) -> None:
    """Makes the scratch directory; orphans of the job become the supervisor's children."""
    abi = landlock.abi()
    if abi < landlock.ABI_TRUNCATE:
        # Below it a file that may be read could be cut to nothing.
        raise SetupError(f"Landlock ABI {landlock.ABI_TRUNCATE} (Linux 6.2) is needed; this kernel offers {abi}")
    make_scratch(plan)


def make_scratch(plan: Plan) -> None:
    """A private directory below the system's temporary one, and orphans adopted so that none gets away."""
    plan.scratch = os.path.realpath(tempfile.mkdtemp(prefix="fasttrack-sandbox-"))
    os.chown(plan.scratch, plan.uid, plan.gid)
    plan.other_tasks = 1 if plan.drop_uid else system.tasks_of(plan.uid) + 1
    system.prctl("PR_SET_CHILD_SUBREAPER", system.PR_SET_CHILD_SUBREAPER, 1)


def inside(plan: Plan) -> None:
    """Nothing: everything else is done to the job's own process."""


def lock(plan: Plan) -> None:
    """Landlock, then the system call filter. Before ABI 6 the filter alone confines signals."""
    abi = landlock.abi()
    landlock.restrict(rung_namespaces.rules(plan, abi), abi)
    plan.facts["landlock_abi"] = abi
    seccomp.install(may_fork=plan.may_fork, only_pid=None if abi >= landlock.ABI_SIGNALS else os.getpid())


def clean(plan: Plan) -> None:
    """Removes the scratch directory."""
    if plan.scratch:
        shutil.rmtree(plan.scratch)
