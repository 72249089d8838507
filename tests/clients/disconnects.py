#!/usr/bin/env python3
"""Thousands of requests of which a fifth leave at random points. Only Python's standard library.

    run.py disconnects [--pass-on=--count=5000]

Who stays gets a whole answer. At the end nothing runs or waits, no block of the KV cache is held, no connection and no
memory is kept, and a reference request has the answer that it had before.
"""
import collections
import http.client
import json
import os
import random
import socket
import struct
import threading
import time

from checks import PATIENCE, check, equal, expect, main, memory_kib, metrics, place, request, settle

REFERENCE = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0}
FORM = {"type": "json_schema", "json_schema": {"name": "n", "schema": {
    "type": "object", "additionalProperties": False, "required": ["n"], "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}}}}}
SHARED = "It was a bright cold day in April, and the clocks were striking thirteen. " * 12
POINTS = ("in the request", "before the answer", "after the headers", "in the answer", "by a reset")


def draw(rng, number):
    """A request: its path, its body and whether it streams."""
    body = {"max_tokens": rng.randrange(1, 24), "temperature": rng.choice([0, 1]), "seed": number, "stream": rng.random() < 0.7}
    kind = rng.randrange(5)
    if kind == 0:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": f"Question {number}"}]}
    if kind == 1:
        return "/v1/completions", {**body, "prompt": SHARED + str(number)}
    if kind == 2:
        return "/v1/completions", {**body, "prompt": f"{number}:", "n": 2}
    if kind == 3:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "A number."}], "response_format": FORM, "max_tokens": 40}
    return "/v1/completions", {**body, "prompt": f"Story {number}:", "ignore_eos": True}


def check_whole(path, body, data):
    """Insists on a whole answer."""
    choices = body.get("n", 1)
    if body["stream"]:
        lines = [line for line in data.decode().split("\n\n") if line.startswith("data: ")]
        expect(lines and lines[-1] == "data: [DONE]", f"a stream ends with {lines[-1:]}")
        events = [json.loads(line[6:]) for line in lines[:-1]]
        ends = [choice["finish_reason"] for event in events for choice in event["choices"] if choice["finish_reason"]]
    else:
        ends = [choice["finish_reason"] for choice in json.loads(data)["choices"]]
    expect(len(ends) == choices and set(ends) <= {"stop", "length"}, f"{path}: the choices end with {ends}")


def perform(url, path, body, rng, point):
    """Sends a request and leaves at `point`, or stays (None) and checks the answer."""
    connection = http.client.HTTPConnection(*place(url), timeout=120 * PATIENCE)
    data = json.dumps(body).encode()
    try:
        connection.connect()
        if point == "by a reset":
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.putrequest("POST", path)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(len(data)))
        connection.endheaders()
        if point == "in the request":
            connection.send(data[:rng.randrange(len(data))])
            return
        connection.send(data)
        if point in ("before the answer", "by a reset"):
            time.sleep(rng.random() * 0.2)
            return
        response = connection.getresponse()
        equal(response.status, 200, f"the status of {path}")
        if point == "after the headers":
            return
        if point == "in the answer":
            response.read(rng.randrange(1, 600))
            return
        check_whole(path, body, response.read())
    finally:
        connection.close()


class Run:
    """All the requests, and what was before."""

    def __init__(self, args):
        self.args, self.url = args, args.base_url
        self.answer = self.reference()
        for _ in range(40):
            request(self.url, "POST", "/v1/completions", {"prompt": "Warm", "max_tokens": 8})
        self.memory, self.files = memory_kib(args.pid), self.open_files()
        self.outcomes, self.complaints, self.lock = collections.Counter(), [], threading.Lock()
        numbers = iter(range(args.count))
        begun = time.monotonic()

        def client():
            while True:
                with self.lock:
                    number = next(numbers, None)
                if number is None:
                    return
                rng = random.Random(f"{args.seed} {number}")
                path, body = draw(rng, number)
                point = rng.choice(POINTS) if rng.random() < args.leave else None
                try:
                    perform(self.url, path, body, rng, point)
                    outcome = point or "stayed"
                except Exception as error:  # noqa: BLE001
                    outcome = "complaint"
                    with self.lock:
                        self.complaints.append(f"request {number} ({point}): {type(error).__name__}: {error}")
                with self.lock:
                    self.outcomes[outcome] += 1

        threads = [threading.Thread(target=client, daemon=True) for _ in range(args.clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(f"note {args.count} requests by {args.clients} clients (seed {args.seed}) in {time.monotonic() - begun:.0f} s: {dict(self.outcomes)}", flush=True)

    def reference(self):
        status, _, body = request(self.url, "POST", "/v1/completions", REFERENCE)
        equal(status, 200, "the status of the reference")
        return json.loads(body)["choices"]

    def open_files(self):
        return len(os.listdir(f"/proc/{self.args.pid}/fd"))


@check("who_stays_is_answered")
def _(t):
    expect(not t.complaints, f"{len(t.complaints)} complaints, the first: {t.complaints[:1]}")
    return f"{t.outcomes['stayed']} whole answers"


@check("who_leaves_has_left")
def _(t):
    expect(t.args.count < 500 or all(t.outcomes[point] for point in POINTS), f"not all points were met: {dict(t.outcomes)}")


@check("gauges_and_blocks_are_zero")
def _(t):
    settle(t.url, 30)


@check("aborts_are_counted")
def _(t):
    numbers = metrics(t.url)
    expect(numbers["taper:failed_steps_total"] == 0, f"{numbers['taper:failed_steps_total']} steps failed")
    status, _, body = request(t.url, "GET", "/metrics")
    aborted = sum(float(line.rsplit(" ", 1)[1]) for line in body.decode().splitlines() if line.startswith("vllm:request_success_total") and '"abort"' in line)
    expect(t.args.count < 500 or aborted > 0, "nobody was aborted")
    return f"{aborted:.0f} choices aborted"


@check("files_are_closed")
def _(t):
    deadline = time.monotonic() + 40 * PATIENCE
    while t.open_files() > t.files and time.monotonic() < deadline:
        time.sleep(0.5)
    expect(t.open_files() <= t.files, f"{t.open_files()} open files, {t.files} before")


@check("memory_is_bounded")
def _(t):
    grown = (memory_kib(t.args.pid) - t.memory) / 1024
    expect(grown < 64, f"RssAnon grew by {grown:.1f} MiB")
    return f"RssAnon {grown:+.1f} MiB"


@check("the_reference_is_answered_as_before")
def _(t):
    equal(t.reference(), t.answer, "the answer")


def add(parser):
    parser.add_argument("--count", type=int, default=5000, help="requests [default: %(default)s]")
    parser.add_argument("--clients", type=int, default=48, help="at a time [default: %(default)s]")
    parser.add_argument("--leave", type=float, default=0.2, metavar="SHARE", help="of them leave [default: %(default)s]")
    parser.add_argument("--seed", type=int, default=1, help="[default: %(default)s]")


if __name__ == "__main__":
    main(__doc__, Run, add)
