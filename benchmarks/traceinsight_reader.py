"""traceinsight (HolisticTraceAnalysis) at the work of ``weft analyze``, in its own environment."""

import json
import sys
import time
from pathlib import Path

from hta.trace_analysis import TraceAnalysis


def main(path: str) -> None:
    """Load one trace, ask what ``weft analyze`` answers, print seconds and bytes."""
    begin = time.perf_counter()
    analysis = TraceAnalysis(trace_files={0: path}, trace_dir=str(Path(path).parent))
    analysis.get_temporal_breakdown(visualize=False)
    overlap = analysis.get_comm_comp_overlap(visualize=False)
    analysis.get_gpu_kernel_breakdown(visualize=False)
    analysis.get_idle_time_breakdown(visualize=False)
    wall = time.perf_counter() - begin
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    peak = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    percent = float(overlap.iloc[0].iloc[-1])
    print(json.dumps({"wall": wall, "peak_bytes": peak, "overlap_percent": percent}))


if __name__ == "__main__":
    main(sys.argv[1])
