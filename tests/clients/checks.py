"""What the scripts beside this file share: checks with names, and what they say.

A script registers its checks with [check] and calls [main], which runs them one after the other and prints a line for each:

    ok   NAME
    ok   NAME: FIGURES           (a check may return what it measured)
    FAIL NAME: WHY

A check fails by any exception and by taking longer than its time, so that what a server does not have is told by name and
the others still run. Exit status 1 if any failed. `run.py` reads these lines. Only Python's standard library.
"""
import argparse
import http.client
import json
import math
import os
import re
import signal
import sys
import time
import traceback
import urllib.parse

from taper_server import patience

CHECKS = []
PATIENCE = patience()
# The longest reason that is printed.
MOST_SHOWN = 400


class Failed(AssertionError):
    """What a check found."""


def check(name, seconds=120):
    """Registers a function as a check. It gets what [main] was told to prepare, and has `seconds`."""
    def register(function):
        CHECKS.append((name, function, seconds))
        return function
    return register


def expect(condition, what):
    """Fails with `what` unless `condition`."""
    if not condition:
        raise Failed(what)


def equal(got, expected, what):
    """Fails unless the two are equal; `what` names the value."""
    if got != expected:
        raise Failed(f"{what} is {got!r} instead of {expected!r}")


def one_of(got, expected, what):
    """Fails unless the value is one of those."""
    if got not in expected:
        raise Failed(f"{what} is {got!r} instead of one of {expected!r}")


def raises(kind, call, **attributes):
    """Calls and insists on an exception of this class that has these attributes; returns it."""
    try:
        got = call()
    except kind as error:
        for name, expected in attributes.items():
            equal(getattr(error, name, None), expected, f"{type(error).__name__}.{name} ({error})")
        return error
    raise Failed(f"no {kind.__name__}, but {got!r}")


def arguments(description, add=None):
    """The arguments that `run.py` gives to every script; `add(parser)` may add some."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", metavar="URL", help="the server, such as http://127.0.0.1:8080")
    parser.add_argument("--server", metavar="NAME=URL", action="append", default=[], help="another server, set up as the script says")
    parser.add_argument("--pid", type=int, help="the server's process, for what is read about it")
    parser.add_argument("--taper", metavar="BIN", help="for scripts that start servers")
    parser.add_argument("--model", metavar="GGUF", help="the model that is served")
    parser.add_argument("--work", metavar="DIR", default=".", help="where files may be left")
    parser.add_argument("--ports", metavar="A-B", default="8700-8719", help="ports for servers that the script starts")
    parser.add_argument("--only", metavar="REGEX", help="only checks whose names match")
    if add:
        add(parser)
    args = parser.parse_args()
    args.servers = dict(item.split("=", 1) for item in args.server)
    return args


def other_server(args, name):
    """The address of another server than the script's own."""
    expect(name in args.servers, f"there is no server {name!r} (it did not start, or --server {name}=URL is missing)")
    return args.servers[name]


def one_line(error):
    """An exception as a reason."""
    text = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
    return re.sub(r"\s+", " ", text)[:MOST_SHOWN]


def _out_of_time(*_):
    raise TimeoutError("the check ran out of time")


def run(checks, prepared, only=None):
    """Runs the checks; the number of those that failed."""
    signal.signal(signal.SIGALRM, _out_of_time)
    failed = 0
    for name, function, seconds in checks:
        if only and not re.search(only, name):
            continue
        signal.alarm(math.ceil(seconds * PATIENCE))
        try:
            figures = function(prepared)
            line = f"ok   {name}: {figures}" if figures else f"ok   {name}"
        # Whatever goes wrong is what the check says, an error of the client's library among it.
        except Exception as error:  # noqa: BLE001
            failed += 1
            line = f"FAIL {name}: {one_line(error)}"
            if os.environ.get("CLIENTS_TRACEBACK"):
                traceback.print_exc()
        finally:
            signal.alarm(0)
        print(line, flush=True)
    return failed


def main(description, prepare=lambda args: args, add=None):
    """Runs all registered checks with what `prepare(args)` returns, and exits."""
    args = arguments(description, add)
    sys.exit(1 if run(CHECKS, prepare(args), args.only) else 0)


def place(url):
    """Host and port of an address."""
    parts = urllib.parse.urlsplit(url)
    return parts.hostname, parts.port


def request(url, method, path, body=None, headers=None, timeout=60):
    """One request on a connection of its own: status, headers in lower case, bytes. A body that is not bytes becomes JSON."""
    connection = http.client.HTTPConnection(*place(url), timeout=timeout * PATIENCE)
    try:
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
        connection.request(method, path, body, {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, response.read()
    finally:
        connection.close()


def metrics(url):
    """The server's metrics, summed over labels."""
    status, _, body = request(url, "GET", "/metrics")
    equal(status, 200, "the status of /metrics")
    sums = {}
    for line in body.decode().splitlines():
        if line and not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.split("{", 1)[0]
            sums[name] = sums.get(name, 0.0) + float(value)
    return sums


GAUGES = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def settle(url, seconds=30):
    """Waits until nothing runs, waits or holds blocks."""
    deadline = time.monotonic() + seconds * PATIENCE
    while True:
        now = metrics(url)
        busy = {name: now[name] for name in GAUGES if now[name] != 0}
        if not busy:
            return now
        if time.monotonic() > deadline:
            raise Failed(f"not at rest after {seconds} s: {busy}")
        time.sleep(0.1)


def memory_kib(pid):
    """RssAnon of a process, in KiB: its memory without the model's file."""
    with open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("RssAnon:"):
                return int(line.split()[1])
    raise Failed("the kernel does not tell RssAnon")


def percentile(values, share):
    """The value below which this share of them lies; values are not empty."""
    values = sorted(values)
    place = (len(values) - 1) * share
    low = int(place)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (place - low)
