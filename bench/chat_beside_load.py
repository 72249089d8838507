#!/usr/bin/env python3
"""A conversation beside another user: how soon each of ten turns is answered, and how much of its prompt is computed.

    bench/chat_beside_load.py --model MODEL.gguf --llama-server PATH [--out FILE.jsonl]

One user chats: every turn sends the whole conversation again with a new message of about 60 tokens and gets an answer of
64 tokens, at temperature 0. Another user keeps the server busy meanwhile: one request after the other of 512 tokens drawn
at random, so that none is in a cache and each takes a slot or blocks from it, and 64 tokens of answer. `taper serve` and
`llama-server -np 2 -fa on` (one slot per user), both as they come otherwise, take turns, conversation by conversation;
each conversation opens with words of its own. Per turn: time to the first token, tokens of the prompt, and how many of
them were computed (not cached, as the server tells). The table has medians over rounds (least-greatest).

Answers are cut at 64 tokens and sent back as they are. The texts of two servers may differ, and their prompts by some tokens.
"""
import argparse
import random
import shlex
import statistics
import sys
import threading

from serving import Stream, append, build_of, origin, random_tokens, servers, spread, table, text_of

# Each about 60 tokens with the words of the opening.
MESSAGES = [
    "I want to plan a long walk through the hills north of the village, from the old mill by the river to the lighthouse at "
    "the end of the cape, and I have three days for it. What should I take with me, and in what order should I see things?",
    "That sounds good. Suppose that it rains on the second day and the path along the cliff is closed. Which other way would "
    "you take from the mill to the lighthouse, and where could two people find a dry and cheap place to spend the night?",
    "My sister will join me on the last day. She does not like steep paths and has a small dog that is afraid of cows. How "
    "would you change the plan for that day so that all three of us arrive at the lighthouse before the evening comes?",
    "We would like to cook for ourselves on the way. Tell me what to buy for three simple dinners that need one pot only, "
    "that do not spoil without a refrigerator, and that are light enough to be carried up a hill in a small backpack.",
    "Let us talk about money for a moment. I have two hundred coins for everything, the dinners, the nights and the bus home. "
    "How much should I spend on each of these, and what should I leave out if the bus becomes more expensive next week?",
    "A friend says that the lighthouse is closed in winter and that the keeper gives tours only on Sunday mornings. If we "
    "start on a Thursday, do we arrive in time for a tour, and what would you do there if the keeper is ill that day?",
    "I also want to draw what I see on the way. Which five views would you choose between the mill and the cape, at what hour "
    "of the day is the light best for each of them, and how long may I sit at each one without being late in the evening?",
    "My sister asks whether there are birds to watch in this season. Name some that live on cliffs and some that live in the "
    "marsh behind the village, and tell us how to tell two similar ones apart from far away without good binoculars.",
    "Imagine that we lose the path in the fog between the mill and the first hill. Explain step by step how to find the way "
    "back with a map and a compass, what to do first, what never to do, and when it is better to stay and wait for help.",
    "Thank you. Now write a short summary of the whole plan that I can send to my sister, with the three days, the dinners, "
    "the money, the tour at the lighthouse and the birds, so that she knows what to bring and when to be at the bus stop.",
]
OPENINGS = "Amber Birch Cedar Delta Ember Fjord Grove Heron Ivory Jasper Kestrel Lotus Maple Nectar Opal Pebble".split()


class OtherUser:
    """Keeps one request under way at `server` from the beginning of the context to its end."""

    def __init__(self, server, rng, args):
        self.server, self.rng, self.args = server, rng, args
        self.is_leaving, self.answered, self.failure = False, 0, None
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        try:
            while not self.is_leaving:
                body = {"prompt": random_tokens(self.rng, self.args.load_prompt_tokens), "max_tokens": self.args.answer_tokens,
                        "temperature": 0, "ignore_eos": True}
                with Stream(self.server, "/v1/completions", body) as events:
                    for _ in events:
                        if self.is_leaving:
                            return
                self.answered += 1
        except (OSError, RuntimeError) as error:
            self.failure = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.is_leaving = True
        self.thread.join(timeout=60)


