// OpenAI's JavaScript client: models, completions, chat, streams, tools, structured outputs, embeddings, errors.
//
//     run.py openai_node       (needs node and package.json)
//
// Servers: the main one, and `keyed`, which has the API key of CLIENTS_KEY.

import OpenAI from 'openai';
import { zodResponseFormat } from 'openai/helpers/zod';
import { z } from 'zod';
import { PATIENCE, check, equal, expect, main, otherServer, rejects } from './checks.mjs';

const CHAT = [{ role: 'user', content: 'Name three colours.' }];
const ASK = [{ role: 'user', content: 'What is the weather in Paris, in celsius?' }];
const WEATHER = {
  type: 'function',
  function: {
    name: 'get_weather',
    description: 'The weather of a city now',
    strict: true,
    parameters: {
      type: 'object',
      additionalProperties: false,
      required: ['city', 'unit'],
      properties: { city: { type: 'string', maxLength: 20 }, unit: { type: 'string', enum: ['celsius', 'fahrenheit'] } },
    },
  },
};
const City = z.object({ name: z.string().max(12), is_capital: z.boolean(), climate: z.enum(['warm', 'cold']) });

const at = (url, apiKey = 'none', settings = {}) => new OpenAI({ baseURL: `${url}/v1`, apiKey, maxRetries: 0, timeout: 60_000 * PATIENCE, ...settings });

async function prepare(args) {
  const client = at(args['base-url']);
  const model = (await client.models.list()).data[0].id;
  const chat = (parameters = {}, options) =>
    client.chat.completions.create({ model, messages: CHAT, temperature: 0, max_completion_tokens: 16, ...parameters }, options);
  return { args, client, model, chat };
}

check('models', async ({ client, model }) => {
  equal((await client.models.retrieve(model)).id, model, 'id');
  await rejects(OpenAI.NotFoundError, () => client.models.retrieve('no-such-model'));
});

check('completions.plain_and_streamed', async ({ client, model }) => {
  const parameters = { model, prompt: 'The capital of France is', max_tokens: 12, temperature: 0 };
  const plain = await client.completions.create(parameters);
  let text = '';
  for await (const chunk of await client.completions.create({ ...parameters, stream: true })) text += chunk.choices[0].text;
  equal(text, plain.choices[0].text, 'the joined text');
  equal(plain.usage.completion_tokens, 12, 'completion_tokens');
});

check('chat.plain', async ({ chat }) => {
  const answer = await chat();
  equal([answer.object, answer.choices[0].message.role], ['chat.completion', 'assistant'], 'object and role');
  expect(answer.choices[0].message.content, 'no content');
  expect(answer._request_id, 'no x-request-id');
});

check('chat.stream', async ({ chat }) => {
  let text = '';
  let usage;
  for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
    text += chunk.choices[0]?.delta?.content ?? '';
    usage = chunk.usage ?? usage;
  }
  equal(text, (await chat()).choices[0].message.content, 'the joined text');
  equal(usage?.prompt_tokens + usage?.completion_tokens, usage?.total_tokens, 'total_tokens');
});

check('chat.stream_helper', async ({ client, model }) => {
  const stream = client.chat.completions.stream({ model, messages: CHAT, temperature: 0, max_completion_tokens: 400, stop: [':'] });
  let text = '';
  stream.on('content', (delta) => (text += delta));
  equal(text || (await stream.finalContent()), await stream.finalContent(), 'the joined text');
  equal(text, await stream.finalContent(), 'what the events said');
  expect((await stream.finalChatCompletion()).choices[0].finish_reason, 'no finish_reason');
});

check('chat.n_logprobs_seed', async ({ chat }) => {
  const answer = await chat({ n: 2, temperature: 1, seed: 4, logprobs: true, top_logprobs: 2 });
  equal(answer.choices.map((choice) => choice.index), [0, 1], 'the indices');
  equal(answer.choices[0].logprobs.content[0].top_logprobs.length, 2, 'top_logprobs');
  const again = await chat({ n: 2, temperature: 1, seed: 4 });
  equal(again.choices.map((choice) => choice.message.content), answer.choices.map((choice) => choice.message.content), 'the texts of the same seed');
});

check('chat.abort', async ({ client, model, args }) => {
  const stream = await client.chat.completions.create({ model, messages: CHAT, max_tokens: 2000, stream: true, ignore_eos: true });
  for await (const _ of stream) break;
  stream.controller.abort();
  for (let attempt = 0; attempt < 100 * PATIENCE; attempt++) {
    const text = await (await fetch(`${args['base-url']}/metrics`)).text();
    if (/vllm:num_requests_running\{[^}]*\} 0(\.0)?$/m.test(text)) return;
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  expect(false, 'the request still runs');
});

