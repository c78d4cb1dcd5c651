"""Lines that ran, by package: a table from what coverage combined."""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Print a line for each package, the least covered first."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "coverage", "json", "-q", "-o", file.name]
        subprocess.run(command, cwd=ROOT, check=True)
        files = json.loads(Path(file.name).read_bytes())["files"]
    packages: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in files.items():
        parts = Path(name).parts
        package = parts[parts.index("weft") + 1]
        packages[package][0] += found["summary"]["covered_lines"]
        packages[package][1] += found["summary"]["num_statements"]
    for package, (ran, lines) in sorted(packages.items(), key=lambda each: each[1][0] / each[1][1]):
        print(f"{ran / lines:7.1%}  {ran:5} of {lines:5}  {package}")  # noqa: T201
    total = [sum(each) for each in zip(*packages.values(), strict=True)]
    print(f"{total[0] / total[1]:7.1%}  {total[0]:5} of {total[1]:5}  all packages")  # noqa: T201


if __name__ == "__main__":
    main()
