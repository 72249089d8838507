#!/usr/bin/env python3
"""Ours against candle-transformers' quantized_llama on the same file, alternated in one run.

    RUSTFLAGS="-C target-cpu=native" cargo build --release --manifest-path bench/candle_baseline/Cargo.toml
    bench/versus_candle.py --model MODEL.gguf [--threads 2] [--cases pp128,tg64] [--rounds 5] [--out bench/results/NAME.json]

Each round runs ours, then theirs. Prints a line per case with the medians and the ratio (median, min, max over rounds), and last one
JSON object, which --out also writes to a file, with machine, commit and command.
"""
import argparse
import json
import os
import platform
import statistics
import subprocess
import sys


def rows(command):
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\nexit {done.returncode}\n{done.stderr[-2000:]}")
    return {row["case"]: row for row in map(json.loads, filter(lambda line: line.startswith("{"), done.stdout.splitlines()))}


def cpu_name():
    with open("/proc/cpuinfo") as lines:
        names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} cores" if names else platform.processor()


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper", default=f"{here}/../target/release/taper")
    parser.add_argument("--candle", default=f"{here}/candle_baseline/target/release/candle_baseline")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cases", default="pp128,tg64")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out")
    args = parser.parse_args()
    cases = args.cases.split(",")
    ours, theirs, row = {c: [] for c in cases}, {c: [] for c in cases}, {}
    for _ in range(args.rounds):
        for case in cases:
            command = [args.taper, "bench", "model", "--model", args.model, "--threads", str(args.threads), "--case", case]
            row = rows(command + ["--repeat", "1", "--json"])[case]
            ours[case].append(row["median"])
            theirs[case].append(rows([args.candle, args.model, str(args.threads), case])[case]["median"])
    result = {"machine": cpu_name(), "commit": row.get("commit"), "isa": row.get("isa"), "command": " ".join(sys.argv),
              "load": os.getloadavg()[0], "rounds": args.rounds, "cases": {}}
    for case in cases:
        ratio = [a / b for a, b in zip(ours[case], theirs[case])]
        result["cases"][case] = {"ours": ours[case], "candle": theirs[case], "ratio_median": statistics.median(ratio)}
        print(f"{case:12} ours {statistics.median(ours[case]):8.1f}  candle {statistics.median(theirs[case]):8.1f} tok/s"
              f"   ratio {statistics.median(ratio):.2f} [{min(ratio):.2f}..{max(ratio):.2f}]", flush=True)
    print(json.dumps(result))
    if args.out:
        with open(args.out, "w") as out:
            json.dump(result, out, indent=1)
            out.write("\n")


main()
