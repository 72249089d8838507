#!/usr/bin/env python3
"""Tokens per second and latencies under load, of `taper serve` and `llama-server` in turns.

    bench/serve_load.py --model MODEL.gguf --llama-server PATH [--out FILE.jsonl]

At each concurrency of each round every server starts, answers `taper bench serve` (a closed loop of streamed completions; no
two prompts are alike) and ends, one server after the other. `llama-server` gets a slot and 512 tokens of context per
user (`-np N -fa on`). The client shares the machine with the servers. The table has medians over rounds (least-greatest), and
`share` what a server has of the first one's figure: the median of rounds.
"""
import argparse
import json
import pathlib
import shlex
import statistics
import subprocess
import sys
import tempfile

from serving import HOST, append, build_of, origin, servers, spread, table

REQUESTS = {1: 16, 8: 40, 32: 64}
CONTEXT = 512
FIGURES = {"tok/s": lambda row: row["tok_s"], "TTFT p50, ms": lambda row: row["ttft_ms"]["p50"],
           "ITL p50, ms": lambda row: row["itl_ms"]["p50"], "ITL p99, ms": lambda row: row["itl_ms"]["p99"]}


def command_of(name, args, concurrency):
    common = ["-m", args.model, "-t", str(args.threads)]
    if name == "taper":
        return [args.taper_binary, "serve", *common, *shlex.split(args.taper)]
    return [args.llama_server, *common, "-np", str(concurrency), "-c", str(CONTEXT * concurrency), "-fa", "on"]


def loaded(server, args, concurrency, round_number):
    """The row that the load generator says."""
    with tempfile.TemporaryDirectory(prefix="taper-bench-") as folder:
        rows = pathlib.Path(folder) / "rows.jsonl"
        command = [args.taper_binary, "bench", "serve", "--url", f"http://{HOST}:{server.port}", "--concurrency", str(concurrency),
                   "--requests", str(REQUESTS.get(concurrency, 4 * max(4, concurrency))), "--prompt-tokens", str(args.prompt_tokens),
                   "--output-tokens", str(args.output_tokens), "--ignore-eos", "--seed", str(round_number), "--json", str(rows)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{shlex.join(command)} ended with {done.returncode}:\n{done.stderr[-1000:]}")
        return json.loads(rows.read_text(encoding="utf-8").splitlines()[0])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper", default="--speculation off", metavar="FLAGS", help="more flags of `taper serve` [%(default)s]")
    parser.add_argument("--taper-binary", default="target/release/taper", metavar="PATH")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--model", required=True, metavar="GGUF")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--concurrency", default="1,8,32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--output-tokens", type=int, default=128)
    parser.add_argument("--port", type=int, default=8370)
    parser.add_argument("--out", metavar="JSONL", help="adds a row per server, round and concurrency")
    args = parser.parse_args()
    facts = origin(args, args.taper_binary)
    names = ["taper", *(["llama-server"] if args.llama_server else [])]
    levels = [int(level) for level in args.concurrency.split(",")]
    rows = []
    for turn in range(1, args.rounds + 1):
        for level in levels:
            for name in names if turn % 2 else reversed(names):
                with servers({name: command_of(name, args, level)}, args.port) as (server,):
                    row = loaded(server, args, level, turn)
                    rows.append({**row, "bench": "serve_load", "case": f"{name} x {level}", "server": name, "round": turn, "concurrency": level,
                                 "command": shlex.join(server.command), "build": build_of(server), **facts})
                print(f"round {turn}, {name} x {level}: " + ", ".join(f"{title} {of(row):.1f}" for title, of in FIGURES.items()),
                      file=sys.stderr, flush=True)
                append(args.out, rows[-1:])
    print_table(rows, names, levels)


def print_table(rows, names, levels):
    of = lambda name, level, figure: [figure(row) for row in rows if row["server"] == name and row["concurrency"] == level]
    lines = []
    for level in levels:
        for name in names:
            values = {title: of(name, level, figure) for title, figure in FIGURES.items()}
            firsts = {title: of(names[0], level, figure) for title, figure in FIGURES.items()}
            shares = [statistics.median(its / first for its, first in zip(values[title], firsts[title])) for title in FIGURES]
            cells = [cell for title, share in zip(FIGURES, shares) for cell in (spread(values[title]), f"{share:.2f}")]
            lines.append([f"{name} x {level}", *cells])
    table(["server x users", *(cell for title in FIGURES for cell in (title, "share"))], lines)


if __name__ == "__main__":
    main()
