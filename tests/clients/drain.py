#!/usr/bin/env python3
"""SIGTERM under load: what runs is finished whole, what comes is told to go elsewhere. Only Python's standard library.

    run.py drain       (starts its own servers)
"""
import functools
import http.client
import json
import pathlib
import signal
import threading
import time

from checks import PATIENCE, check, equal, expect, main, one_of, request
from taper_server import TaperServer, free_port, port_list

TOKENS = 300


class Stream(threading.Thread):
    """A streamed completion: its events, and how it ended."""

    def __init__(self, url, number, tokens=TOKENS):
        super().__init__(daemon=True)
        self.url, self.number, self.tokens = url, number, tokens
        self.first, self.status, self.retry_after, self.lines, self.error = threading.Event(), None, None, [], None
        self.start()

    def run(self):
        host, port = self.url.removeprefix("http://").split(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=120 * PATIENCE)
        try:
            body = {"prompt": f"Story {self.number}:", "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                    "stream_options": {"include_usage": True}}
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.status, self.retry_after = response.status, response.headers.get("Retry-After")
            for line in response:
                if line.strip():
                    self.lines.append(line.strip())
                    self.first.set()
        except (OSError, http.client.HTTPException) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            self.first.set()
            connection.close()

    def is_whole(self):
        """Whether all tokens came, and the end."""
        return self.status == 200 and self.lines[-1:] == [b"data: [DONE]"] \
            and json.loads(self.lines[-2][6:])["usage"]["completion_tokens"] == self.tokens

    def was_refused(self):
        """Whether it was told to come again: 503 with Retry-After."""
        return self.status == 503 and self.retry_after is not None

    def was_too_late(self):
        """Whether nobody listened any more."""
        return self.status is None and self.error is not None and self.error.startswith("ConnectionRefused")

    def __str__(self):
        return f"stream {self.number}: status {self.status}, {len(self.lines)} lines, the last {self.lines[-1:]}, error {self.error}"


class Stage:
    """Where servers are started; each scenario runs once, and the checks look at what it saw."""

    def __init__(self, args):
        self.args = args
        self.ports = port_list(args.ports)
        self.logs = pathlib.Path(args.work) / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)

    def server(self, name, *flags):
        server = TaperServer(self.args.taper, self.args.model, free_port(self.ports), self.logs / f"drain-{name}.server.log", flags)
        try:
            server.wait_until_ready()
        except Exception:
            server.__exit__()
            raise
        return server


def health(url):
    """The status of /health; None when nobody listens."""
    try:
        return request(url, "GET", "/health", timeout=5)[0]
    except (OSError, http.client.HTTPException):
        return None


def watch_health(server, seconds):
    """The statuses of /health, with the time of the first of each, until the server has ended."""
    seen, begun = {}, time.monotonic()
    while server.process.poll() is None and time.monotonic() - begun < seconds:
        seen.setdefault(health(server.url), time.monotonic() - begun)
        time.sleep(0.02)
    return seen


@functools.cache
def at_once(t):
    """Eight streams, four of them waiting for a place, and SIGTERM; requests that come after it."""
    with t.server("at-once", "--max-batch", "4") as server:
        running = [Stream(server.url, number) for number in range(8)]
        deadline = time.monotonic() + 60 * PATIENCE
        while sum(stream.first.is_set() for stream in running) < 4 and time.monotonic() < deadline:
            time.sleep(0.005)
        begun = [stream for stream in running if stream.first.is_set()]
        server.signal(signal.SIGTERM)
        deadline = time.monotonic() + 10 * PATIENCE
        while health(server.url) == 200 and time.monotonic() < deadline:
            time.sleep(0.01)
        turned = health(server.url)
        late = [Stream(server.url, 100 + number) for number in range(3)]
        for stream in [*late, *running]:
            stream.join(120 * PATIENCE)
        try:
            status = server.process.wait(30 * PATIENCE)
        except Exception:
            status = None
        return {"begun": begun, "waiting": [stream for stream in running if stream not in begun], "late": late, "turned": turned, "status": status, "errors": server.log_errors()}


@check("at_once.health_is_503")
def _(t):
    equal(at_once(t)["turned"], 503, "the status of /health while streams run")


@check("at_once.running_streams_are_whole")
def _(t):
    expect(len(at_once(t)["begun"]) == 4, f"{len(at_once(t)['begun'])} streams ran at the signal")
    for stream in at_once(t)["begun"]:
        expect(stream.is_whole(), str(stream))


@check("at_once.waiting_streams_are_whole")
def _(t):
    for stream in at_once(t)["waiting"]:
        expect(stream.is_whole(), str(stream))


