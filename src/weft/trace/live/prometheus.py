"""The last window of a job in Prometheus' text format, and an HTTP endpoint that serves it."""

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from weft.errors import UsageError
from weft.trace.live.job_window import JobWindow

_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_RANK_METRICS = {  # by name: the field of a RankWindow, and what it is
    "collectives": ("num_collectives", "Collectives in the window."),
    "waiting_seconds": ("waiting", "Time in collectives before the last rank came."),
    "moving_seconds": ("moving", "Time in collectives in which bytes moved."),
    "last": ("num_last", "Collectives in which the rank came last."),
    "cost_seconds": ("cost", "Time that other ranks waited for this one."),
    "longer_busy_seconds": ("longer_busy", "Time it computed longer than others before."),
    "longer_idle_seconds": ("longer_idle", "Time it was idle longer than others before."),
    "silent_seconds": ("silent", "Time without a word of the rank; 0 if it was heard."),
}


def metrics_text(window: JobWindow | None) -> str:
    """Return the metrics of a window; without one, that there is none yet."""
    return "\n".join([*_lines(window), ""])


def _lines(window: JobWindow | None) -> Iterator[str]:
    yield from _metric(
        "weft_up", "Whether a window of the job has been seen.", [({}, window is not None)]
    )
    if window is None:
        return
    yield from _metric("weft_window_seconds", "Length of the window.", [({}, window.seconds)])
    yield from _metric("weft_window_end_seconds", "When it ended, unix time.", [({}, window.time)])
    if window.step_seconds is not None:
        yield from _metric(
            "weft_step_seconds", "Mean step of the slowest rank.", [({}, window.step_seconds)]
        )
    by_rank = [({"rank": str(rank.rank), "host": rank.host}, rank) for rank in window.ranks]
    for name, (key, text) in _RANK_METRICS.items():
        values = [(labels, getattr(rank, key)) for labels, rank in by_rank]
        yield from _metric(f"weft_rank_{name}", text, values)
    kinds = [
        ({"kind": k.kind, "bytes": str(k.nbytes), "ranks": str(k.num_ranks)}, k)
        for k in window.kinds
    ]
    yield from _metric("weft_collective_count", "Collectives.", [(at, k.count) for at, k in kinds])
    yield from _metric(
        "weft_collective_moving_seconds", "Mean transfer time.", [(at, k.moving) for at, k in kinds]
    )
    yield from _metric(
        "weft_collective_waiting_seconds", "Mean waiting.", [(at, k.waiting) for at, k in kinds]
    )


def _metric(name: str, text: str, values: list[tuple[dict[str, str], float]]) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} gauge"
    for labels, value in values:
        inside = ",".join(f'{key}="{_escaped(label)}"' for key, label in labels.items())
        number = f"{value:.15g}"  # nine digits of a unix time are off by seconds
        yield f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class MetricsServer:
    """Serves ``/metrics`` in a thread, on loopback unless another host is named."""

    def __init__(
        self, port: int, source: Callable[[], JobWindow | None], host: str = "127.0.0.1"
    ) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = self.path.split("?")[0] in ("/", "/metrics")
                body = metrics_text(source()).encode() if found else b"not found: use /metrics\n"
                self.send_response(200 if found else 404)
                self.send_header("Content-Type", _TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                """Stay quiet: requests come every few seconds."""

        try:
            self._server = ThreadingHTTPServer((host, port), Handler)
        except OverflowError:
            raise UsageError(f"port: must be from 0 to 65535 (got {port})") from None
        except OSError as error:
            raise UsageError(
                f"cannot listen on {host}:{port}: {error.strerror}",
                "Use another port, or 0 for a free one.",
            ) from None
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that it listens on."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
