// The AI SDK (`ai` with `@ai-sdk/openai-compatible`): text, streams, tools, objects, embeddings, errors.
//
//     run.py ai_sdk       (needs node and package.json)

import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { APICallError, embed, embedMany, generateObject, generateText, stepCountIs, streamObject, streamText, tool } from 'ai';
import { z } from 'zod';
import { check, equal, expect, main, rejects } from './checks.mjs';

const PROMPT = 'Name three colours.';
// "required" leaves the number of calls open; a small model goes on calling until the limit cuts its answer off, and then the SDK runs none.
const ONE_CALL = { taper: { parallel_tool_calls: false } };
const City = z.object({ name: z.string().max(12), is_capital: z.boolean(), climate: z.enum(['warm', 'cold']) });

async function prepare(args) {
  const baseURL = `${args['base-url']}/v1`;
  const id = (await (await fetch(`${baseURL}/models`)).json()).data[0].id;
  const provider = createOpenAICompatible({ name: 'taper', baseURL, apiKey: 'none', includeUsage: true, supportsStructuredOutputs: true });
  const settings = { model: provider(id), temperature: 0, maxOutputTokens: 32, maxRetries: 0 };
  return { provider, id, settings };
}

function weather(record) {
  return tool({
    description: 'The weather of a city now',
    inputSchema: z.object({ city: z.string().max(20), unit: z.enum(['celsius', 'fahrenheit']) }),
    execute: async (given) => {
      record.push(given);
      return { degrees: 19, sky: 'clear' };
    },
  });
}

check('generateText', async ({ settings }) => {
  const { text, usage, finishReason } = await generateText({ ...settings, prompt: PROMPT });
  expect(text.length > 0, 'no text');
  expect(usage.inputTokens > 0 && usage.outputTokens > 0, `usage is ${JSON.stringify(usage)}`);
  expect(['stop', 'length'].includes(finishReason), `finishReason is ${finishReason}`);
});

check('streamText', async ({ settings }) => {
  const result = streamText({ ...settings, prompt: PROMPT });
  let text = '';
  for await (const delta of result.textStream) text += delta;
  equal(text, (await generateText({ ...settings, prompt: PROMPT })).text, 'the joined text');
  expect((await result.usage).outputTokens > 0, 'a stream has no usage');
});

check('streamText.eight_at_once', async ({ settings }) => {
  const one = async () => {
    let text = '';
    for await (const delta of streamText({ ...settings, prompt: PROMPT }).textStream) text += delta;
    return text;
  };
  equal(new Set(await Promise.all(Array.from({ length: 8 }, one))).size, 1, 'the number of different texts');
});

check('generateText.messages', async ({ settings }) => {
  const { text } = await generateText({ ...settings, instructions: 'Answer briefly.', messages: [
    { role: 'user', content: [{ type: 'text', text: 'Hello.' }] },
    { role: 'assistant', content: 'Hello!' },
    { role: 'user', content: 'Who are you?' },
  ] });
  expect(text.length > 0, 'no text');
});

check('generateText.tool', async ({ settings }) => {
  const calls = [];
  const { steps } = await generateText({
    ...settings, maxOutputTokens: 200, prompt: 'What is the weather in Paris, in celsius?', tools: { get_weather: weather(calls) }, toolChoice: 'required', providerOptions: ONE_CALL,
  });
  expect(calls.length >= 1 && 'city' in calls[0], `the tool was called with ${JSON.stringify(calls)}`);
  equal(steps[0].toolCalls[0].toolName, 'get_weather', 'toolName');
});

check('generateText.tool_named_and_round_trip', async ({ settings }) => {
  const calls = [];
  const { steps } = await generateText({
    ...settings, maxOutputTokens: 200, prompt: 'What is the weather in Paris, in celsius?', tools: { get_weather: weather(calls) },
    toolChoice: { type: 'tool', toolName: 'get_weather' }, stopWhen: stepCountIs(2),
  });
  equal(steps.length, 2, 'the number of steps');
});

check('streamText.tool', async ({ settings }) => {
  const calls = [];
  const result = streamText({
    ...settings, maxOutputTokens: 200, prompt: 'What is the weather in Paris, in celsius?', tools: { get_weather: weather(calls) }, toolChoice: 'required', providerOptions: ONE_CALL,
  });
  const kinds = [];
  for await (const part of result.fullStream) kinds.push(part.type);
  expect(kinds.includes('tool-call') && kinds.includes('tool-result'), `the parts are ${[...new Set(kinds)]}`);
});

check('generateObject', async ({ settings }) => {
  City.parse((await generateObject({ ...settings, maxOutputTokens: 100, schema: City, prompt: 'Describe a city.' })).object);
});

check('streamObject', async ({ settings }) => {
  const result = streamObject({ ...settings, maxOutputTokens: 100, schema: City, prompt: 'Describe a city.' });
  let partial = 0;
  for await (const _ of result.partialObjectStream) partial += 1;
  City.parse(await result.object);
  expect(partial > 0, 'no partial objects');
});

check('embed', async ({ provider, id }) => {
  const model = provider.embeddingModel(id);
  const { embedding } = await embed({ model, value: 'A sentence.', maxRetries: 0 });
  const { embeddings } = await embedMany({ model, values: ['A sentence.', 'Another one.'], maxRetries: 0 });
  equal([embeddings.length, embeddings[0].length], [2, embedding.length], 'the number of vectors and of elements');
});

check('completionModel', async ({ provider, id }) => {
  const { text } = await generateText({ model: provider.completionModel(id), prompt: 'The capital of France is', temperature: 0, maxOutputTokens: 8, maxRetries: 0 });
  expect(text.length > 0, 'no text');
});

check('errors', async ({ provider, id, settings }) => {
  const error = await rejects(APICallError, () => generateText({ ...settings, model: provider('no-such-model'), prompt: PROMPT }));
  equal([error.statusCode, error.isRetryable], [404, false], 'statusCode and isRetryable');
  expect(error.message.includes('no-such-model'), `the message is ${error.message}`);
  equal((await rejects(APICallError, () => generateText({ ...settings, model: provider(id), temperature: 9, prompt: PROMPT }))).statusCode, 400, 'statusCode');
});

check('abort', async ({ settings }) => {
  const controller = new AbortController();
  const result = streamText({ ...settings, maxOutputTokens: 2000, prompt: PROMPT, abortSignal: controller.signal, onError: () => {} });
  for await (const _ of result.textStream) {
    controller.abort();
    break;
  }
});

await main(prepare);
