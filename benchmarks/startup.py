"""How long `fasttrack --help` takes to start, beside a bare interpreter. Prints medians in seconds and their ratio.

    python benchmarks/startup.py [REPETITIONS]
"""

import statistics
import subprocess
import sys
import time


def median_seconds(arguments: list[str], repetitions: int) -> float:
    """Median wall time of a command, in seconds, after one run that is not counted."""
    times = []
    for _ in range(repetitions + 1):
        start = time.perf_counter()
        subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:])


def main() -> None:
    """Measures and prints."""
    repetitions = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    bare = median_seconds(["-c", "pass"], repetitions)
    help_ = median_seconds(["-m", "fasttrack", "--help"], repetitions)
    print(f"python -c pass       {bare:.3f} s")
    print(f"fasttrack --help     {help_:.3f} s")
    print(f"ratio                {help_ / bare:.1f}")


if __name__ == "__main__":
    main()
