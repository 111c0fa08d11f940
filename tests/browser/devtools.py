"""A real browser over its own pipe: load a file, look at it, say what it asked for and what it complained of."""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import BROWSERS

_TIMEOUT_S = 60.0
_FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--remote-debugging-pipe",
)


@dataclass
class Seen:
    """What came of one page: addresses it asked for, and whatever it logged."""

    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)


class Browser:
    """One headless browser with one tab. DevTools messages are JSON, each ended by a zero byte."""

    def __init__(self, profile: Path) -> None:
        binary = next(path for name in BROWSERS if (path := shutil.which(name)))
        read_end, self._to = os.pipe()
        self._from, write_end = os.pipe()
        # The browser reads descriptor 3 and writes 4; ours must not be those already.
        ours = [fcntl.fcntl(end, fcntl.F_DUPFD, 100) for end in (read_end, write_end)]
        self._process = subprocess.Popen(
            [
                "bash",
                "-c",
                f'exec "$@" 3<&{ours[0]} 4>&{ours[1]}',
                "bash",
                binary,
                *_FLAGS,
                f"--user-data-dir={profile}",
            ],
            pass_fds=ours,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (read_end, write_end, *ours):
            os.close(end)
        self._rest = b""
        self._count = 0
        self._session: str | None = None
        self._seen = Seen()
        self._loaded = False
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(_TIMEOUT_S)
        os.close(self._to)
        os.close(self._from)

    def show(self, file: Path, width: int, scheme: str = "light", medium: str = "screen") -> Seen:
        """Load a file in a window of that width, in that colour scheme, for screen or print."""
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 500
        )
        wish = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", media=medium, features=[wish])
        self._seen, self._loaded = Seen(), False
        self._call("Page.navigate", url=file.as_uri())
        self._until(lambda: self._loaded)
        return self._seen

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self, target: Path, area: tuple[int, int, int, int] | None = None) -> None:
        """The whole page, or the area (x, y, width, height) of it; PNG or WebP by the name of the file."""
        clip = {"clip": dict(zip(("x", "y", "width", "height"), area, strict=True)) | {"scale": 1}} if area else {}
        shot = self._call("Page.captureScreenshot", format=target.suffix[1:], captureBeyondViewport=True, **clip)
        target.write_bytes(base64.b64decode(shot["data"]))

    def paper(self) -> bytes:
        """The page as it is printed, a PDF."""
        return base64.b64decode(self._call("Page.printToPDF", printBackground=True)["data"])

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._count += 1
        message: dict[str, Any] = {"id": self._count, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        answers: list[dict[str, Any]] = []
        self._until(lambda: bool(answers), answers)
        assert "error" not in answers[0], (method, answers[0])
        result: dict[str, Any] = answers[0]["result"]
        return result

    def _until(self, done: Any, answers: list[dict[str, Any]] | None = None) -> None:
        end = time.monotonic() + _TIMEOUT_S
        while not done():
            message = self._next(end)
            if message.get("id") == self._count and answers is not None:
                answers.append(message)
            else:
                self._note(message)

    def _next(self, end: float) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], max(end - time.monotonic(), 0))
            chunk = os.read(self._from, 1 << 20) if ready else b""
            assert chunk, f"the browser says nothing; it ended with {self._process.poll()}"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        decoded: dict[str, Any] = json.loads(message)
        return decoded

    def _note(self, message: dict[str, Any]) -> None:
        method, told = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Network.requestWillBeSent":
            self._seen.requests.append(told["request"]["url"])
        elif method in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            self._seen.complaints.append(json.dumps(told))
