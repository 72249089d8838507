#!/usr/bin/env python3
"""What HTTP costs: tokens per second of one stream beside `taper bench model --case tg128@N`, in turns, N being the tokens of its prompt.

    run.py overhead       (--pass-on=--rounds=9)

Nothing else may run on the machine. A turn is streams of 128 tokens from a server, one sample of the bench, which has the machine for
itself while the server is idle, and as many streams again: a machine whose speed drifts is as fast on both sides of the bench, and on
one with noisy neighbours it does so within seconds. Each round of turns has a server of its own, since the speed of one program
differs from start to start, by where its memory lies; the bench is started for each turn. Speculation is off.
"""
import itertools
import json
import pathlib
import re
import socket
import statistics
import subprocess
import time

from checks import check, equal, expect, main, place
from taper_server import TaperServer, free_port, port_list

TOKENS = 128
TURNS = 4  # of a round
STREAMS = 2  # before the bench of a turn, and behind it
FIRST_TEXT = re.compile(rb'"text":"[^"]')


def over_http(url, number):
    """Tokens per second between the first token and the last of a stream, and the tokens of its prompt.

    The client shares the machine with the server, so it sleeps from the first token to the end of the answer: the system wakes it
    up no sooner. The time of the last token is that of the end, which the server tells behind it.
    """
    body = json.dumps({"prompt": f"Round {number:04}: once upon a time", "max_tokens": TOKENS + 1, "temperature": 0, "ignore_eos": True,
                       "stream": True, "stream_options": {"include_usage": True}}).encode()
    host, port = place(url)
    head = (f"POST /v1/completions HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n")
    with socket.create_connection((host, port), 120) as sock:
        sock.sendall(head.encode() + body)
        said = b""
        while not FIRST_TEXT.search(said):
            piece = sock.recv(65536)
            expect(piece, f"the answer ended before a token: {said[:300]!r}")
            said += piece
        first = time.perf_counter()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1 << 20)
        while piece := sock.recv(1 << 20):
            said += piece
        last = time.perf_counter()
    usages = [json.loads(line).get("usage") for line in re.findall(rb"^data: ({.*)$", said, re.MULTILINE)]
    usage = next(filter(None, usages), {})
    equal(usage.get("completion_tokens"), TOKENS + 1, "completion_tokens")
    return TOKENS / (last - first), usage["prompt_tokens"]


def of_the_bench(args, depth):
    """Tokens per second that the bench says, of one sample, with as many keys before as the streams have."""
    case = f"tg{TOKENS}@{depth}"
    command = [args.taper, "bench", "model", "--model", args.model, "--case", case, "--repeat", "1", "--bandwidth-mib", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    expect(done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-300:]}")
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return next(row["median"] for row in rows if row["case"] == case)


def turn(url, args, numbers):
    """Tokens per second over HTTP, and those of the bench."""
    before = [over_http(url, next(numbers)) for _ in range(STREAMS)]
    alone = of_the_bench(args, before[-1][1])
    behind = [over_http(url, next(numbers)) for _ in range(STREAMS)]
    return statistics.median(speed for speed, _ in before + behind), alone


@check("overhead.one_stream", seconds=1700)
def _(args):
    ratios, numbers = [], itertools.count()
    logs = pathlib.Path(args.work) / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    for number in range(1, args.rounds + 1):
        log, port = logs / f"overhead-{number}.server.log", free_port(port_list(args.ports))
        with TaperServer(args.taper, args.model, port, log, ["--speculation", "off"]) as server:
            server.wait_until_ready()
            over_http(server.url, next(numbers))
            turns = [turn(server.url, args, numbers) for _ in range(TURNS)]
            equal(server.stop(), 0, "the server's exit status")
            equal(server.log_errors(), [], "errors in the server's log")
        ratios += [served / alone for served, alone in turns]
        served, alone = (statistics.median(column) for column in zip(*turns))
        print(f"note round {number}: {served:.1f} tokens/s over HTTP, {alone:.1f} in the bench, ratios "
              + " ".join(f"{ratio:.3f}" for ratio in ratios[-TURNS:]), flush=True)
    ratio = statistics.median(ratios)
    quarters = statistics.quantiles(ratios, n=4)
    figures = f"ratio {ratio:.3f}, the median of {len(ratios)} turns; half of them from {quarters[0]:.3f} to {quarters[2]:.3f}"
    expect(ratio >= args.least, f"{figures}, less than {args.least}")
    return figures


def add(parser):
    parser.add_argument("--rounds", type=int, default=9, help="[default: %(default)s]")
    parser.add_argument("--least", type=float, default=0.98, help="the smallest ratio [default: %(default)s]")


if __name__ == "__main__":
    main(__doc__, add=add)
