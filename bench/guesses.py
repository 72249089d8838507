#!/usr/bin/env python3
"""How often the token that followed an earlier match of a text's last tokens follows again, by the length of the match.

    bench/guesses.py --taper target/release/taper --model MODEL.gguf [--out FILE.jsonl]

What `--speculation lookup` believes of a guess before it has seen any (`PRIOR` in crates/engine/src/speculation/acceptance.rs)
is what this counts. The texts are those of speculation.py, greedy: quoting and editing without answers that repeat themselves
over 30 %, and free text. At every token of an answer the one that followed the longest earlier match, the latest among
equals, is compared with the one that came: the last 16 places of a pair, or the last place of the token where no pair is.
Prints one JSON object per workload, and one for all: guesses of each class, and the share that was right.
"""
import argparse
import json
import urllib.request

import speculation

MATCHES = [1, 2, 3, 5, 16]  # a class holds matches of so many tokens and more
LONGEST, MOST_PLACES = 32, 16


def match_len(tokens, place):
    """How many tokens up to `place` agree with the last ones."""
    length = 0
    while length < LONGEST and length <= place and tokens[place - length] == tokens[len(tokens) - 1 - length]:
        length += 1
    return length


def longest_match(tokens):
    """Its length and place; None where the last token is new."""
    places = [place for place in range(len(tokens) - 2, -1, -1) if tokens[place] == tokens[-1]]
    matches = [(match_len(tokens, place), place) for place in places]
    pairs = [match for match in matches if match[0] >= 2][:MOST_PLACES]
    return max(pairs or matches[:1], default=None)


def class_of(length):
    return max(index for index, least in enumerate(MATCHES) if length >= least)


def count(prompt, answer):
    """[guesses, right ones] of each class over an answer, both lists of tokens."""
    counts = [[0, 0] for _ in MATCHES]
    for known in range(1, len(answer)):
        tokens = prompt + answer[:known]
        match = longest_match(tokens)
        if match:
            of_class = counts[class_of(match[0])]
            of_class[0] += 1
            of_class[1] += tokens[match[1] + 1] == answer[known]
    return counts


def text_of(server, prompt, max_tokens):
    """The tokens of a prompt and of its greedy answer."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "logprobs": 0, "echo": True}
    request = urllib.request.Request(server.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=300))
    tokens, new = answer["choices"][0]["logprobs"]["tokens"], answer["usage"]["completion_tokens"]
    return tokens[:-new], tokens[-new:]


def row(case, counts):
    return {"bench": "guesses", "case": case, "matches": MATCHES, "guesses": [guesses for guesses, _ in counts],
            "right": [round(right / guesses, 3) if guesses else None for guesses, right in counts]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper", default="target/release/taper")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out")
    args = parser.parse_args()
    server = speculation.Server(args.taper, args.model, "off", 8153, args.threads)
    rows, in_all = [], [[0, 0] for _ in MATCHES]
    try:
        for case, prompts in speculation.workloads().items():
            of_case = [[0, 0] for _ in MATCHES]
            for prompt in prompts:
                known, answer = text_of(server, prompt, args.max_tokens)
                if case != "free" and speculation.repetition("".join(answer)) > 0.3:
                    continue
                for counts in (of_case, in_all):
                    for total, more in zip(counts, count(known, answer)):
                        total[0] += more[0]
                        total[1] += more[1]
            rows.append(row(case, of_case))
            print(json.dumps(rows[-1]), flush=True)
    finally:
        server.process.terminate()
        server.process.wait()
    rows.append(row("all", in_all))
    print(json.dumps(rows[-1]))
    if args.out:
        with open(args.out, "a", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


if __name__ == "__main__":
    main()
