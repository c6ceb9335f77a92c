"""`python load_server_process.py PORT STEP_SECONDS MODEL`: a LoadServer at a port, until it is stopped."""

import signal
import sys

import load_server


def main() -> None:
    port, step, model = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    server = load_server.LoadServer(first_s=0.01, step_s=step, model=model)
    server.port = port
    with server:
        signal.pause()


if __name__ == "__main__":
    main()
