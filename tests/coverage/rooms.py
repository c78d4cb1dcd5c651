"""Lines that ran, by room: a table from what coverage combined."""

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Print a line for each room, the least covered first."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        command = [sys.executable, "-m", "coverage", "json", "-q", "-o", file.name]
        subprocess.run(command, cwd=ROOT, check=True)
        files = json.loads(Path(file.name).read_bytes())["files"]
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in files.items():
        parts = Path(name).parts
        room = parts[parts.index("weft") + 1]
        rooms[room][0] += found["summary"]["covered_lines"]
        rooms[room][1] += found["summary"]["num_statements"]
    for room, (ran, lines) in sorted(rooms.items(), key=lambda each: each[1][0] / each[1][1]):
        print(f"{ran / lines:7.1%}  {ran:5} of {lines:5}  {room}")  # noqa: T201
    total = [sum(each) for each in zip(*rooms.values(), strict=True)]
    print(f"{total[0] / total[1]:7.1%}  {total[0]:5} of {total[1]:5}  all rooms")  # noqa: T201


if __name__ == "__main__":
    main()
