#!/usr/bin/env python3
"""OpenAI's Python client: models, completions, chat, tools, structured outputs, embeddings, responses, errors.

    run.py openai_python       (needs requirements/openai.txt)

Servers: the main one; `keyed`, which has the API key of CLIENTS_KEY; `busy`, with one place and a queue of one. What a
parameter means is taken from OpenAI's documentation, what an error is from the classes of the client.
"""
import asyncio
import concurrent.futures
import json
import math
import os
import threading
from typing import Literal

import openai
import pydantic

from checks import PATIENCE, check, equal, expect, main, one_of, other_server, raises, settle

CHAT = [{"role": "user", "content": "Name three colours."}]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a city now", "strict": True,
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city", "unit"], "properties": {
        "city": {"type": "string", "maxLength": 20}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}}}
CLOCK = {"type": "function", "function": {
    "name": "get_time", "description": "The time in a city", "strict": True,
    "parameters": {"type": "object", "additionalProperties": False, "required": ["city"], "properties": {
        "city": {"type": "string", "maxLength": 20}}}}}
ASK = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]
CITY_FORM = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": {
    "type": "object", "additionalProperties": False, "required": ["name", "size"], "properties": {
        "name": {"type": "string", "maxLength": 12}, "size": {"type": "integer", "minimum": 0, "maximum": 999}}}}}


class City(pydantic.BaseModel):
    """What `parse` is asked for."""
    name: str = pydantic.Field(max_length=12)
    is_capital: bool
    climate: Literal["warm", "cold"]


class GetWeather(pydantic.BaseModel):
    """A tool as a class."""
    city: str = pydantic.Field(max_length=20)
    unit: Literal["celsius", "fahrenheit"]


class Context:
    """The clients of one server."""

    def __init__(self, args):
        self.args, self.url = args, args.base_url
        self.client = self.at(self.url)
        self.name = self.client.models.list().data[0].id

    @staticmethod
    def at(url, key="none", **settings):
        """A client that does not ask twice unless told to."""
        return openai.OpenAI(base_url=f"{url}/v1", api_key=key, **{"max_retries": 0, "timeout": 60 * PATIENCE, **settings})

    def chat(self, messages=None, **parameters):
        parameters = {"max_completion_tokens": 16, "temperature": 0, **parameters}
        return self.client.chat.completions.create(model=self.name, messages=messages or CHAT, **parameters)

    def complete(self, prompt="The capital of France is", **parameters):
        parameters = {"max_tokens": 12, "temperature": 0, **parameters}
        return self.client.completions.create(model=self.name, prompt=prompt, **parameters)

    def refused(self, call, **attributes):
        """The call is a BadRequestError with these attributes and a message."""
        error = raises(openai.BadRequestError, call, **attributes)
        expect(len(error.message) > 10, f"the message is {error.message!r}")
        return error


def works_or_is_refused(call, param):
    """A parameter works or is refused by its name; returns whether it works."""
    try:
        call()
        return True
    except openai.BadRequestError as error:
        equal(error.param, param, f"the param of {error.message!r}")
        return False


def usage_adds_up(usage):
    expect(usage is not None, "there is no usage")
    equal(usage.prompt_tokens + usage.completion_tokens, usage.total_tokens, "total_tokens")
    expect(usage.prompt_tokens > 0, "no prompt_tokens")


# Models

@check("models.list")
def _(t):
    page = t.client.models.list()
    expect(page.data, "no models")
    for model in page.data:
        equal(model.object, "model", "object")
        expect(isinstance(model.created, int) and isinstance(model.owned_by, str), f"created or owned_by is missing: {model}")


@check("models.retrieve")
def _(t):
    equal(t.client.models.retrieve(t.name).id, t.name, "id")


@check("models.retrieve.unknown")
def _(t):
    raises(openai.NotFoundError, lambda: t.client.models.retrieve("no-such-model"), code="model_not_found")


@check("models.delete_is_no_5xx")
def _(t):
    error = raises(openai.APIStatusError, lambda: t.client.models.delete(t.name))
    expect(400 <= error.status_code < 500, f"status {error.status_code}")


# Completions

@check("completions.plain")
def _(t):
    answer = t.complete()
    equal(answer.object, "text_completion", "object")
    equal(answer.choices[0].finish_reason, "length", "finish_reason")
    equal(answer.usage.completion_tokens, 12, "completion_tokens")
    usage_adds_up(answer.usage)
    expect("Paris" in answer.choices[0].text, f"the text is {answer.choices[0].text!r}")


@check("completions.stream")
def _(t):
    chunks = list(t.complete(stream=True))
    equal("".join(chunk.choices[0].text for chunk in chunks), t.complete().choices[0].text, "the joined text")
    equal([chunk.choices[0].finish_reason for chunk in chunks][-1], "length", "the last finish_reason")
    equal(len({chunk.id for chunk in chunks}), 1, "the number of ids")


