"""Where untrusted code is recorded and interpreted: namespaces or Landlock, seccomp, limits, a process for each job."""

from .records import JobResult, JobStatus, Limits, Profile, Rung, Trial
from .sandbox import RUNGS, Sandbox, probe, sealed_memory

__all__ = ["RUNGS", "JobResult", "JobStatus", "Limits", "Profile", "Rung", "Sandbox", "Trial", "probe", "sealed_memory"]
