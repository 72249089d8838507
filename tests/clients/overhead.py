#!/usr/bin/env python3
"""What HTTP costs: tokens per second of one stream beside `taper bench model --case tg128`, in turns.

    run.py overhead       (--pass-on=--rounds=5)

Nothing else may run on the machine. A round is a stream of 128 tokens from the server, after one that warms it, and then the bench,
which has the machine for itself while the server is idle. Speculation is off on both sides.
"""
import bisect
import json
import re
import socket
import statistics
import subprocess
import time

from checks import check, equal, expect, main, place

TOKENS = 128


def over_http(url, number):
    """Tokens per second between the first token and the last of a stream.

    The client shares the machine with the server, so it notes when bytes came and reads them when all have come.
    """
    body = json.dumps({"prompt": f"Round {number}: once upon a time", "max_tokens": TOKENS + 1, "temperature": 0, "ignore_eos": True,
                       "stream": True, "stream_options": {"include_usage": True}}).encode()
    host, port = place(url)
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n")
    with socket.create_connection((host, port), 120) as sock:
        sock.sendall(head.encode() + body)
        said, ends, came = b"", [], []
        while piece := sock.recv(65536):
            came.append(time.perf_counter())
            said += piece
            ends.append(len(said))
    times, tokens = [], 0
    for line in re.finditer(rb"^data: ({.*)$", said, re.MULTILINE):
        event = json.loads(line[1])
        tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
        if event["choices"] and event["choices"][0]["text"]:
            times.append(came[bisect.bisect_left(ends, line.end())])
    equal(tokens, TOKENS + 1, "completion_tokens")
    return TOKENS / (times[-1] - times[0])


def of_the_bench(args):
    """Tokens per second that the bench says: the median of its samples."""
    command = [args.taper, "bench", "model", "--model", args.model, "--case", f"tg{TOKENS}", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    expect(done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-300:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(row["median"] for row in rows if row["case"] == f"tg{TOKENS}")


@check("overhead.one_stream", seconds=1700)
def _(args):
    over_http(args.base_url, 0)
    served, alone = [], []
    for number in range(1, args.rounds + 1):
        served.append(over_http(args.base_url, number))
        alone.append(of_the_bench(args))
        print(f"note round {number}: {served[-1]:.1f} tokens/s over HTTP, {alone[-1]:.1f} in the bench", flush=True)
    ratio = statistics.median(served) / statistics.median(alone)
    figures = f"medians of {args.rounds}: {statistics.median(served):.1f} and {statistics.median(alone):.1f} tokens/s, ratio {ratio:.3f}"
    expect(ratio >= args.least, f"{figures}, less than {args.least}")
    return figures


def add(parser):
    parser.add_argument("--rounds", type=int, default=5, help="[default: %(default)s]")
    parser.add_argument("--least", type=float, default=0.98, help="the smallest ratio [default: %(default)s]")


if __name__ == "__main__":
    main(__doc__, add=add)