@check("completions.stream.usage")
def _(t):
    *chunks, last = t.complete(stream=True, stream_options={"include_usage": True})
    equal(last.choices, [], "the choices of the last chunk")
    equal(last.usage.completion_tokens, 12, "completion_tokens")
    expect(all(chunk.usage is None for chunk in chunks), "another chunk has usage")


@check("completions.prompts_and_n")
def _(t):
    answer = t.complete(["One, two,", "Red, green,"], n=2, temperature=1, seed=1)
    equal([choice.index for choice in answer.choices], [0, 1, 2, 3], "the indices")
    expect(4 <= answer.usage.completion_tokens <= 48, f"completion_tokens is {answer.usage.completion_tokens}")


@check("completions.token_ids")
def _(t):
    one, two = [t.complete(ids).choices for ids in ([504, 3575, 282], [[504, 3575, 282], [504, 3575]])]
    equal((len(one), len(two)), (1, 2), "the number of choices")
    equal(one[0].text, two[0].text, "the text of the same prompt")


@check("completions.best_of")
def _(t):
    equal(len(t.complete(n=1, best_of=3, temperature=1, seed=3).choices), 1, "the number of choices")


@check("completions.logprobs")
def _(t):
    logprobs = t.complete(logprobs=3).choices[0].logprobs
    equal([len(values) for values in (logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, logprobs.text_offset)],
          [12] * 4, "the numbers of values")
    for chosen, top in zip(logprobs.token_logprobs, logprobs.top_logprobs):
        expect(len(top) >= 3 and chosen <= 1e-6 and math.isclose(chosen, max(top.values()), abs_tol=1e-4),
               f"a greedy token has {chosen}, the most likely ones {top}")


@check("completions.echo")
def _(t):
    prompt = "The capital of France is"
    choice = t.complete(prompt, echo=True, logprobs=1, max_tokens=1).choices[0]
    expect(choice.text.startswith(prompt), f"the text is {choice.text!r}")
    expect(choice.logprobs.token_logprobs[0] is None, "the first token has a log-probability")
    expect(all(value < 0 for value in choice.logprobs.token_logprobs[1:]), "a token has none")


@check("completions.stop")
def _(t):
    for stop in (",", [",", "6"]):
        choice = t.complete("1, 2, 3, 4, 5", stop=stop, max_tokens=20).choices[0]
        equal(choice.finish_reason, "stop", "finish_reason")
        expect("," not in choice.text, f"the text is {choice.text!r}")


@check("completions.seed")
def _(t):
    texts = [t.complete("Once upon a time", temperature=1, seed=seed, max_tokens=24).choices[0].text for seed in (7, 7, 8)]
    equal(texts[0], texts[1], "the text of the same seed")
    expect(texts[0] != texts[2], "another seed has the same text")


@check("completions.logit_bias")
def _(t):
    tokens = t.complete(logit_bias={"28": 100}, logprobs=0, max_tokens=4).choices[0].logprobs.tokens
    equal(len(set(tokens)), 1, f"the number of different tokens in {tokens}")
    t.refused(lambda: t.complete(logit_bias={"28": 101}))
    t.refused(lambda: t.complete(logit_bias={"28": "high"}))


@check("completions.penalties")
def _(t):
    bare = t.complete("a a a a a a a a", max_tokens=24).choices[0].text
    for parameter in ("frequency_penalty", "presence_penalty"):
        expect(t.complete("a a a a a a a a", max_tokens=24, **{parameter: 2}).choices[0].text != bare, f"{parameter} changes nothing")
        t.refused(lambda: t.complete(**{parameter: 2.5}), param=parameter)


@check("completions.top_p")
def _(t):
    equal(t.complete(temperature=1, top_p=1e-6, seed=5).choices[0].text, t.complete().choices[0].text, "the text of the smallest top_p")


@check("completions.suffix_works_or_is_refused")
def _(t):
    works_or_is_refused(lambda: t.complete(suffix=" and that is all."), "suffix")


# Chat

@check("chat.plain")
def _(t):
    answer = t.chat(user="somebody", store=False, metadata={"a": "b"}, service_tier="auto", safety_identifier="s", prompt_cache_key="k")
    equal(answer.object, "chat.completion", "object")
    message = answer.choices[0].message
    equal((message.role, message.refusal, message.tool_calls), ("assistant", None, None), "role, refusal and tool_calls")
    expect(message.content, "no content")
    usage_adds_up(answer.usage)
    expect(answer.usage.prompt_tokens_details.cached_tokens is not None, "no cached_tokens")
    expect(answer.system_fingerprint, "no system_fingerprint")


