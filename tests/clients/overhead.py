#!/usr/bin/env python3
"""What HTTP costs: tokens per second of one stream beside `taper bench model --case tg128`, in turns.

    run.py overhead       (--pass-on=--rounds=5)

Nothing else may run on the machine. A round is a stream of 128 tokens from the server, after one that warms it, and then the bench,
which has the machine for itself while the server is idle. Speculation is off on both sides.
"""
import http.client
import json
import statistics
import subprocess
import time

from checks import check, equal, expect, main, place

TOKENS = 128


def over_http(url, number):
    """Tokens per second between the first token and the last of a stream."""
    connection = http.client.HTTPConnection(*place(url), timeout=120)
    body = {"prompt": f"Round {number}: once upon a time", "max_tokens": TOKENS + 1, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    times, tokens = [], 0
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            now, event = time.perf_counter(), json.loads(line[6:])
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            if event["choices"] and event["choices"][0]["text"]:
                times.append(now)
    connection.close()
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
    parser.add_argument("--least", type=float, default=0.95, help="the smallest ratio [default: %(default)s]")


if __name__ == "__main__":
    main(__doc__, add=add)
