#!/usr/bin/env python3
"""What guessing gains, from the text itself (`--speculation lookup`) or by a draft model (`draft`), against `off`, request by
request in turns.

    bench/speculation.py --taper target/release/taper --model MODEL.gguf [--draft-model SMALL.gguf] [--rounds 3] [--out FILE.jsonl]

Two servers of the same binary answer the same greedy requests; texts must be equal. Workloads: quoting and editing (the
answer repeats the prompt) and free text (it repeats nothing). An answer that repeats itself, over 30 % of its runs of 8
words, is left out of quoting and editing: a model in a loop is easy to guess. Prints one JSON object per workload:
median, tenth and ninetieth percentile of the ratio of decode speeds.
"""
import argparse
import json
import shlex
import statistics
import time
import urllib.request

from serving import HOST, append, build_of, origin, servers

PASSAGES = [
    "The lighthouse at Cape Orrin was built in 1871 by a crew of forty men who hauled the granite up the cliff on sledges. "
    "Its lamp burned whale oil for twelve years before a paraffin burner was installed. The keeper, Anna Brandt, kept a "
    "diary in which she recorded every ship that passed, the weather at each watch, and the price of flour in the village.",
    "Honey bees communicate the distance and direction of food by dancing on the comb. A round dance means that flowers are "
    "near the hive, while a waggle dance points to a source further away. The angle of the waggle run relative to gravity "
    "tells the other bees the angle between the sun and the food, and its duration tells them how far they must fly.",
    "In the spring of 1924 the town council voted to replace its wooden bridge with one of reinforced concrete. The engineer "
    "proposed three arches of unequal span, because the eastern bank was softer than the western one. Work began in June, "
    "stopped during the floods of September, and was finished eleven days before the first snow.",
    "A sourdough starter is a culture of wild yeast and lactic acid bacteria living in flour and water. Fed every day at room "
    "temperature, it doubles in about six hours and smells of yoghurt and green apples. Kept in the refrigerator, it slows "
    "down and needs feeding only once a week, though it must be woken with two feedings before it can raise a loaf.",
]
CODE = [
    "def total_price(items, tax):\n    price = 0\n    for item in items:\n        price += item.cost * item.count\n"
    "    return price * (1 + tax)\n\n\ndef cheapest(items):\n    return min(items, key=lambda item: item.cost)\n",
    "class Counter:\n    def __init__(self, start):\n        self.value = start\n\n    def increment(self, step):\n"
    "        self.value += step\n        return self.value\n\n    def reset(self):\n        self.value = 0\n",
    "fn mean(values: &[f64]) -> Option<f64> {\n    if values.is_empty() {\n        return None;\n    }\n"
    "    let sum: f64 = values.iter().sum();\n    Some(sum / values.len() as f64)\n}\n",
    "function findUser(users, name) {\n  for (const user of users) {\n    if (user.name === name) {\n      return user;\n"
    "    }\n  }\n  return null;\n}\n",
    "def read_config(path):\n    settings = {}\n    with open(path) as file:\n        for line in file:\n"
    "            key, value = line.split('=', 1)\n            settings[key.strip()] = value.strip()\n    return settings\n",
    "int binary_search(const int *values, int count, int wanted) {\n    int low = 0, high = count - 1;\n    while (low <= high) {\n"
    "        int middle = (low + high) / 2;\n        if (values[middle] == wanted) return middle;\n"
    "        if (values[middle] < wanted) low = middle + 1;\n        else high = middle - 1;\n    }\n    return -1;\n}\n",
    "SELECT customers.name, SUM(orders.amount) AS total\nFROM customers\nJOIN orders ON orders.customer_id = customers.id\n"
    "WHERE orders.created_at >= '2024-01-01'\nGROUP BY customers.name\nORDER BY total DESC;\n",
    "public class Stack {\n    private final List<Integer> items = new ArrayList<>();\n\n    public void push(int item) {\n"
    "        items.add(item);\n    }\n\n    public int pop() {\n        return items.remove(items.size() - 1);\n    }\n}\n",
    "func reverse(text string) string {\n\trunes := []rune(text)\n\tfor i, j := 0, len(runes)-1; i < j; i, j = i+1, j-1 {\n"
    "\t\trunes[i], runes[j] = runes[j], runes[i]\n\t}\n\treturn string(runes)\n}\n",
    "<form action=\"/login\" method=\"post\">\n  <label for=\"name\">Name</label>\n  <input id=\"name\" name=\"name\" type=\"text\">\n"
    "  <label for=\"password\">Password</label>\n  <input id=\"password\" name=\"password\" type=\"password\">\n"
    "  <button>Log in</button>\n</form>\n",
    "def fibonacci(count):\n    numbers = [0, 1]\n    while len(numbers) < count:\n        numbers.append(numbers[-1] + numbers[-2])\n"
    "    return numbers[:count]\n\n\ndef is_even(number):\n    return number % 2 == 0\n",
    "struct Point {\n    double x;\n    double y;\n\n    double distance_to(const Point& other) const {\n"
    "        double dx = x - other.x;\n        double dy = y - other.y;\n        return std::sqrt(dx * dx + dy * dy);\n    }\n};\n",
    "const express = require('express');\nconst app = express();\n\napp.get('/users/:id', async (request, response) => {\n"
    "  const user = await database.find(request.params.id);\n  if (!user) return response.status(404).end();\n"
    "  response.json(user);\n});\n",
    "#!/bin/bash\nfor file in *.log; do\n    count=$(grep -c ERROR \"$file\")\n    if [ \"$count\" -gt 0 ]; then\n"
    "        echo \"$file: $count errors\"\n    fi\ndone\n",
    "def merge(left, right):\n    merged = []\n    while left and right:\n        if left[0] <= right[0]:\n"
    "            merged.append(left.pop(0))\n        else:\n            merged.append(right.pop(0))\n    return merged + left + right\n",
    "impl Queue {\n    pub fn new() -> Self {\n        Queue { items: VecDeque::new() }\n    }\n\n"
    "    pub fn enqueue(&mut self, item: u32) {\n        self.items.push_back(item);\n    }\n\n"
    "    pub fn dequeue(&mut self) -> Option<u32> {\n        self.items.pop_front()\n    }\n}\n",
]
FREE = [f"{opening} " for opening in (
    "Once upon a time in a village by the sea", "The history of the bicycle begins with", "My favourite season is",
    "To repair a leaking tap, first", "The stock market is a place where", "When the robot opened its eyes",
    "Photosynthesis is the process by which", "Dear Sir or Madam, I am writing to", "The three most important rules of chess",
    "Volcanoes form when", "A good teacher should", "In my opinion, travelling by train", "The recipe calls for",
    "Shakespeare wrote", "The planet Mars", "If I won the lottery", "An algorithm is", "The old man looked at the river and",
    "Democracy depends on", "Music theory explains")]