check('structured.json_schema', async ({ chat }) => {
  const schema = { type: 'object', additionalProperties: false, required: ['size'], properties: { size: { type: 'integer', minimum: 0, maximum: 999 } } };
  const answer = await chat({ response_format: { type: 'json_schema', json_schema: { name: 'n', strict: true, schema } }, max_completion_tokens: 60 });
  expect(Number.isInteger(JSON.parse(answer.choices[0].message.content).size), 'size is no integer');
});

check('structured.parse', async ({ client, model }) => {
  const answer = await client.chat.completions.parse({
    model, messages: CHAT, temperature: 0, max_completion_tokens: 100, response_format: zodResponseFormat(City, 'city'),
  });
  City.parse(answer.choices[0].message.parsed);
});

check('tools.required', async ({ chat }) => {
  const answer = await chat({ messages: ASK, tools: [WEATHER], tool_choice: 'required', parallel_tool_calls: false, max_completion_tokens: 200 });
  const [call] = answer.choices[0].message.tool_calls;
  equal(call.function.name, 'get_weather', 'name');
  equal(Object.keys(JSON.parse(call.function.arguments)).sort(), ['city', 'unit'], 'the arguments');
});

check('tools.streamed', async ({ client, model }) => {
  const stream = client.chat.completions.stream({
    model, messages: ASK, temperature: 0, tools: [WEATHER], tool_choice: { type: 'function', function: { name: 'get_weather' } }, max_completion_tokens: 200,
  });
  const message = await stream.finalMessage();
  equal(message.tool_calls.length, 1, 'the number of calls');
  JSON.parse(message.tool_calls[0].function.arguments);
});

check('tools.run_tools', async ({ client, model }) => {
  // The first answer must be a call; a small model that is left to choose may not make one.
  let asked;
  const runner = client.chat.completions.runTools({
    model, messages: ASK, temperature: 0, max_completion_tokens: 200, tool_choice: 'required', parallel_tool_calls: false,
    tools: [{ type: 'function', function: { ...WEATHER.function, parse: JSON.parse, function: (given) => { asked = given; return '19 degrees'; } } }],
  }, { maxChatCompletions: 2 });
  await runner.done();
  expect(asked && 'city' in asked, `the tool was called with ${JSON.stringify(asked)}`);
});

check('embeddings', async ({ client, model }) => {
  const base64 = await client.embeddings.create({ model, input: ['A sentence.', 'Another one.'] });
  const float = await client.embeddings.create({ model, input: 'A sentence.', encoding_format: 'float' });
  equal(base64.data.length, 2, 'the number of vectors');
  expect(base64.data[0].embedding.every((value, index) => Math.abs(value - float.data[0].embedding[index]) < 1e-5), 'base64 and float differ');
});

check('responses', async ({ client, model }) => {
  const answer = await client.responses.create({ model, input: 'Name three colours.', max_output_tokens: 24, temperature: 0 });
  expect(answer.output_text, 'no output_text');
  let text = '';
  for await (const event of await client.responses.create({ model, input: 'Name three colours.', max_output_tokens: 24, temperature: 0, stream: true })) {
    if (event.type === 'response.output_text.delta') text += event.delta;
  }
  equal(text, answer.output_text, 'the joined text');
});

check('errors.classes', async ({ client, chat }) => {
  const bad = await rejects(OpenAI.BadRequestError, () => chat({ temperature: 9 }));
  equal([bad.param, bad.type], ['temperature', 'invalid_request_error'], 'param and type');
  const none = await rejects(OpenAI.NotFoundError, () => chat({ model: 'no-such-model' }));
  equal(none.code, 'model_not_found', 'code');
  await rejects(OpenAI.NotFoundError, () => client.get('/no/such/path'));
});

check('errors.wrong_key', async ({ args }) => {
  const url = otherServer(args, 'keyed');
  await rejects(OpenAI.AuthenticationError, () => at(url, 'wrong').models.list());
  equal((await at(url, process.env.CLIENTS_KEY).models.list()).object, 'list', 'object');
});

check('errors.timeout', async ({ client, model }) => {
  await rejects(OpenAI.APIConnectionTimeoutError, () =>
    client.completions.create({ model, prompt: 'Once', max_tokens: 1000, ignore_eos: true }, { timeout: 50 }));
});

await main(prepare);
