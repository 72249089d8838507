#!/usr/bin/env python3
"""Ollama's Python client: chat, generate, list, show, ps, embed, tools, forms, errors.

    run.py ollama_python       (needs requirements/ollama.txt)
"""
import asyncio
import json
from typing import Literal

import ollama
import pydantic

from checks import PATIENCE, check, equal, expect, main, raises, settle

CHAT = [{"role": "user", "content": "Name three colours."}]
OPTIONS = {"temperature": 0, "num_predict": 16}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "The weather of a city", "parameters": {
    "type": "object", "required": ["city"], "properties": {"city": {"type": "string"}}}}}


class City(pydantic.BaseModel):
    """What a form is made of."""
    name: str = pydantic.Field(max_length=12)
    climate: Literal["warm", "cold"]


class Context:
    """The client of one server."""

    def __init__(self, args):
        self.url = args.base_url
        self.client = ollama.Client(host=self.url, timeout=60 * PATIENCE)
        listed = self.client.list().models
        self.name = listed[0].model if listed else "default"

    def chat(self, **parameters):
        return self.client.chat(model=self.name, **{"messages": CHAT, "options": OPTIONS, **parameters})

    def generate(self, **parameters):
        return self.client.generate(model=self.name, **{"prompt": "Name three colours.", "options": OPTIONS, **parameters})


class Late:
    """Makes the context at the first use, so that a server without Ollama's API fails by the checks' names."""

    def __init__(self, args):
        self.args, self.context = args, None

    def __getattr__(self, name):
        if self.context is None:
            self.context = Context(self.args)
        return getattr(self.context, name)


def is_counted(answer):
    """Counts and times of a finished answer."""
    expect(answer.done, "done is false")
    expect(answer.prompt_eval_count > 0 and answer.eval_count > 0, f"counts are {answer.prompt_eval_count} and {answer.eval_count}")
    expect(answer.total_duration > 0 and answer.eval_duration > 0, f"durations are {answer.total_duration} and {answer.eval_duration}")


@check("list")
def _(t):
    models = t.client.list().models
    expect(models and models[0].size > 0 and models[0].digest and models[0].modified_at, f"the models are {models}")
    expect(models[0].details.format == "gguf" and models[0].details.quantization_level, f"details are {models[0].details}")


@check("show")
def _(t):
    shown = t.client.show(t.name)
    expect(shown.details and shown.modelinfo and shown.modelinfo.get("general.architecture"), f"it says {str(shown)[:200]}")
    expect(shown.capabilities and "completion" in shown.capabilities, f"capabilities are {shown.capabilities}")


@check("ps")
def _(t):
    expect(t.client.ps().models, "no model is loaded")


@check("chat")
def _(t):
    answer = t.chat()
    equal(answer.message.role, "assistant", "role")
    expect(answer.message.content, "no content")
    is_counted(answer)
    expect(answer.done_reason in ("stop", "length"), f"done_reason is {answer.done_reason}")


@check("chat.stream")
def _(t):
    parts = list(t.chat(stream=True))
    equal("".join(part.message.content or "" for part in parts), t.chat().message.content, "the joined text")
    expect(not any(part.done for part in parts[:-1]), "a part before the last is done")
    is_counted(parts[-1])


@check("chat.async")
def _(t):
    async def eight():
        client = ollama.AsyncClient(host=t.url, timeout=60 * PATIENCE)
        return await asyncio.gather(*(client.chat(model=t.name, messages=CHAT, options=OPTIONS) for _ in range(8)))
    equal(len({answer.message.content for answer in asyncio.run(eight())}), 1, "the number of different texts")


@check("chat.format")
def _(t):
    City.model_validate_json(t.chat(format=City.model_json_schema(), options={**OPTIONS, "num_predict": 100}).message.content)
    answer = t.chat(format="json", options={**OPTIONS, "num_predict": 300})
    if answer.done_reason == "stop":
        json.loads(answer.message.content)


@check("chat.tools")
def _(t):
    answer = t.chat(messages=[{"role": "user", "content": "What is the weather in Paris?"}], tools=[WEATHER], options={**OPTIONS, "num_predict": 100})
    for call in answer.message.tool_calls or []:
        equal(call.function.name, "get_weather", "name")


@check("chat.options")
def _(t):
    options = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.05, "repeat_penalty": 1.1, "seed": 3, "num_predict": 8, "stop": ["\n"]}
    equal(t.chat(options=options).message.content, t.chat(options=options).message.content, "the text of the same seed")


@check("generate")
def _(t):
    answer = t.generate()
    expect(answer.response, "no response")
    is_counted(answer)


@check("generate.stream")
def _(t):
    parts = list(t.generate(stream=True))
    equal("".join(part.response or "" for part in parts), t.generate().response, "the joined text")


@check("generate.raw_and_system")
def _(t):
    expect("Paris" in t.generate(prompt="The capital of France is", raw=True).response, "a raw prompt is not completed")
    t.generate(system="Answer briefly.")


@check("generate.empty_prompt_loads")
def _(t):
    expect(t.generate(prompt="", keep_alive="5m").done, "done is false")


@check("generate.left_early")
def _(t):
    parts = t.generate(stream=True, options={"num_predict": 2000})
    next(parts)
    parts.close()
    settle(t.url, 20)


@check("embed")
def _(t):
    answer = t.client.embed(model=t.name, input=["A sentence.", "Another one."])
    equal(len(answer.embeddings), 2, "the number of vectors")
    equal(len(t.client.embed(model=t.name, input="A sentence.").embeddings[0]), len(answer.embeddings[0]), "the number of elements")
    expect(answer.prompt_eval_count > 0, "no prompt_eval_count")


@check("embeddings")
def _(t):
    expect(t.client.embeddings(model=t.name, prompt="A sentence.").embedding, "no embedding")


@check("errors")
def _(t):
    equal(raises(ollama.ResponseError, lambda: t.client.chat(model="no-such-model", messages=CHAT)).status_code, 404, "status_code")
    equal(raises(ollama.ResponseError, lambda: t.client.show("no-such-model")).status_code, 404, "status_code")
    equal(raises(ollama.ResponseError, lambda: t.chat(options={"temperature": "warm"})).status_code, 400, "status_code")


if __name__ == "__main__":
    main(__doc__, Late)