@check("at_once.new_ones_get_503_with_retry_after")
def _(t):
    for stream in at_once(t)["late"]:
        expect(stream.was_refused(), str(stream))


@check("at_once.exit_status")
def _(t):
    equal(at_once(t)["status"], 0, "the exit status")
    equal(at_once(t)["errors"], [], "the errors in the log")


@functools.cache
def delayed(t):
    """--drain-delay: /health turns, requests are still taken for three seconds, then refused."""
    with t.server("delayed", "--drain-delay", str(round(3 * PATIENCE))) as server:
        running = Stream(server.url, 0, 400)
        running.first.wait(60 * PATIENCE)
        server.signal(signal.SIGTERM)
        begun = time.monotonic()
        while health(server.url) == 200 and time.monotonic() - begun < 2 * PATIENCE:
            time.sleep(0.01)
        turned = (health(server.url), time.monotonic() - begun)
        early = Stream(server.url, 1, 20)
        early.join(60 * PATIENCE)
        taken_after = time.monotonic() - begun
        seen = watch_health(server, 60)
        running.join(60 * PATIENCE)
        return {"running": running, "early": early, "turned": turned, "taken_after": taken_after, "seen": seen, "status": server.process.wait(30 * PATIENCE)}


@check("delayed.health_flips_first")
def _(t):
    status, seconds = delayed(t)["turned"]
    equal(status, 503, "the status of /health after SIGTERM")
    expect(seconds < 2 * PATIENCE, f"after {seconds:.1f} s")


@check("delayed.requests_are_still_taken")
def _(t):
    expect(delayed(t)["early"].is_whole(), str(delayed(t)["early"]))


@check("delayed.running_streams_are_whole")
def _(t):
    expect(delayed(t)["running"].is_whole(), str(delayed(t)["running"]))


@check("delayed.exit_status")
def _(t):
    equal(delayed(t)["status"], 0, "the exit status")


@functools.cache
def loaded(t):
    """Sixteen clients that ask again and again, and SIGTERM in the middle of it."""
    with t.server("loaded", "--max-batch", "8") as server:
        streams, lock = [], threading.Lock()

        def client(number):
            for turn in range(1000):
                stream = Stream(server.url, f"{number}.{turn}", 24)
                with lock:
                    streams.append(stream)
                stream.join(120 * PATIENCE)
                if stream.status != 200:
                    return

        threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(16)]
        for thread in threads:
            thread.start()
        time.sleep(3 * PATIENCE)
        server.signal(signal.SIGTERM)
        for thread in threads:
            thread.join(120 * PATIENCE)
        return {"streams": streams, "status": server.process.wait(30 * PATIENCE)}


@check("loaded.nothing_is_cut")
def _(t):
    streams = loaded(t)["streams"]
    for stream in streams:
        expect(stream.is_whole() or stream.was_refused() or stream.was_too_late(), str(stream))
    counts = {name: sum(getattr(stream, name)() for stream in streams) for name in ("is_whole", "was_refused", "was_too_late")}
    expect(counts["is_whole"] > 16, f"too few: {counts}")
    return str(counts)


@check("loaded.exit_status")
def _(t):
    equal(loaded(t)["status"], 0, "the exit status")


@check("second_signal_stops_at_once")
def _(t):
    with t.server("twice") as server:
        stream = Stream(server.url, 0, 4000)
        stream.first.wait(60 * PATIENCE)
        server.signal(signal.SIGTERM)
        time.sleep(0.3)
        expect(server.process.poll() is None, "the first signal did not wait for the stream")
        server.signal(signal.SIGTERM)
        begun = time.monotonic()
        one_of(server.process.wait(10 * PATIENCE), (130, 143, 1), "the exit status")
        return f"{time.monotonic() - begun:.2f} s"


@check("drain_timeout_cuts_what_takes_too_long")
def _(t):
    with t.server("timeout", "--drain-timeout", "1") as server:
        stream = Stream(server.url, 0, 4000)
        stream.first.wait(60 * PATIENCE)
        begun = time.monotonic()
        server.signal(signal.SIGTERM)
        server.process.wait(15 * PATIENCE)
        seconds = time.monotonic() - begun
        expect(seconds > 0.9, f"it ended after {seconds:.1f} s already")
        return f"{seconds:.1f} s"


@check("sigterm_without_load")
def _(t):
    with t.server("idle") as server:
        keep = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
        keep.request("GET", "/health")
        keep.getresponse().read()
        begun = time.monotonic()
        server.signal(signal.SIGTERM)
        equal(server.process.wait(15 * PATIENCE), 0, "the exit status, with an idle connection")
        keep.close()
        return f"{time.monotonic() - begun:.2f} s"


if __name__ == "__main__":
    main(__doc__, Stage)
