"""A browser under a test's control: the parts of the WebDriver protocol that these tests need, over Debian's chromedriver."""

import base64
import contextlib
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
ENTER, ESCAPE, SHIFT, RELEASE = "\ue007", "\ue00c", "\ue008", "\ue000"

#: Seconds that anything on the page may take.
PATIENCE = 60

FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1200,800",
]


#: Errors that may pass when the page has done what it is about to do.
NOT_YET = ("no such element", "stale element reference", "element not interactable", "element click intercepted")


class Gone(Exception):
    """The element has left the page, is not there yet, or something lies on it."""


class Browser:
    """One browser with an empty profile. Leaving the `with` block ends it."""

    def __init__(self):
        chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if not chromium or not driver:
            raise RuntimeError("these tests need chromium and chromedriver (apt-get install chromium chromium-driver)")
        self._folder = tempfile.TemporaryDirectory(prefix="taper-web-", ignore_cleanup_errors=True)
        self.downloads = pathlib.Path(self._folder.name, "downloads")
        self.downloads.mkdir()
        # A group of its own, so that nothing outlives it.
        self._driver = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
        )
        try:
            self._begin(chromium)
        except BaseException:
            self.close()
            raise

    def _begin(self, chromium):
        for line in self._driver.stdout:
            if found := re.search(r"started successfully on port (\d+)", line):
                break
        else:
            raise RuntimeError("chromedriver did not start")
        self._url = f"http://127.0.0.1:{found.group(1)}"
        profile = pathlib.Path(self._folder.name, "profile")
        options = {
            "binary": chromium,
            "args": [*FLAGS, f"--user-data-dir={profile}"],
            "prefs": {"download.default_directory": str(self.downloads)},
        }
        patience = 2000 * PATIENCE
        wanted = {
            "goog:chromeOptions": options,
            "goog:loggingPrefs": {"browser": "ALL"},
            "timeouts": {"script": patience, "pageLoad": patience},
        }
        session = self._call("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._url += f"/session/{session['sessionId']}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        try:
            if "/session/" in getattr(self, "_url", ""):
                self._call("DELETE", "")
        except (OSError, RuntimeError):
            # A browser that has crashed has no session to end.
            pass
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._driver.pid, signal.SIGKILL)
            self._driver.wait()
            self._driver.stdout.close()
            self._folder.cleanup()

    def _call(self, method, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=3 * PATIENCE) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            value = json.load(error)["value"]
            if value["error"] in NOT_YET:
                raise Gone(value["message"]) from None
            raise RuntimeError(f"{method} {path}: {value['error']}: {value['message']}") from None

    def open(self, url):
        self._call("POST", "/url", {"url": url})

    def reload(self):
        self._call("POST", "/refresh", {})

    def run(self, script, *arguments):
        """What a script returns; it is the body of a function."""
        return self._call("POST", "/execute/sync", {"script": script, "args": list(arguments)})

    def before_every_page(self, script):
        """Runs a script in every page from now on, before its own."""
        self.cdp("Page.addScriptToEvaluateOnNewDocument", source=script)

    def cdp(self, command, **parameters):
        """A command of Chromium's own protocol."""
        return self._call("POST", "/goog/cdp/execute", {"cmd": command, "params": parameters})

    def _element(self, css):
        return self._call("POST", "/element", {"using": "css selector", "value": css})[ELEMENT]

    def click(self, css):
        self.until(f"{css} can be clicked", lambda: self._call("POST", f"/element/{self._element(css)}/click", {}) is None)

    def type(self, css, keys):
        self.until(f"{css} takes keys", lambda: self._call("POST", f"/element/{self._element(css)}/value", {"text": keys}) is None)

    def fill(self, css, text):
        """Replaces what is in a field."""
        self.until(f"{css} is there", lambda: self._call("POST", f"/element/{self._element(css)}/clear", {}) is None)
        if text:
            self.type(css, text)

    def press(self, *keys):
        """Presses keys where the focus is; a list is held down together."""
        actions = []
        for key in keys:
            together = key if isinstance(key, list) else [key]
            actions += [{"type": "keyDown", "value": one} for one in together]
            actions += [{"type": "keyUp", "value": one} for one in reversed(together)]
        self._call("POST", "/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": actions}]})

    def texts(self, css):
        """The visible texts of all elements that match."""
        return self.run("return [...document.querySelectorAll(arguments[0])].map((element) => element.innerText.trim())", css)

    def is_shown(self, css):
        return self.run("return Boolean(document.querySelector(arguments[0])?.checkVisibility({ visibilityProperty: true }))", css)

    def until(self, what, condition):
        """Waits until a condition holds; what it gave."""
        deadline = time.monotonic() + PATIENCE
        reason = ""
        while True:
            try:
                if found := condition():
                    return found
            except Gone as gone:
                reason = f" ({str(gone).splitlines()[0]})"
            if time.monotonic() > deadline:
                raise AssertionError(f"still not so: {what}{reason}; the page shows {self.texts('body')}")
            time.sleep(0.02)

    def until_text(self, css, text):
        """Waits until some element that matches has a text in it."""
        return self.until(f"{text!r} in {css}", lambda: any(text in found for found in self.texts(css)))

    def screenshot(self, path):
        pathlib.Path(path).write_bytes(base64.b64decode(self._call("GET", "/screenshot")))

    def log(self):
        """What the browser complained of since the last call."""
        entries = self._call("POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] in ("SEVERE", "WARNING")]
