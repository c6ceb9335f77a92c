"""How long a thousand measurement records take to check: five hundred claims of one cell each, from a file to findings.

python benchmarks/claims_speed.py [RECORDS]
"""

import json
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "support"))

import claim_records as records

from fasttrack_validation.claims.review import review


def claims(count: int) -> list[dict]:
    """Claims with findings of many kinds, and with none."""
    changes = [{}, {"hardware__driver": None}, {"validity__repeated_ngrams": 0.9}, records.NATURAL, records.FORCED]
    return [{**records.simple(1 + n / count, **changes[n % len(changes)]), "id": f"c{n}"} for n in range(count)]


def main() -> None:
    """Measures and prints."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "claims.jsonl"
        path.write_text("".join(json.dumps(one) + "\n" for one in claims(count // 2)))
        single = Path(directory) / "claims.json"
        single.write_text(json.dumps(claims(count // 2)))
        for name, file in (("JSON Lines", path), ("one list", single)):
            start = time.perf_counter()
            found = review([file])
            took = time.perf_counter() - start
            print(f"{name}: {2 * len(found.items)} records, {len(found.located)} findings in {took:.2f} s")


if __name__ == "__main__":
    main()