@check("chat.fields_that_must_be_there")
def _(t):
    raw = json.loads(t.client.chat.completions.with_raw_response.create(model=t.name, messages=CHAT, max_tokens=2).content)
    for name, holder in (("refusal", raw["choices"][0]["message"]), ("logprobs", raw["choices"][0])):
        expect(name in holder, f"{name} is left out of {holder}")


@check("chat.roles_and_parts")
def _(t):
    t.chat([{"role": "developer", "content": "Answer briefly."}, {"role": "user", "name": "ann", "content": [
        {"type": "text", "text": "Hello."}, {"type": "text", "text": "Who are you?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A model."}]}, {"role": "user", "content": "Good."}])
    t.chat([{"role": "system", "content": "Answer briefly."}, *CHAT])


@check("chat.stream")
def _(t):
    chunks = list(t.chat(stream=True))
    equal(chunks[0].choices[0].delta.role, "assistant", "the first role")
    equal("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices), t.chat().choices[0].message.content, "the joined text")
    one_of(chunks[-1].choices[0].finish_reason, ("length", "stop"), "the last finish_reason")
    equal((len({chunk.id for chunk in chunks}), {chunk.object for chunk in chunks}), (1, {"chat.completion.chunk"}), "ids and objects")


@check("chat.stream.usage")
def _(t):
    *chunks, last = t.chat(stream=True, stream_options={"include_usage": True})
    equal(last.choices, [], "the choices of the last chunk")
    usage_adds_up(last.usage)
    expect(all(chunk.usage is None for chunk in chunks), "another chunk has usage")


@check("chat.stream_options_without_stream")
def _(t):
    t.refused(lambda: t.chat(stream_options={"include_usage": True}), param="stream_options")


@check("chat.n")
def _(t):
    choices = t.chat(n=3, temperature=1, seed=2).choices
    equal([choice.index for choice in choices], [0, 1, 2], "the indices")
    expect(len({choice.message.content for choice in choices}) > 1, "all choices are the same")


@check("chat.stream.n")
def _(t):
    texts, ends = {}, {}
    for chunk in t.chat(n=2, temperature=1, seed=2, stream=True):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
            ends[choice.index] = choice.finish_reason or ends.get(choice.index)
    plain = {choice.index: choice.message.content for choice in t.chat(n=2, temperature=1, seed=2).choices}
    equal(texts, plain, "the texts")
    expect(all(ends.values()), f"the finish reasons are {ends}")


@check("chat.logprobs")
def _(t):
    answer = t.chat(logprobs=True, top_logprobs=5)
    content = answer.choices[0].logprobs.content
    equal(len(content), answer.usage.completion_tokens, "the number of log-probabilities")
    equal({len(token.top_logprobs) for token in content}, {5}, "the numbers of top_logprobs")
    joined = b"".join(bytes(token.bytes) for token in content).decode(errors="replace")
    expect(joined.startswith(answer.choices[0].message.content), f"the bytes are of {joined!r}")
    t.refused(lambda: t.chat(top_logprobs=3), param="top_logprobs")
    t.refused(lambda: t.chat(logprobs=True, top_logprobs=21), param="top_logprobs")


@check("chat.stream.logprobs")
def _(t):
    count = sum(len(chunk.choices[0].logprobs.content) for chunk in t.chat(logprobs=True, stream=True)
                if chunk.choices and chunk.choices[0].logprobs and chunk.choices[0].logprobs.content)
    equal(count, t.chat().usage.completion_tokens, "the number of log-probabilities")


@check("chat.stop")
def _(t):
    content = t.chat(max_completion_tokens=60).choices[0].message.content
    stop = content[len(content) // 2:][:3]
    choice = t.chat(max_completion_tokens=60, stop=[stop]).choices[0]
    equal((choice.finish_reason, stop in choice.message.content), ("stop", False), "finish_reason and whether the stop string is there")


@check("chat.seed")
def _(t):
    texts = [t.chat(temperature=1, seed=seed, max_completion_tokens=24).choices[0].message.content for seed in (7, 7, 8)]
    equal(texts[0], texts[1], "the text of the same seed")
    expect(texts[0] != texts[2], "another seed has the same text")


@check("chat.logit_bias_and_penalties")
def _(t):
    tokens = t.chat(logit_bias={"28": 100}, logprobs=True, max_completion_tokens=4).choices[0].logprobs.content
    equal(len({token.token for token in tokens}), 1, "the number of different tokens")
    t.chat(frequency_penalty=0.5, presence_penalty=-0.5, top_p=0.9)


@check("chat.max_tokens_names")
def _(t):
    for name in ("max_tokens", "max_completion_tokens"):
        answer = t.client.chat.completions.create(model=t.name, messages=CHAT, **{name: 3})
        equal((answer.usage.completion_tokens, answer.choices[0].finish_reason), (3, "length"), f"what {name}=3 gives")


@check("chat.async")
def _(t):
    async def all_of_them():
        async with openai.AsyncOpenAI(base_url=f"{t.url}/v1", api_key="none", max_retries=0) as client:
            async def one():
                stream = await client.chat.completions.create(model=t.name, messages=CHAT, temperature=0, max_tokens=16, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
            plain = await client.chat.completions.create(model=t.name, messages=CHAT, temperature=0, max_tokens=16)
            return plain.choices[0].message.content, await asyncio.gather(*(one() for _ in range(8)))
    plain, streamed = asyncio.run(all_of_them())
    equal(set(streamed), {plain}, "the texts of eight at once")


@check("chat.stream.left_early")
def _(t):
    stream = t.chat(stream=True, max_completion_tokens=2000, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    settle(t.url, 20)


@check("chat.reasoning_effort_works_or_is_refused")
def _(t):
    works_or_is_refused(lambda: t.chat(reasoning_effort="low"), "reasoning_effort")
    t.chat(reasoning_effort="none")


@check("chat.unsupported_is_refused_by_name")
def _(t):
    t.refused(lambda: t.chat(modalities=["audio"]), param="modalities")
    t.refused(lambda: t.chat(audio={"voice": "alloy", "format": "wav"}), param="audio")
    t.refused(lambda: t.chat(web_search_options={}), param="web_search_options")
    # A guess at the answer changes how long it takes and not what it is: it may be left unused.
    works_or_is_refused(lambda: t.chat(prediction={"type": "content", "content": "a"}), "prediction")
    works_or_is_refused(lambda: t.chat(verbosity="low"), "verbosity")


@check("chat.images_are_refused_by_place")
def _(t):
    error = t.refused(lambda: t.chat([{"role": "user", "content": [
        {"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]}]))
    expect((error.param or "").startswith("messages"), f"param is {error.param!r}")


@check("chat.unknown_fields_are_accepted")
def _(t):
    t.chat(extra_body={"a_field_of_tomorrow": {"deep": [1]}}, extra_headers={"X-Mine": "1"}, extra_query={"q": "1"})


# Structured outputs

@check("structured.json_object")
def _(t):
    answer = t.chat([{"role": "user", "content": "A JSON object with a name, please."}], response_format={"type": "json_object"}, max_completion_tokens=400)
    if answer.choices[0].finish_reason == "stop":
        expect(isinstance(json.loads(answer.choices[0].message.content), dict), "it is no object")


@check("structured.text")
def _(t):
    t.chat(response_format={"type": "text"})


@check("structured.json_schema")
def _(t):
    value = json.loads(t.chat(response_format=CITY_FORM, max_completion_tokens=80).choices[0].message.content)
    equal((set(value), type(value["name"]), type(value["size"])), ({"name", "size"}, str, int), "the form")


@check("structured.json_schema.streamed")
def _(t):
    chunks = t.chat(response_format=CITY_FORM, max_completion_tokens=80, stream=True)
    json.loads("".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices))


@check("structured.bad_schema_is_refused")
def _(t):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "no-such-type"}}}
    error = t.refused(lambda: t.chat(response_format=form))
    expect((error.param or "").startswith("response_format"), f"param is {error.param!r}")
    t.refused(lambda: t.chat(response_format={"type": "xml"}))


@check("structured.parse")
def _(t):
    answer = t.client.chat.completions.parse(model=t.name, messages=CHAT, response_format=City, temperature=0, max_completion_tokens=100)
    expect(isinstance(answer.choices[0].message.parsed, City), f"parsed is {answer.choices[0].message.parsed!r}")


@check("structured.parse.cut_off")
def _(t):
    raises(openai.LengthFinishReasonError, lambda: t.client.chat.completions.parse(
        model=t.name, messages=CHAT, response_format=City, max_completion_tokens=3))


@check("structured.stream_helper")
def _(t):
    with t.client.chat.completions.stream(model=t.name, messages=CHAT, response_format=City, temperature=0, max_completion_tokens=100) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    expect({"chunk", "content.delta", "content.done"} <= kinds, f"the events are {kinds}")
    expect(isinstance(final.choices[0].message.parsed, City), "the final message is not parsed")


@check("chat.stream_helper")
def _(t):
    # The helper takes an answer that is cut off for an error.
    with t.client.chat.completions.stream(model=t.name, messages=CHAT, temperature=0, max_completion_tokens=400, stop=[":"], logprobs=True,
                                          stream_options={"include_usage": True}) as stream:
        text = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    equal(text, final.choices[0].message.content, "the joined text")
    usage_adds_up(final.usage)


# Tools

def call_of(message):
    """The only call of a message: its name and its arguments."""
    expect(message.tool_calls, f"no tool_calls, but {message.content!r}")
    equal(len(message.tool_calls), 1, "the number of calls")
    call = message.tool_calls[0]
    expect(call.type == "function" and call.id, f"type or id is missing: {call}")
    return call.function.name, json.loads(call.function.arguments)


def is_weather(arguments):
    equal(set(arguments), {"city", "unit"}, "the arguments")
    one_of(arguments["unit"], ("celsius", "fahrenheit"), "unit")


@check("tools.auto")
def _(t):
    choice = t.chat(ASK, tools=[WEATHER, CLOCK], max_completion_tokens=120).choices[0]
    equal(choice.finish_reason == "tool_calls", bool(choice.message.tool_calls), "whether finish_reason is tool_calls, by tool_calls")
    for call in choice.message.tool_calls or []:
        one_of(call.function.name, ("get_weather", "get_time"), "name")
        json.loads(call.function.arguments)
    return f"the model {'calls' if choice.message.tool_calls else 'answers in words'}"


@check("tools.required")
def _(t):
    choice = t.chat(ASK, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_completion_tokens=200).choices[0]
    one_of(choice.finish_reason, ("tool_calls", "stop"), "finish_reason")
    name, arguments = call_of(choice.message)
    equal(name, "get_weather", "name")
    is_weather(arguments)


@check("tools.named")
def _(t):
    for tool in ("get_time", "get_weather"):
        choice = t.chat(ASK, tools=[WEATHER, CLOCK], tool_choice={"type": "function", "function": {"name": tool}}, max_completion_tokens=200).choices[0]
        name, arguments = call_of(choice.message)
        equal(name, tool, "name")
        expect("city" in arguments, f"the arguments are {arguments}")


@check("tools.none")
def _(t):
    message = t.chat(ASK, tools=[WEATHER], tool_choice="none").choices[0].message
    expect(not message.tool_calls and message.content, f"the message is {message}")


@check("tools.allowed_tools")
def _(t):
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "get_time"}}]}}
    answer = t.chat(ASK, tools=[WEATHER, CLOCK], tool_choice=choice, parallel_tool_calls=False, max_completion_tokens=200)
    equal(call_of(answer.choices[0].message)[0], "get_time", "name")


@check("tools.parallel_is_accepted")
def _(t):
    calls = t.chat(ASK, tools=[WEATHER, CLOCK], tool_choice="required", parallel_tool_calls=True, max_completion_tokens=300).choices[0].message.tool_calls
    expect(calls, "no calls")
    equal(len({call.id for call in calls}), len(calls), "the number of different ids")
    return f"{len(calls)} calls"


@check("tools.stream")
def _(t):
    parameters = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False, "max_completion_tokens": 200}
    names, ids, text, end = [], [], "", None
    for chunk in t.chat(ASK, stream=True, **parameters):
        for choice in chunk.choices:
            end = choice.finish_reason or end
            for call in choice.delta.tool_calls or []:
                equal(call.index, 0, "index")
                names += [call.function.name] if call.function.name else []
                ids += [call.id] if call.id else []
                text += call.function.arguments or ""
    equal((names, len(ids)), (["get_weather"], 1), "the names and the number of ids")
    is_weather(json.loads(text))
    one_of(end, ("tool_calls", "stop"), "finish_reason")
    equal(json.loads(text), call_of(t.chat(ASK, **parameters).choices[0].message)[1], "the arguments")


