"""A headless Chromium, driven over its own protocol, with nothing but the standard library.

Chromium reads commands from file descriptor 3 and writes answers and events to 4 (--remote-debugging-pipe): JSON, each ended by a NUL.
A shell gives it our two pipes under these numbers, so no port is opened.
"""

import base64
import itertools
import json
import os
import queue
import shutil
import subprocess
import tempfile
import threading
import time

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions", "--disable-default-apps", "--mute-audio",
    "--hide-scrollbars", "--force-color-profile=srgb", "--disable-dev-shm-usage", "--remote-debugging-pipe",
]
ANSWER = 60  # seconds: a browser that does not answer a command is broken


class BrowserError(Exception):
    """The browser refused a command, or a script in the page threw."""


class Browser:
    """A browser with a profile of its own, which goes with it."""

    def __init__(self, program, environment=None):
        self.profile = tempfile.mkdtemp(prefix="pleg-web-")
        self.log = open(os.path.join(self.profile, "stderr"), "wb")
        command = ["sh", "-c", 'exec "$0" "$@" 3<&0 4>&1 </dev/null >/dev/null', program, *FLAGS,
                   f"--user-data-dir={self.profile}", "about:blank"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log,
                                        env={**os.environ, **(environment or {})})
        self.ids = itertools.count(1)
        self.answers = {}
        self.pages = {}
        self.lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        rest = b""
        while chunk := self.process.stdout.read1(1 << 16):
            *messages, rest = (rest + chunk).split(b"\0")
            for message in messages:
                self._take(json.loads(message))
        with self.lock:
            for waiting in self.answers.values():
                waiting.put({"error": {"message": "the browser has ended"}})

    def _take(self, message):
        with self.lock:
            waiting = self.answers.pop(message.get("id"), None)
            page = self.pages.get(message.get("sessionId"))
        if waiting:
            waiting.put(message)
        elif page:
            page.take(message["method"], message["params"])

    def call(self, method, session=None, **params):
        waiting = queue.Queue()
        number = next(self.ids)
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        with self.lock:
            self.answers[number] = waiting
            self.process.stdin.write(json.dumps(message).encode() + b"\0")
            self.process.stdin.flush()
        try:
            answer = waiting.get(timeout=ANSWER)
        except queue.Empty:
            raise BrowserError(f"{method}: no answer within {ANSWER} s") from None
        if "error" in answer:
            raise BrowserError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def page(self, **options):
        return Page(self, **options)

    def close(self):
        try:
            self.call("Browser.close")
        except (BrowserError, OSError, ValueError):
            pass
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.profile, ignore_errors=True)


class Page:
    """A tab with storage of its own."""

    def __init__(self, browser, width=1400, height=1000, dark=False, scale=1, mobile=False):
        self.browser = browser
        self.errors = []
        self.requests = []
        self.context = browser.call("Target.createBrowserContext", disposeOnDetach=True)["browserContextId"]
        self.target = browser.call("Target.createTarget", url="about:blank", browserContextId=self.context)["targetId"]
        self.session = browser.call("Target.attachToTarget", targetId=self.target, flatten=True)["sessionId"]
        with browser.lock:
            browser.pages[self.session] = self
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        self.call("Performance.enable", timeDomain="threadTicks")
        self.size(width, height, scale, mobile)
        self.dark(dark)

    def take(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.errors.append(" ".join(str(arg.get("value", arg.get("description"))) for arg in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            entry = params["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])

    def call(self, method, **params):
        return self.browser.call(method, self.session, **params)

    def size(self, width, height, scale=1, mobile=False):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)
        self.call("Emulation.setTouchEmulationEnabled", enabled=mobile)

    def dark(self, dark):
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def goto(self, url):
        result = self.call("Page.navigate", url=url)
        if result.get("errorText"):
            raise BrowserError(f"{url}: {result['errorText']}")

    def eval(self, expression):
        """The value of a JavaScript expression; a promise is waited for."""
        result = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise BrowserError(f"{expression}: {details.get('exception', {}).get('description') or details['text']}")
        return result["result"].get("value")

    def wait(self, expression, within=10):
        """Waits until an expression is true; returns its value and the seconds that took. The page is asked once a frame."""
        began = time.monotonic()
        script = f"""new Promise((done) => {{
            const until = performance.now() + {within * 1000};
            const ask = () => {{
                let value = null;
                try {{ value = {expression}; }} catch (error) {{ value = null; }}
                if (value) done(typeof value === 'object' ? true : value); else if (performance.now() > until) done(null); else setTimeout(ask, 16);
            }};
            ask();
        }})"""
        while True:
            try:
                value = self.eval(script)
            except BrowserError as error:
                # The page went elsewhere meanwhile: its script, and what it waited for, went with it.
                if not any(word in str(error).lower() for word in ("context", "navigated", "collected")):
                    raise
                value = None
            took = time.monotonic() - began
            if value:
                return value, took
            if took >= within:
                raise AssertionError(f"not within {within} s: {expression}; errors of the page: {self.errors}")

    def text(self, selector):
        return self.eval(f"document.querySelector({json.dumps(selector)})?.textContent")

    def count(self, selector):
        return self.eval(f"document.querySelectorAll({json.dumps(selector)}).length")

    def click(self, selector):
        box = self.eval(f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}}); "
                        "const b = e.getBoundingClientRect(); return {x: b.x + b.width / 2, y: b.y + b.height / 2}; })()")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **box)

    def key(self, key, text=None):
        params = {"key": key}
        if text or len(key) == 1:
            params["text"] = text or key
        if key == "Enter":
            params.update(text="\r", windowsVirtualKeyCode=13)
        self.call("Input.dispatchKeyEvent", type="keyDown", **params)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def screenshot(self, path, whole=False, clip=None):
        options = {"format": "png", "captureBeyondViewport": whole}
        if clip:
            options["clip"] = {**clip, "scale": 1}
        data = self.call("Page.captureScreenshot", **options)["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))

    def metrics(self):
        return {metric["name"]: metric["value"] for metric in self.call("Performance.getMetrics")["metrics"]}

    def close(self):
        with self.browser.lock:
            self.browser.pages.pop(self.session, None)
        self.browser.call("Target.disposeBrowserContext", browserContextId=self.context)
