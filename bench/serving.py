"""What the drivers beside this file share: servers that start and end with them, one streamed request, and where figures come from.

Only Python's standard library. Servers are children in sessions of their own, so that Ctrl-C and SIGTERM reach them
through [servers] alone, which ends them whatever happens.
"""
import contextlib
import http.client
import json
import os
import pathlib
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

HOST = "127.0.0.1"
START_SECONDS = 180
TREE = pathlib.Path(__file__).resolve().parent.parent


class Server:
    """A child that answers at `port` and writes its log to `log`."""

    def __init__(self, name, command, port, log):
        self.name, self.port, self.log = name, port, log
        self.command = [*command, "--port", str(port)]
        with socket.socket() as probe:
            if probe.connect_ex((HOST, port)) == 0:
                raise SystemExit(f"something answers at port {port} already; choose others with --port")
        with open(log, "w", encoding="utf-8") as file:
            self.process = subprocess.Popen(self.command, stdout=file, stderr=file, start_new_session=True)

    def wait_until_ready(self):
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError, http.client.HTTPException):
                if self.get("/health")[0] == 200:
                    return
            time.sleep(0.1)
        raise SystemExit(f"{shlex.join(self.command)} did not become ready; the end of its log:\n{self.log_end()}")

    def get(self, path):
        connection = http.client.HTTPConnection(HOST, self.port, timeout=30)
        with contextlib.closing(connection):
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read().decode()

    def log_end(self):
        return pathlib.Path(self.log).read_text(encoding="utf-8", errors="replace")[-2000:]

    def stop(self, seconds=30):
        """Asks the server to stop; its exit status, or None if it had to be killed."""
        self.process.terminate()
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            return None


@contextlib.contextmanager
def servers(commands, first_port, folder=None):
    """Runs `commands` (name to command without --port), yields their ready [Server]s in this order, and ends them all."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="taper-bench-")))
        started = []
        for index, (name, command) in enumerate(commands.items()):
            started.append(Server(name, command, first_port + index, folder / f"server{index}.log"))
            stack.callback(lambda server=started[-1]: server.process.poll() is None and server.stop(5))
        for server in started:
            server.wait_until_ready()
        yield started


class Stream:
    """A streamed request: iterating gives `(time, event)` per event of the answer; leaving the context closes the connection."""

    def __init__(self, server, path, body, timeout=600):
        self.connection = http.client.HTTPConnection(HOST, server.port, timeout=timeout)
        self.sent = time.perf_counter()
        self.connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.connection.close()

    def __iter__(self):
        response = self.connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}: {response.read(500).decode(errors='replace')}")
        for line in response:
            if line.startswith(b"data: ") and line.strip() != b"data: [DONE]":
                event = json.loads(line[6:])
                if "error" in event:
                    raise RuntimeError(f"the stream ended with {event['error']}")
                yield time.perf_counter(), event


def text_of(event):
    """The text that an event of either endpoint adds to the first choice."""
    choice = (event.get("choices") or [{}])[0]
    return choice.get("text") or choice.get("delta", {}).get("content") or ""


def random_tokens(rng, count):
    """A prompt that no cache knows. The ids are text in the vocabulary of every model of at least 40,000 tokens."""
    return [rng.randrange(1000, 40000) for _ in range(count)]


def origin(args, taper):
    """What a figure must not be without: machine, commit, build, model."""
    cpu = next((line.split(":")[1].strip() for line in open("/proc/cpuinfo", encoding="utf-8") if "model name" in line), "?")
    run = lambda *command: subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
    commit = run("git", "-C", str(TREE), "rev-parse", "--short=12", "HEAD")
    return {"machine": cpu, "cores": os.cpu_count(), "threads": args.threads, "model": pathlib.Path(args.model).name,
            "commit": commit, "taper": run(taper, "--version")}


def build_of(server):
    """The fingerprint with which a taper answers (its version, the commit that it was built from, its arithmetic), or what
    another program says of its version."""
    for line in server.get("/metrics")[1].splitlines():
        if line.startswith("taper:build_info{"):
            return line.split('fingerprint="')[1].split('"')[0]
    told = subprocess.run([server.command[0], "--version"], capture_output=True, text=True, check=False)
    return next((line for line in (told.stdout + told.stderr).splitlines() if "version" in line), None)


def spread(values, digits=1):
    """Median with least and greatest, as a table shows it."""
    shown = [f"{value:.{digits}f}" for value in (statistics.median(values), min(values), max(values))]
    return f"{shown[0]} ({shown[1]}-{shown[2]})" if len(values) > 1 else shown[0]


def table(header, rows):
    """Prints `rows` under `header`, the first column to the left."""
    lines = [header, *rows]
    widths = [max(len(str(line[column])) for line in lines) for column in range(len(header))]
    for line in lines:
        cells = [str(cell).rjust(width) for cell, width in zip(line[1:], widths[1:])]
        print("  ".join([str(line[0]).ljust(widths[0]), *cells]), flush=True)


def append(path, rows):
    """Adds `rows` to a file of JSON lines; without a path they are only in the table."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
