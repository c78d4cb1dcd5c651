"""Chromium without a window, spoken to by its DevTools protocol over two pipes.

The pipes are its file descriptors 3 and 4; messages are JSON, each ended by a zero byte. So
no driver and no package is needed, and no port is opened.
"""

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from weft.errors import RunError, RunTimeoutError

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests run as root in containers, on pages of our own
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-background-networking",
    "--no-first-run",
    "--hide-scrollbars",
)
# Shells cannot all move descriptors of two digits; above 4 first, so that none is overwritten.
_MOVE = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(ends[0], 3)
os.dup2(ends[1], 4)
os.closerange(5, 256)
os.execv(sys.argv[3], sys.argv[3:])
"""
_LOUD = {"error", "warning", "assert"}


def find_browser() -> str | None:
    """Return the path of a Chromium, if there is one."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One Chromium with one page; a ``with`` statement ends it and removes what it wrote."""

    def __init__(self) -> None:
        path = find_browser()
        if path is None:
            raise RunError("there is no Chromium here", "Install it: apt-get install chromium.")
        self.timeout = 30.0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._number = 0
        self._unread = b""
        self._events: list[dict[str, Any]] = []
        self._folder = tempfile.TemporaryDirectory(
            prefix="weft-browser-", ignore_cleanup_errors=True
        )
        self._process, self._out, self._in = _start(path, self._folder.name)
        try:
            self._session = ""
            target = self.ask("Target.createTarget", url="about:blank")["targetId"]
            found = self.ask("Target.attachToTarget", targetId=target, flatten=True)
            self._session = found["sessionId"]
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.ask(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Browser":  # noqa: PYI034 - Self needs Python 3.11
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it: a closed pipe tells Chromium to go; what does not go is ended."""
        os.close(self._out)
        os.close(self._in)
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send one command and give its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        try:
            os.write(self._out, json.dumps(message).encode() + b"\0")
        except BrokenPipeError:
            raise RunError(f"Chromium ended before it was asked {method}") from None
        deadline = time.monotonic() + self.timeout
        while (answer := self._read(deadline, method)).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RunError(f"Chromium answered {method} with: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def await_event(self, method: str) -> dict[str, Any]:
        """Return the first event of this name that was not yet asked for."""
        deadline = time.monotonic() + self.timeout
        while True:
            for number, event in enumerate(self._events):
                if event["method"] == method:
                    return dict(self._events.pop(number)["params"])
            self._note(self._read(deadline, method))

    def open(
        self, path: Path | str, *, width: int = 1280, height: int = 800, dark: bool = False
    ) -> None:
        """Open a file in a window of that size and wait until it is loaded."""
        self.complaints.clear()
        self.requests.clear()
        self._events.clear()
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self.ask("Page.navigate", url=Path(path).resolve().as_uri())
        self.await_event("Page.loadEventFired")

    def evaluate(self, script: str) -> Any:
        """Return the value of an expression of JavaScript; a promise is waited for."""
        found = self.ask(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RunError(f"the script failed: {found['exceptionDetails']['text']}")
        return found["result"].get("value")

    def until(self, script: str) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + self.timeout
        while not self.evaluate(script):
            if time.monotonic() > deadline:
                raise RunTimeoutError(f"{script!r} did not become true in {self.timeout:g} s")
            self.evaluate(
                "new Promise((done) => requestAnimationFrame(() => setTimeout(done, 10)))"
            )

    def key(self, key: str) -> None:
        """Press and release a key."""
        text = {"text": key} if len(key) == 1 else {}
        self.ask("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.ask("Input.dispatchKeyEvent", type="keyUp", key=key)

    def mouse(self, kind: str, x: float, y: float, **more: Any) -> None:
        """Send a mouse event: ``mouseMoved``, ``mousePressed``, ``mouseWheel`` .."""
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def _note(self, event: dict[str, Any]) -> None:
        """Keep what the page complains about and asks for."""
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.consoleAPICalled" if params["type"] in _LOUD:
                self.complaints.append(" ".join(str(a.get("value", a)) for a in params["args"]))
            case "Runtime.exceptionThrown":
                details = params["exceptionDetails"]
                self.complaints.append(details.get("exception", details).get("description", ""))
            case "Log.entryAdded" if params["entry"]["level"] in _LOUD:
                self.complaints.append(params["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(params["request"]["url"])
        if "method" in event:
            self._events.append(event)

    def _read(self, deadline: float, waiting_for: str) -> dict[str, Any]:
        while b"\0" not in self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._in], [], [], left)[0]:
                raise RunTimeoutError(
                    f"Chromium did not answer {waiting_for} in {self.timeout:g} s"
                )
            read = os.read(self._in, 1 << 20)
            if not read:
                raise RunError(f"Chromium ended before it answered {waiting_for}")
            self._unread += read
        message, _, self._unread = self._unread.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found


def _start(path: str, folder: str) -> tuple["subprocess.Popen[bytes]", int, int]:
    """Start Chromium with its ends of two pipes as descriptors 3 and 4; return it and our ends."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    command = [path, *_FLAGS, f"--user-data-dir={folder}", "about:blank"]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _MOVE, str(theirs_in), str(theirs_out), *command],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    return process, ours_out, ours_in