@check("tools.stream_helper")
def _(t):
    with t.client.chat.completions.stream(model=t.name, messages=ASK, tools=[openai.pydantic_function_tool(GetWeather)],
                                          tool_choice="required", parallel_tool_calls=False, temperature=0, max_completion_tokens=200) as stream:
        events = list(stream)
        message = stream.get_final_completion().choices[0].message
    done = [event for event in events if event.type == "tool_calls.function.arguments.done"]
    equal(len(done), 1, "the number of arguments.done events")
    expect(isinstance(message.tool_calls[0].function.parsed_arguments, GetWeather), f"the call is {message.tool_calls[0]}")


@check("tools.parse")
def _(t):
    answer = t.client.chat.completions.parse(model=t.name, messages=ASK, tools=[openai.pydantic_function_tool(GetWeather)],
                                             tool_choice="required", parallel_tool_calls=False, temperature=0, max_completion_tokens=200)
    expect(isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, GetWeather), "the arguments are not parsed")


@check("tools.round_trip")
def _(t):
    message = t.chat(ASK, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_completion_tokens=200).choices[0].message
    call_of(message)
    answer = t.chat([*ASK, message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "19 degrees, sunny"}],
                    tools=[WEATHER], max_completion_tokens=40)
    expect(answer.choices[0].message.content or answer.choices[0].message.tool_calls, "no answer")


