"""A process that has imported what jobs need, and forks one supervisor for each.

It starts as a fresh, isolated interpreter with an environment made from nothing and one inherited descriptor, stays
single-threaded, and never sees what a job is given: that travels on the job's own connection.
"""

import gc
import importlib
import json
import os
import select
import signal
import site
import socket
import sys
import traceback

from . import jail, roots, supervisor

_LOOK_SECONDS = 1.0


def main(control_descriptor: int, judge: int) -> None:
    """Serves jobs that arrive on the control socket until it closes or the process `judge` is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # supervisors are reaped by the kernel
    control = socket.socket(fileno=control_descriptor)
    control.set_inheritable(False)
    settings = json.loads(control.recv(1 << 16))
    try:
        for folder in settings["sites"]:
            site.addsitedir(folder)
        for module in settings["preload"]:
            importlib.import_module(module)
        packages = {module.partition(".")[0] for module in settings["preload"]}
        readable = tuple(roots.readable({*packages, *roots.OWN_PACKAGES}, settings["home"]))
        tasks = len(os.listdir("/proc/self/task"))
        if tasks != 1:
            raise RuntimeError(f"the preloaded modules left {tasks} threads; a jail is entered by one")
    except BaseException as error:
        control.send(json.dumps({"failed": traceback.format_exception_only(error)[-1]}).encode())
        return
    gc.collect()
    gc.freeze()
    gc.disable()
    control.send(json.dumps({"prefix": sys.prefix, "roots": readable}).encode())
    _serve(control, judge, readable)


def _serve(control: socket.socket, judge: int, readable: tuple[str, ...]) -> None:
    while os.getppid() == judge:
        if not select.select([control], [], [], _LOOK_SECONDS)[0]:
            continue
        data, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not data:
            return
        if os.fork() == 0:
            with jail.exiting(1):
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                control.close()
                supervisor.supervise(socket.socket(fileno=descriptors[0]), readable)
        os.close(descriptors[0])