def workloads():
    quote = [f"Text:\n{p}\n\nThe same text, quoted word for word:\n{' '.join(p.split()[:4])}" for p in PASSAGES]
    quote += [f"Article:\n{p}\n\nKey sentence of the article, quoted: \"{' '.join(p.split('. ')[1].split()[:3])}" for p in PASSAGES]
    edit = [f"```\n{c}```\n\nThe same code with a comment above every function:\n\n```\n" for c in CODE]
    edit += [f"```\n{c}```\n\nThe same code, corrected:\n\n```\n{c.splitlines()[0]}\n" for c in CODE]
    return {"quote": quote, "code-edit": edit, "free": FREE}


def ask(server, prompt, max_tokens):
    """The text of an answer, its tokens per second as the server counts them, and how many they are."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "cache_salt": str(time.time_ns())}
    request = urllib.request.Request(f"http://{HOST}:{server.port}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"})
    answer = json.load(urllib.request.urlopen(request, timeout=300))
    return answer["choices"][0]["text"], answer["timings"]["predicted_per_second"], answer["usage"]["completion_tokens"]


def repetition(text):
    words = text.split()
    runs = [tuple(words[i:i + 8]) for i in range(len(words) - 7)]
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--taper", default="target/release/taper")
    parser.add_argument("--model", default="smollm2:135m")
    parser.add_argument("--draft-model", help="a smaller model of the same vocabulary; it guesses in place of the text itself")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--port", type=int, default=8390, help="of the first server; the other follows")
    parser.add_argument("--out", metavar="JSONL", help="adds a row per workload")
    args = parser.parse_args()
    speculation = "draft" if args.draft_model else "lookup"
    common = [args.taper, "serve", "-m", args.model, "-t", str(args.threads), "--speculation"]
    draft = ["--draft-model", args.draft_model] if args.draft_model else []
    facts = {**origin(args, args.taper), "command": shlex.join([*common, speculation, *draft])}
    with servers({"off": [*common, "off"], speculation: [*common, speculation, *draft]}, args.port) as (off, guessing):
        facts["build"] = build_of(guessing)
        for name, prompts in workloads().items():
            row = {**compare(name, prompts, (off, guessing), args), **facts}
            print(json.dumps(row), flush=True)
            append(args.out, [row])


def compare(name, prompts, both, args):
    """The row of a workload."""
    off, guessing = both
    ratios, left_out, speeds = [], 0, []
    for prompt in prompts:
        per_round = []
        for turn in range(args.rounds):
            order = [off, guessing] if turn % 2 == 0 else [guessing, off]
            answers = {server.name: ask(server, prompt, args.max_tokens) for server in order}
            (plain, slow, count), (guessed, fast, _) = answers[off.name], answers[guessing.name]
            if plain != guessed:
                raise SystemExit(f"texts differ:\n{plain!r}\n{guessed!r}")
            if count > 8:
                per_round.append(fast / slow)
                speeds.append(slow)
        if name != "free" and repetition(plain) > 0.3:
            left_out += 1
        elif per_round:
            ratios.append(statistics.median(per_round))
    ratios.sort()
    at = lambda share: round(ratios[min(len(ratios) - 1, int(share * len(ratios)))], 3)
    return {"bench": "speculation", "from": guessing.name, "case": name, "requests": len(ratios), "left_out": left_out, "rounds": args.rounds,
            "ratio_median": round(statistics.median(ratios), 3), "ratio_p10": at(0.1), "ratio_p90": at(0.9),
            "off_tok_s_median": round(statistics.median(speeds), 1)}


if __name__ == "__main__":
    main()