@check("tools.n")
def _(t):
    choices = t.chat(ASK, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, n=2, temperature=1, seed=1, max_completion_tokens=200).choices
    for choice in choices:
        if choice.finish_reason != "length":
            is_weather(call_of(choice.message)[1])
    equal(len(choices), 2, "the number of choices")


@check("tools.without_parameters")
def _(t):
    tool = {"type": "function", "function": {"name": "ping"}}
    equal(call_of(t.chat(ASK, tools=[tool], tool_choice="required", parallel_tool_calls=False, max_completion_tokens=60).choices[0].message), ("ping", {}), "the call")


@check("tools.errors")
def _(t):
    named = {"type": "function", "function": {"name": "no_such_tool"}}
    for parameters in ({"tools": [WEATHER], "tool_choice": named}, {"tools": [WEATHER], "tool_choice": "perhaps"},
                       {"tool_choice": "required"}, {"tools": [], "tool_choice": named}):
        error = t.refused(lambda: t.chat(ASK, **parameters))
        expect((error.param or "").startswith("tool"), f"param is {error.param!r} for {parameters}")
    for tools in ([{"type": "function"}], [{"type": "function", "function": {"name": ""}}], [{"type": "retrieval"}], "no",
                  [{"type": "function", "function": {"name": "f", "parameters": {"type": "no-such-type"}}}]):
        error = t.refused(lambda: t.chat(ASK, tools=tools, tool_choice="required"))
        expect((error.param or "").startswith("tools"), f"param is {error.param!r} for {tools}")