def say(server, messages, max_tokens):
    """One turn: the answer's text, milliseconds to its first token, tokens of the prompt and those of them computed."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "stream_options": {"include_usage": True}}
    first, text, usage = None, "", None
    with Stream(server, "/v1/chat/completions", body) as events:
        for time, event in events:
            if first is None and text_of(event):
                first = time
            text += text_of(event)
            usage = event.get("usage") or usage
        ttft = (first - events.sent) * 1e3 if first else None
    return text, ttft, usage["prompt_tokens"], usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"]


def converse(server, opening, args):
    """The rows of one conversation."""
    messages, rows = [], []
    for turn, message in enumerate(MESSAGES[:args.turns], 1):
        messages.append({"role": "user", "content": f"{opening}. {message}"})
        text, ttft, prompt, computed = say(server, messages, args.answer_tokens)
        messages.append({"role": "assistant", "content": text})
        if ttft is None:
            raise SystemExit(f"{server.name} answered turn {turn} with nothing, so its conversation cannot be compared")
        rows.append({"turn": turn, "ttft_ms": round(ttft, 2), "prompt_tokens": prompt, "computed_tokens": computed})
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper", default="", metavar="FLAGS", help="more flags of `taper serve`")
    parser.add_argument("--taper-binary", default="target/release/taper", metavar="PATH")
    parser.add_argument("--llama-server", metavar="PATH")
    parser.add_argument("--model", required=True, metavar="GGUF", help="a chat model of at least 40,000 tokens")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=len(MESSAGES))
    parser.add_argument("--answer-tokens", type=int, default=64)
    parser.add_argument("--load-prompt-tokens", type=int, default=512)
    parser.add_argument("--context", type=int, default=4096, help="tokens of context per user; all of ten turns need about 1,600")
    parser.add_argument("--port", type=int, default=8350, help="of the first server; the other follows")
    parser.add_argument("--seed", type=int, default=1, help="of the other user's prompts")
    parser.add_argument("--out", metavar="JSONL", help="adds a row per server, round and turn")
    args = parser.parse_args()
    rng = random.Random(args.seed)
    facts = origin(args, args.taper_binary)
    common = ["-m", args.model, "-t", str(args.threads)]
    commands = {"taper": [args.taper_binary, "serve", *common, "-c", str(args.context), *shlex.split(args.taper)]}
    if args.llama_server:
        commands["llama-server"] = [args.llama_server, *common, "-c", str(2 * args.context), "-np", "2", "-fa", "on"]
    rows = []
    with servers(commands, args.port) as all_servers:
        builds = {server.name: build_of(server) for server in all_servers}
        for turn in range(1, args.rounds + 1):
            for server in all_servers if turn % 2 else reversed(all_servers):
                with OtherUser(server, rng, args) as other:
                    conversation = converse(server, OPENINGS[turn % len(OPENINGS)], args)
                if other.failure:
                    raise SystemExit(f"the other user of {server.name} was not served: {other.failure}")
                rows += [{"bench": "chat_beside_load", "case": server.name, "round": turn, **row, "load_requests": other.answered,
                          "load_prompt_tokens": args.load_prompt_tokens, "answer_tokens": args.answer_tokens,
                          "command": shlex.join(server.command), "build": builds[server.name], **facts} for row in conversation]
                print(f"round {turn}, {server.name}: median time to the first token "
                      f"{statistics.median(row['ttft_ms'] for row in conversation):.0f} ms; the other user got {other.answered} answers",
                      file=sys.stderr, flush=True)
        append(args.out, rows)
        print_table(rows, [server.name for server in all_servers], args.turns)


def print_table(rows, names, turns):
    of = lambda name, turn, key: [row[key] for row in rows if row["case"] == name and row["turn"] == turn]
    keys = {"TTFT, ms": ("ttft_ms", 0), "prompt": ("prompt_tokens", 0), "computed": ("computed_tokens", 0)}
    header = ["turn", *(f"{name}: {title}" for name in names for title in keys)]
    lines = [[turn, *(spread(of(name, turn, key), digits) for name in names for key, digits in keys.values())]
             for turn in range(1, turns + 1)]
    table(header, lines)


if __name__ == "__main__":
    main()
