#!/usr/bin/env python3
"""Anthropic's Python client: messages, streams, tools, counting tokens, errors.

    run.py anthropic_python       (needs requirements/anthropic.txt)

Servers: the main one, and `keyed`, which has the API key of CLIENTS_KEY.
"""
import json
import os

import anthropic

from checks import PATIENCE, check, equal, expect, main, one_of, other_server, raises, request, settle

ASK = [{"role": "user", "content": "Name three colours."}]
WEATHER = {"name": "get_weather", "description": "The weather of a city now", "input_schema": {
    "type": "object", "additionalProperties": False, "required": ["city", "unit"], "properties": {
        "city": {"type": "string", "maxLength": 20}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}}}}
QUESTION = [{"role": "user", "content": "What is the weather in Paris, in celsius?"}]


class Context:
    """The clients of one server."""

    def __init__(self, args):
        self.args, self.url = args, args.base_url
        self.client = self.at(self.url)
        self.name = json.loads(request(self.url, "GET", "/v1/models")[2])["data"][0]["id"]

    @staticmethod
    def at(url, key="none"):
        return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=60 * PATIENCE)

    def create(self, messages=None, **parameters):
        # The client no longer has parameters of sampling; servers do.
        sampling = {name: parameters.pop(name) for name in ("temperature", "top_k", "top_p") if name in parameters}
        extra = {"temperature": 0, **sampling, **parameters.pop("extra_body", {})}
        return self.client.messages.create(model=self.name, messages=messages or ASK, **{"max_tokens": 16, **parameters}, extra_body=extra)


@check("messages.plain")
def _(t):
    answer = t.create()
    equal((answer.type, answer.role, answer.content[0].type), ("message", "assistant", "text"), "type, role and the content's type")
    expect(answer.id and answer.model and answer.content[0].text, f"something is missing in {answer}")
    one_of(answer.stop_reason, ("end_turn", "max_tokens"), "stop_reason")
    expect(answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0, f"usage is {answer.usage}")


@check("messages.max_tokens")
def _(t):
    answer = t.create(max_tokens=3)
    equal((answer.stop_reason, answer.usage.output_tokens), ("max_tokens", 3), "stop_reason and output_tokens")


@check("messages.system_and_blocks")
def _(t):
    t.create(system="Answer briefly.")
    t.create(system=[{"type": "text", "text": "Answer briefly.", "cache_control": {"type": "ephemeral"}}], messages=[
        {"role": "user", "content": [{"type": "text", "text": "Hello."}]}, {"role": "assistant", "content": "Hello!"},
        {"role": "user", "content": [{"type": "text", "text": "Who"}, {"type": "text", "text": "are you?"}]}])


@check("messages.stop_sequences")
def _(t):
    text = t.create(max_tokens=60).content[0].text
    stop = text[len(text) // 2:][:3]
    answer = t.create(max_tokens=60, stop_sequences=[stop])
    equal((answer.stop_reason, answer.stop_sequence), ("stop_sequence", stop), "stop_reason and stop_sequence")
    expect(stop not in answer.content[0].text, "the text has the stop sequence")


@check("messages.sampling")
def _(t):
    t.create(temperature=0.5, top_k=20, top_p=0.9, metadata={"user_id": "u"}, service_tier="auto")


@check("messages.stream")
def _(t):
    events = list(t.create(stream=True))
    kinds = [event.type for event in events if event.type != "ping"]
    equal(kinds[:2], ["message_start", "content_block_start"], "the first events")
    equal(kinds[-3:], ["content_block_stop", "message_delta", "message_stop"], "the last events")
    text = "".join(event.delta.text for event in events if event.type == "content_block_delta")
    equal(text, t.create().content[0].text, "the joined text")
    last = [event for event in events if event.type == "message_delta"][-1]
    expect(last.delta.stop_reason and last.usage.output_tokens > 0, f"the last delta is {last}")


@check("messages.stream_helper")
def _(t):
    with t.client.messages.stream(model=t.name, messages=ASK, max_tokens=16, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    equal(text, final.content[0].text, "the joined text")
    expect(final.stop_reason, "no stop_reason")


@check("messages.stream.left_early")
def _(t):
    stream = t.create(stream=True, max_tokens=2000)
    next(iter(stream))
    stream.close()
    settle(t.url, 20)


@check("tools.any")
def _(t):
    answer = t.create(QUESTION, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True}, max_tokens=200)
    equal(answer.stop_reason, "tool_use", "stop_reason")
    call = [block for block in answer.content if block.type == "tool_use"][0]
    equal((call.name, set(call.input)), ("get_weather", {"city", "unit"}), "name and input")


@check("tools.named_and_round_trip")
def _(t):
    answer = t.create(QUESTION, tools=[WEATHER], tool_choice={"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}, max_tokens=200)
    call = [block for block in answer.content if block.type == "tool_use"][0]
    answer = t.create([*QUESTION, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in answer.content]},
                       {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "19 degrees"}]}], tools=[WEATHER], max_tokens=40)
    expect(answer.content, "no content")