@check("tools.orphaned_result_is_no_5xx")
def _(t):
    try:
        t.chat([*ASK, {"role": "tool", "tool_call_id": "nobody", "content": "19"}], tools=[WEATHER])
    except openai.BadRequestError as error:
        expect((error.param or "").startswith("messages"), f"param is {error.param!r}")


@check("tools.legacy_functions_work_or_are_refused")
def _(t):
    works_or_is_refused(lambda: t.chat(ASK, functions=[WEATHER["function"]], function_call={"name": "get_weather"}, max_completion_tokens=120), "functions")


# Embeddings

def length(vector):
    return math.sqrt(sum(value * value for value in vector))


@check("embeddings.default_is_base64")
def _(t):
    answer = t.client.embeddings.create(model=t.name, input="A sentence.")
    equal((answer.object, answer.data[0].object, answer.data[0].index), ("list", "embedding", 0), "object, object and index")
    expect(math.isclose(length(answer.data[0].embedding), 1, abs_tol=1e-3), f"the length is {length(answer.data[0].embedding)}")
    expect(answer.usage.prompt_tokens > 0 and answer.usage.total_tokens == answer.usage.prompt_tokens, f"usage is {answer.usage}")
    return f"{len(answer.data[0].embedding)} elements"


@check("embeddings.float_is_the_same")
def _(t):
    one = t.client.embeddings.create(model=t.name, input="A sentence.").data[0].embedding
    two = t.client.embeddings.create(model=t.name, input="A sentence.", encoding_format="float").data[0].embedding
    expect(len(one) == len(two) and all(abs(a - b) < 1e-6 for a, b in zip(one, two)), "the two differ")


@check("embeddings.batch")
def _(t):
    texts = ["A cat sat.", "A dog sat.", "Prices rose by two per cent."]
    answer = t.client.embeddings.create(model=t.name, input=texts)
    equal([item.index for item in answer.data], [0, 1, 2], "the indices")
    for text, item in zip(texts, answer.data):
        alone = t.client.embeddings.create(model=t.name, input=text).data[0].embedding
        expect(all(abs(a - b) < 1e-5 for a, b in zip(alone, item.embedding)), f"{text!r} differs in a batch")


@check("embeddings.token_ids")
def _(t):
    answer = t.client.embeddings.create(model=t.name, input=[[504, 3575], [504, 3575, 282]])
    equal((len(answer.data), answer.usage.prompt_tokens >= 5), (2, True), "the number of vectors and whether tokens are counted")
    t.client.embeddings.create(model=t.name, input=[504, 3575])


@check("embeddings.dimensions")
def _(t):
    vector = t.client.embeddings.create(model=t.name, input="A sentence.", dimensions=32).data[0].embedding
    equal(len(vector), 32, "the number of elements")
    expect(math.isclose(length(vector), 1, abs_tol=1e-3), f"the length is {length(vector)}")


