#!/usr/bin/env python3
"""What a long prompt does to somebody who is reading an answer, and what the reader does to the prompt.

    bench/interference.py --model MODEL.gguf --taper "" --taper "--itl-target 7.5x" [--llama-server PATH] [--out FILE.jsonl]

One request decodes while a prompt of 4,096 tokens arrives. Every --taper is one `taper serve` with these flags ("" is as it
comes), --llama-server one with two slots; --speculation is off everywhere, so that a gap between tokens is a step. The
servers take turns, round by round, after a prompt to warm up. A round measures, at one server:

  alone     time to the first token of a long prompt that has the machine to itself, and the median gap between tokens (ITL)
            of the reader: its 64 tokens before the long prompt arrives and the 64 after that one's first token
  together  time to the first token of the long prompt, and 50th and 99th percentile and maximum of the reader's gaps that
            touch the time from the arrival of the long prompt to its first token
  ratios    p99 of these gaps to the median gap alone; time to first token to that alone

Prompts are token ids drawn at random, so that no prefix cache helps. The table has medians over rounds (least-greatest).
"""
import argparse
import random
import shlex
import statistics
import sys
import threading

from serving import Stream, append, build_of, origin, random_tokens, servers, spread, table, text_of

ALONE_TOKENS = 64
COMPLETIONS = "/v1/completions"


def request(rng, prompt_tokens, max_tokens):
    return {"prompt": random_tokens(rng, prompt_tokens), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}


class Reader(threading.Thread):
    """Reads an answer until told to leave, noting when each token came."""

    def __init__(self, server, body):
        super().__init__(daemon=True)
        self.server, self.body = server, body
        self.times, self.failure = [], None
        self.news, self.is_leaving = threading.Condition(), False

    def run(self):
        try:
            with Stream(self.server, COMPLETIONS, self.body) as events:
                for time, event in events:
                    with self.news:
                        if text_of(event):
                            self.times.append(time)
                        self.news.notify()
                        if self.is_leaving:
                            return
                self.failure = f"{self.server.name}: the answer ended after {len(self.times)} tokens, before the long prompt was done"
        except (OSError, RuntimeError) as error:
            self.failure = f"{self.server.name}: {error}"
        finally:
            with self.news:
                self.news.notify()

    def await_tokens(self, count):
        """Waits until `count` more tokens have come."""
        with self.news:
            wanted = len(self.times) + count
            self.news.wait_for(lambda: len(self.times) >= wanted or not self.is_alive() or self.failure, timeout=120)
            if len(self.times) < wanted:
                raise SystemExit(self.failure or f"{self.server.name}: no token for two minutes")

    def leave(self):
        self.is_leaving = True
        self.join(timeout=120)


def long_prompt(server, rng, tokens):
    """Arrival and first token of a long prompt."""
    with Stream(server, COMPLETIONS, request(rng, tokens, 1)) as events:
        first = next(time for time, event in events if text_of(event) or event["choices"][0]["finish_reason"])
        return events.sent, first


def measure(server, rng, args):
    """One round at one server, times in milliseconds."""
    arrival, first = long_prompt(server, rng, args.prompt_tokens)
    ttft_alone = (first - arrival) * 1e3

    reader = Reader(server, request(rng, 16, args.reader_tokens))
    reader.start()
    reader.await_tokens(ALONE_TOKENS + 1)
    arrival, first = long_prompt(server, rng, args.prompt_tokens)
    reader.await_tokens(ALONE_TOKENS + 2)
    reader.leave()

    gaps = list(zip(reader.times, reader.times[1:]))
    touched = sorted((end - start) * 1e3 for start, end in gaps if end > arrival and start < first)
    alone = [(end - start) * 1e3 for start, end in gaps if end <= arrival or start >= first]
    itl_alone, ttft = statistics.median(alone), (first - arrival) * 1e3
    p99 = touched[min(len(touched) - 1, int(0.99 * len(touched)))]
    return {"itl_alone_ms": itl_alone, "ttft_alone_ms": ttft_alone, "gaps": len(touched),
            "itl_p50_ms": statistics.median(touched), "itl_p99_ms": p99, "itl_max_ms": touched[-1], "ttft_ms": ttft,
            "itl_p99_ratio": p99 / itl_alone, "itl_max_ratio": touched[-1] / itl_alone, "ttft_ratio": ttft / ttft_alone}


def commands(args):
    """The servers under measurement, by name."""
    context = args.prompt_tokens + args.reader_tokens + 64
    common = ["-m", args.model, "-t", str(args.threads)]
    named = {}
    for flags in args.taper or [""]:
        name = f"taper {flags}".strip()
        named[name] = [args.taper_binary, "serve", *common, "-c", str(context), "--speculation", "off", *shlex.split(flags)]
    if args.llama_server:
        named["llama-server"] = [args.llama_server, *common, "-c", str(2 * context), "-np", "2", "-fa", "on"]
    return named


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper", action="append", metavar="FLAGS", help="flags of one `taper serve`; again for another")
    parser.add_argument("--taper-binary", default="target/release/taper", metavar="PATH")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--model", required=True, metavar="GGUF", help="of at least 40,000 tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompt-tokens", type=int, default=4096, help="of the long prompt")
    parser.add_argument("--reader-tokens", type=int, default=2048, help="most that the reader reads; it must outlast the long prompt")
    parser.add_argument("--port", type=int, default=8350, help="of the first server; the others follow")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts")
    parser.add_argument("--out", metavar="JSONL", help="adds a row per server and round")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    facts = origin(args, args.taper_binary)
    rows = []
    with servers(commands(args), args.port) as all_servers:
        builds = {server.name: build_of(server) for server in all_servers}
        for server in all_servers:
            long_prompt(server, rng, min(args.prompt_tokens, 1024))
        for turn in range(1, args.rounds + 1):
            for server in all_servers if turn % 2 else reversed(all_servers):
                result = measure(server, rng, args)
                print(f"round {turn}, {server.name}: p99 {result['itl_p99_ratio']:.2f} times the median alone, first token "
                      f"{result['ttft_ratio']:.2f} times that alone", file=sys.stderr, flush=True)
                rows.append({"bench": "interference", "case": server.name, "round": turn,
                             **{key: round(value, 3) for key, value in result.items()}, "prompt_tokens": args.prompt_tokens,
                             "command": shlex.join(server.command), "build": builds[server.name], **facts})
        append(args.out, rows)
        columns = {"ITL alone, ms": "itl_alone_ms", "gaps": "gaps", "p50": "itl_p50_ms", "p99": "itl_p99_ms", "max": "itl_max_ms",
                   "p99 ratio": "itl_p99_ratio", "TTFT alone, ms": "ttft_alone_ms", "TTFT, ms": "ttft_ms", "TTFT ratio": "ttft_ratio"}
        lines = []
        for server in all_servers:
            mine = [row for row in rows if row["case"] == server.name]
            digits = lambda key: 2 if key.endswith("ratio") else 0 if key.startswith(("ttft", "gaps")) else 1
            lines.append([server.name, *(spread([row[key] for row in mine], digits(key)) for key in columns.values())])
        table(["server", *columns], lines)


if __name__ == "__main__":
    main()