@check("tools.auto_and_none")
def _(t):
    t.create(QUESTION, tools=[WEATHER], tool_choice={"type": "auto"}, max_tokens=100)
    answer = t.create(QUESTION, tools=[WEATHER], tool_choice={"type": "none"})
    equal({block.type for block in answer.content}, {"text"}, "the types of the blocks")


@check("tools.stream")
def _(t):
    with t.client.messages.stream(model=t.name, messages=QUESTION, tools=[WEATHER], tool_choice={"type": "any", "disable_parallel_tool_use": True},
                                  max_tokens=200, extra_body={"temperature": 0}) as stream:
        partial = "".join(event.delta.partial_json for event in stream
                          if event.type == "content_block_delta" and event.delta.type == "input_json_delta")
        final = stream.get_final_message()
    expect(partial, "no input_json_delta")
    equal(set([block for block in final.content if block.type == "tool_use"][0].input), {"city", "unit"}, "input")


@check("count_tokens")
def _(t):
    count = t.client.messages.count_tokens(model=t.name, messages=ASK).input_tokens
    usage = t.create(max_tokens=1).usage
    equal(count, usage.input_tokens + usage.cache_read_input_tokens, "input_tokens")
    expect(t.client.messages.count_tokens(model=t.name, messages=ASK, system="Be brief.", tools=[WEATHER]).input_tokens > count, "system and tools are not counted")


@check("errors.shape")
def _(t):
    error = raises(anthropic.BadRequestError, lambda: t.create(temperature=9))
    equal((error.body["type"], error.body["error"]["type"]), ("error", "invalid_request_error"), "the types in the body")
    expect("temperature" in error.body["error"]["message"], f"the message is {error.body['error']['message']!r}")
    expect(error.request_id, "no request-id")


@check("errors.classes")
def _(t):
    raises(anthropic.NotFoundError, lambda: t.client.messages.create(model="no-such-model", messages=ASK, max_tokens=4))
    for parameters in ({"max_tokens": 0}, {"messages": []}, {"messages": [{"role": "nobody", "content": "a"}]}, {"stop_sequences": [3]},
                       {"tool_choice": {"type": "any"}}, {"thinking": {"type": "sometimes"}}):
        raises(anthropic.BadRequestError, lambda: t.create(extra_body=parameters))


@check("errors.missing_max_tokens")
def _(t):
    raises(anthropic.BadRequestError, lambda: t.client.post("/v1/messages", body={"model": t.name, "messages": ASK}, cast_to=object))


@check("errors.wrong_key")
def _(t):
    url = other_server(t.args, "keyed")
    create = lambda key: t.at(url, key).messages.create(model=t.name, messages=ASK, max_tokens=4)
    error = raises(anthropic.AuthenticationError, lambda: create("wrong"))
    equal(error.body["error"]["type"], "authentication_error", "the type in the body")
    expect(create(os.environ["CLIENTS_KEY"]).content, "no content with the right key")


if __name__ == "__main__":
    main(__doc__, Context)