@check("embeddings.errors")
def _(t):
    create = t.client.embeddings.create
    for parameters, param in (({"input": []}, "input"), ({"input": ""}, "input"), ({"input": "a", "dimensions": 0}, "dimensions"),
                              ({"input": "a", "dimensions": 10 ** 6}, "dimensions"), ({"input": [[-1]]}, "input"),
                              ({"input": "a", "encoding_format": "int3"}, "encoding_format")):
        error = raises(openai.BadRequestError, lambda: create(model=t.name, **parameters))
        expect((error.param or "").startswith(param), f"param is {error.param!r} for {parameters}")
    raises(openai.NotFoundError, lambda: create(model="no-such-model", input="a"), code="model_not_found")


@check("embeddings.thirty_two_at_once")
def _(t):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        one = lambda _: t.client.embeddings.create(model=t.name, input="The same sentence.", encoding_format="float").data[0].embedding
        equal(len({tuple(vector) for vector in pool.map(one, range(32))}), 1, "the number of different vectors")


# Responses

def respond(t, question="Name three colours.", **parameters):
    return t.client.responses.create(model=t.name, input=question, **{"max_output_tokens": 24, "temperature": 0, **parameters})


@check("responses.plain")
def _(t):
    answer = respond(t, instructions="Answer briefly.")
    equal((answer.object, answer.output[-1].type, answer.output[-1].role), ("response", "message", "assistant"), "object, type and role")
    one_of(answer.status, ("completed", "incomplete"), "status")
    expect(answer.output_text, "no output_text")
    equal(answer.usage.input_tokens + answer.usage.output_tokens, answer.usage.total_tokens, "total_tokens")


@check("responses.messages")
def _(t):
    expect(respond(t, [{"role": "user", "content": [{"type": "input_text", "text": "Hello."}]}, {"role": "assistant", "content": "Hello!"},
                       {"role": "user", "content": "Who are you?"}]).output_text, "no output_text")


@check("responses.stream")
def _(t):
    events = list(respond(t, stream=True))
    kinds = [event.type for event in events]
    equal(kinds[0], "response.created", "the first event")
    one_of(kinds[-1], ("response.completed", "response.incomplete"), "the last event")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    equal(text, respond(t).output_text, "the joined text")
    equal([event.sequence_number for event in events], list(range(len(events))), "the sequence numbers")


@check("responses.stream_helper")
def _(t):
    with t.client.responses.stream(model=t.name, input="Name a city.", text_format=City, temperature=0, max_output_tokens=100) as stream:
        for _ in stream:
            pass
        expect(isinstance(stream.get_final_response().output_parsed, City), "the final response is not parsed")


@check("responses.parse")
def _(t):
    answer = t.client.responses.parse(model=t.name, input="Name a city.", text_format=City, temperature=0, max_output_tokens=100)
    expect(isinstance(answer.output_parsed, City), f"output_parsed is {answer.output_parsed!r}")


@check("responses.tools")
def _(t):
    tool = {"type": "function", **WEATHER["function"]}
    answer = respond(t, ASK[0]["content"], tools=[tool], tool_choice="required", parallel_tool_calls=False, max_output_tokens=200)
    calls = [item for item in answer.output if item.type == "function_call"]
    equal([call.name for call in calls], ["get_weather"], "the calls")
    is_weather(json.loads(calls[0].arguments))
    respond(t, [{"role": "user", "content": "Weather?"}, calls[0].model_dump(exclude_none=True),
                {"type": "function_call_output", "call_id": calls[0].call_id, "output": "19 degrees"}], tools=[tool])


@check("responses.errors")
def _(t):
    for parameters, param in (({"temperature": 9}, "temperature"), ({"max_output_tokens": 0}, "max_output_tokens")):
        equal(raises(openai.BadRequestError, lambda: respond(t, **parameters)).param, param, "param")
    raises(openai.NotFoundError, lambda: t.client.responses.create(model="no-such-model", input="a"))


# Errors

@check("errors.bad_values_are_named")
def _(t):
    for parameters in ({"temperature": 3}, {"temperature": "warm"}, {"top_p": 1.5}, {"n": 0}, {"n": 10 ** 9}, {"max_completion_tokens": -1},
                       {"seed": "x"}, {"stream": "yes"}, {"stop": ["a"] * 1000}, {"logprobs": "no"}, {"presence_penalty": -3},
                       {"response_format": "json"}, {"logit_bias": [1]}):
        error = t.refused(lambda: t.chat(extra_body=parameters))
        name = next(iter(parameters))
        expect(error.param and error.param.startswith(name), f"param is {error.param!r} for {parameters}")
        expect(error.type == "invalid_request_error" and isinstance(error.code, str), f"type {error.type!r}, code {error.code!r}")


