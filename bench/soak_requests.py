"""The requests of `soak.py`: what a client of each kind asks, and what is wrong with an answer that breaks its promise.

`draw(rng)` gives a [Request] of a random kind with random company: a stream or not, a priority, a cache salt, a field that
nobody knows. `bad(rng)` gives one that must be refused. `REFERENCES` are requests whose answers never change.
"""
import dataclasses
import json
import random
import re
import typing

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
WORDS = ("river stone lantern harbour winter copper garden window silver market thunder orchard ladder pepper mountain "
         "violin captain feather meadow engine basket island needle forest bottle candle bridge saddle hammer cotton").split()
PHONE = r"[A-Z][a-z]{2,8} [0-9]{3}-[0-9]{4}"


def words(rng, count):
    return " ".join(rng.choices(WORDS, k=count))


# Prefixes that many requests share: long enough for several blocks of the cache.
DOCUMENTS = [words(random.Random(f"document {number}"), 400) for number in range(4)]


@dataclasses.dataclass
class Answer:
    """Per choice its text, reason to end and count of log-probabilities; and the usage of all."""
    texts: list[str]
    reasons: list[str]
    logprobs: list[int]
    usage: dict


@dataclasses.dataclass
class Request:
    kind: str
    path: str
    body: dict | str
    # Says what is wrong with a whole answer, None if nothing is.
    check: typing.Callable[[Answer], str | None] = lambda _: None
    status: int = 200
    method: str = "POST"


def chat(rng, content, **fields):
    return {"messages": [{"role": "user", "content": content}], "max_tokens": rng.choice([8, 24, 48, 96]), **fields}


def short_chat(rng):
    return CHAT, chat(rng, f"Write a sentence about a {words(rng, 1)} and a {words(rng, 1)}.", temperature=0.7), None


def long_prompt(rng):
    prompt = [rng.randrange(1000, 40000) for _ in range(rng.randrange(500, 1600))]
    return COMPLETIONS, {"prompt": prompt, "max_tokens": rng.choice([1, 16, 64])}, None


def shared_prefix(rng):
    question = f"{rng.choice(DOCUMENTS)}\n\nWhat is said of the {words(rng, 3)}?"
    return COMPLETIONS, {"prompt": question, "max_tokens": rng.choice([8, 32, 96]), "temperature": 0}, None


def quote(rng):
    """Repeats itself, so that guessed tokens are right."""
    text = words(rng, 60)
    return COMPLETIONS, {"prompt": f"{text}\n{text}\n{text[:40]}", "max_tokens": 96, "temperature": 0}, None


def several_choices(rng):
    n = rng.randrange(2, 5)
    body = {"prompt": f"{words(rng, rng.choice([8, 150]))}. The", "n": n, "max_tokens": 32, "temperature": 1.0, "top_p": 0.9}
    if rng.random() < 0.3:
        body |= {"best_of": n + 1, "stream": False}
    return COMPLETIONS, body, lambda answer: None if len(answer.texts) == n else f"{len(answer.texts)} choices of {n}"


def several_prompts(rng):
    prompts = [words(rng, rng.randrange(4, 40)) for _ in range(3)]
    return COMPLETIONS, {"prompt": prompts, "max_tokens": 16}, lambda answer: None if len(answer.texts) == 3 else "not 3 choices"


def json_schema(rng):
    # A new schema every time: what is compiled for it must not stay for ever.
    name, kind = words(rng, 2).replace(" ", "_"), rng.choice(WORDS)
    schema = {"type": "object", "additionalProperties": False, "required": [name, "kind", "count"], "properties": {
        name: {"type": "string", "maxLength": 12}, "kind": {"enum": [kind, "other"]}, "count": {"type": "integer"}}}
    body = chat(rng, f"Describe a {kind} as JSON.", max_tokens=96)
    body["response_format"] = {"type": "json_schema", "json_schema": {"name": "thing", "schema": schema}}

    def check(answer):
        if answer.reasons[0] == "stop":
            value = json.loads(answer.texts[0])
            return None if set(value) == {name, "kind", "count"} and value["kind"] in (kind, "other") else f"{value} is not of the schema"
    return CHAT, body, check


def regex(rng):
    def check(answer):
        is_whole = answer.reasons[0] == "stop" and not re.fullmatch(PHONE, answer.texts[0])
        return f"{answer.texts[0]!r} does not match {PHONE}" if is_whole else None
    return COMPLETIONS, {"prompt": f"Phone book of {words(rng, 1)}:", "guided_regex": PHONE, "max_tokens": 48}, check


