"""The judge's hold on a zygote: starting it in an environment made from nothing, handing it jobs, ending it."""

import contextlib
import json
import os
import site
import socket
import subprocess
import sys

from ..errors import SandboxUnavailable
from . import outcome, roots

START_SECONDS = 120.0


class ZygoteHandle:
    """A running zygote that has imported `preload`; `roots` are the paths that its jobs may read.

    Raises SandboxUnavailable when it cannot start, or is another Python than this one.
    """

    def __init__(self, preload: tuple[str, ...], environ: dict[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        code = f"from {__package__} import zygote; zygote.main({theirs.fileno()}, {os.getpid()})"
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", code],
                    env=environ,
                    cwd="/",
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                )
            except OSError as error:
                self._control.close()
                raise SandboxUnavailable(
                    f"cannot start {sys.executable} as uid {os.geteuid()}: {error.strerror}",
                    "install Python and its packages where this user can reach them",
                ) from error
        try:
            self.roots = self._greet(preload)
        except BaseException:
            self.close()
            raise

    def _greet(self, preload: tuple[str, ...]) -> tuple[str, ...]:
        user_site = [site.getusersitepackages()] if site.ENABLE_USER_SITE else []
        sites = [path for path in user_site if path in sys.path]
        self._control.settimeout(START_SECONDS)
        try:
            self._control.send(json.dumps({"preload": preload, "sites": sites, "home": roots.home()}).encode())
            ready = json.loads(self._control.recv(1 << 16) or b'{"failed": "it ended without a word"}')
        except OSError as error:
            ready = {"failed": str(error)}
        if "failed" in ready:
            raise SandboxUnavailable(
                f"the process that jobs are forked from did not start: {outcome.quote(ready['failed'])[-500:].strip()}",
                f"check that `{sys.executable} -I` can import {', '.join(preload) or __package__}",
            )
        if ready["prefix"] != sys.prefix:
            raise SandboxUnavailable(
                f"{sys.executable} starts another Python: {ready['prefix']}, not {sys.prefix}", "repair the environment"
            )
        return tuple(ready["roots"])

    @property
    def pid(self) -> int:
        """The zygote's process id."""
        return self._process.pid

    def adopt(self, connection: socket.socket) -> None:
        """Hands over one job's connection. A zygote that is gone shows as end of file on the other end."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._control, [b"j"], [connection.fileno()])

    def close(self) -> None:
        """Ends the process and waits for it."""
        self._control.close()
        self._process.terminate()
        self._process.wait()