@check("errors.messages_are_named")
def _(t):
    for messages in ([], [{}], [{"role": "user"}], [{"role": "nobody", "content": "a"}], [{"role": "user", "content": 3}], "text",
                     [{"role": "user", "content": [{"type": "text"}]}]):
        error = t.refused(lambda: t.client.chat.completions.create(model=t.name, messages=CHAT, extra_body={"messages": messages}))
        expect((error.param or "").startswith("messages"), f"param is {error.param!r} for {messages}")


@check("errors.missing_fields")
def _(t):
    for path, param in (("/chat/completions", "messages"), ("/completions", "prompt")):
        t.refused(lambda: t.client.post(path, body={"model": t.name}, cast_to=object), param=param)


@check("errors.unknown_model")
def _(t):
    create = t.client.chat.completions.create
    raises(openai.NotFoundError, lambda: create(model="no-such-model", messages=CHAT), code="model_not_found", param="model")


@check("errors.too_long_a_prompt")
def _(t):
    raises(openai.BadRequestError, lambda: t.complete("word " * 60000), code="context_length_exceeded", param="prompt")


@check("errors.unknown_path")
def _(t):
    raises(openai.NotFoundError, lambda: t.client.get("/no/such/path", cast_to=object))
    for call in (lambda: t.client.images.generate(prompt="a"), lambda: t.client.moderations.create(input="a"), lambda: t.client.files.list()):
        error = raises(openai.APIStatusError, call)
        expect(400 <= error.status_code < 500, f"status {error.status_code}")


@check("errors.wrong_key")
def _(t):
    url = other_server(t.args, "keyed")
    for key in ("wrong", "", os.environ.get("CLIENTS_KEY", "") + "x"):
        error = raises(openai.AuthenticationError, lambda: t.at(url, key or "x").models.list())
        expect("CLIENTS" not in error.message and os.environ.get("CLIENTS_KEY", "-") not in error.message, "the message tells the key")
    equal(t.at(url, os.environ["CLIENTS_KEY"]).models.list().data[0].object, "model", "with the right key: object")


@check("errors.full_queue_is_a_rate_limit")
def _(t):
    client = t.at(other_server(t.args, "busy"))
    ask = lambda client: client.completions.create(model=t.name, prompt="Once", max_tokens=300, extra_body={"ignore_eos": True})
    stop = threading.Event()

    def occupy():
        while not stop.is_set():
            try:
                ask(client)
            except openai.RateLimitError:
                stop.wait(0.01)

    threads = [threading.Thread(target=occupy, daemon=True) for _ in range(4)]
    try:
        for thread in threads:
            thread.start()
        for _ in range(50):
            try:
                ask(client)
            except openai.RateLimitError as error:
                expect(error.response.headers.get("retry-after"), "no Retry-After")
                break
        else:
            expect(False, "five clients had room in one place and a queue of one")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    # The client's own patience gets through.
    patient = client.with_options(max_retries=10)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        answers = list(pool.map(lambda _: patient.completions.create(model=t.name, prompt="Once", max_tokens=20), range(3)))
    equal(len(answers), 3, "the number of answers")


@check("errors.timeout")
def _(t):
    raises(openai.APITimeoutError, lambda: t.client.with_options(timeout=0.05).completions.create(
        model=t.name, prompt="Once", max_tokens=1000, extra_body={"ignore_eos": True}))
    settle(t.url, 20)


@check("errors.no_server")
def _(t):
    raises(openai.APIConnectionError, lambda: t.at("http://127.0.0.1:1").models.list())


# Headers and raw answers

@check("headers.request_id")
def _(t):
    answer = t.chat()
    expect(answer._request_id, "no x-request-id")
    raw = t.client.chat.completions.with_raw_response.create(model=t.name, messages=CHAT, max_tokens=2, extra_headers={"x-request-id": "mine-1"})
    equal(raw.headers.get("x-request-id"), "mine-1", "the x-request-id that was sent")
    error = raises(openai.BadRequestError, lambda: t.chat(n=0))
    expect(error.request_id, "an error has no x-request-id")


@check("headers.content_types")
def _(t):
    create = t.client.chat.completions.with_raw_response.create
    expect(create(model=t.name, messages=CHAT, max_tokens=2).headers["content-type"].startswith("application/json"), "a plain answer is no application/json")
    expect(create(model=t.name, messages=CHAT, max_tokens=2, stream=True).headers["content-type"].startswith("text/event-stream"), "a stream is no text/event-stream")


@check("headers.streaming_response")
def _(t):
    with t.client.chat.completions.with_streaming_response.create(model=t.name, messages=CHAT, max_tokens=4, stream=True) as response:
        lines = [line for line in response.iter_lines() if line]
    equal(lines[-1], "data: [DONE]", "the last line")


if __name__ == "__main__":
    main(__doc__, Context)