def choice(rng):
    choices = rng.sample(WORDS, 3)
    body = chat(rng, f"Which is heaviest: {', '.join(choices)}?", guided_choice=choices, max_tokens=24)
    return CHAT, body, lambda answer: None if answer.texts[0] in choices else f"{answer.texts[0]!r} is none of {choices}"


def logprobs(rng):
    def check(answer):
        told, generated = sum(answer.logprobs), answer.usage.get("completion_tokens", 0)
        return None if told == generated else f"log-probabilities of {told} tokens, and {generated} were generated"
    return COMPLETIONS, {"prompt": words(rng, 12), "logprobs": rng.randrange(4), "max_tokens": 16}, check


def echo(rng):
    def check(answer):
        told, read = sum(answer.logprobs), answer.usage.get("prompt_tokens", 0)
        return None if told == read else f"log-probabilities of {told} tokens of a prompt of {read}"
    prompt = f"{rng.choice(DOCUMENTS)[:800]} {words(rng, 5)}"
    return COMPLETIONS, {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": 0, "stream": False}, check


def stop_string(rng):
    stops = [rng.choice([" the", ".", "\n", "and"]), words(rng, 1)]
    check = lambda answer: next((f"{stop!r} is in the text" for stop in stops if stop in answer.texts[0]), None)
    return COMPLETIONS, {"prompt": words(rng, 20) + ". Then", "stop": stops, "max_tokens": 96}, check


def penalties(rng):
    body = chat(rng, words(rng, 10), seed=rng.randrange(100), presence_penalty=0.5, frequency_penalty=0.3, top_k=40, min_p=0.02)
    return CHAT, body | {"repetition_penalty": 1.1, "min_tokens": 4, "logit_bias": {"30": -5}}, None


KINDS = {short_chat: 6, shared_prefix: 4, quote: 2, long_prompt: 2, several_choices: 2, several_prompts: 1, json_schema: 3,
         regex: 2, choice: 1, logprobs: 2, echo: 1, stop_string: 2, penalties: 2}


def draw(rng, names=None):
    """A request of any kind, or of one of these."""
    weights = {kind: weight for kind, weight in KINDS.items() if not names or kind.__name__ in names}
    kind = rng.choices(list(weights), weights=list(weights.values()))[0]
    path, body, check = kind(rng)
    body.setdefault("stream", rng.random() < 0.7)
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    if rng.random() < 0.3:
        body["priority"] = rng.randrange(-1, 3)
    if rng.random() < 0.1:
        body["cache_salt"] = f"tenant {rng.randrange(1_000_000)}"
    if rng.random() < 0.05:
        body[f"x_unknown_{rng.randrange(1_000_000)}"] = 1
    return Request(kind.__name__, path, body, check or (lambda _: None))


BAD = [
    Request("not JSON", COMPLETIONS, "{\"prompt\": ", status=400),
    Request("no prompt", COMPLETIONS, {"max_tokens": 3}, status=400),
    Request("no messages", CHAT, {"messages": []}, status=400),
    Request("temperature of 9", COMPLETIONS, {"prompt": "a", "temperature": 9}, status=400),
    Request("n of 0", CHAT, {"messages": [{"role": "user", "content": "a"}], "n": 0}, status=400),
    Request("token out of the vocabulary", COMPLETIONS, {"prompt": [1, 2, 1 << 30]}, status=400),
    Request("prompt longer than the context", COMPLETIONS, {"prompt": [1000] * 40_000}, status=400),
    Request("broken regex", COMPLETIONS, {"prompt": "a", "guided_regex": "(["}, status=400),
    Request("two forms", COMPLETIONS, {"prompt": "a", "guided_regex": "a", "guided_choice": ["a"]}, status=400),
    Request("tools", CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, status=400),
    Request("other model", CHAT, {"model": "no such model", "messages": [{"role": "user", "content": "a"}]}, status=404),
    Request("other path", "/v1/nowhere", {"query": "a"}, status=404),
    Request("other method", COMPLETIONS, "", status=405, method="GET"),
]


def bad(rng):
    return rng.choice(BAD)


REFERENCES = [
    (CHAT, {"messages": [{"role": "user", "content": "Name three colours of the rainbow."}], "max_tokens": 48, "temperature": 0}),
    (COMPLETIONS, {"prompt": f"{DOCUMENTS[0]}\n\nThe first word is", "max_tokens": 48, "temperature": 0, "logprobs": 2}),
    (COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 48, "temperature": 0.9, "seed": 7, "n": 2}),
    (CHAT, {"messages": [{"role": "user", "content": "A lighthouse as JSON."}], "max_tokens": 64, "temperature": 0,
            "guided_json": {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "height": {"type": "integer"}}}}),
]
