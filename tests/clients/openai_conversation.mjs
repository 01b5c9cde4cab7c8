// The unchanged npm package `openai` holds a conversation; what its accumulators end with is printed as JSON.
// Arguments: the directory of node_modules, the address of the server, the key, the part to play.

import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const [modules, baseURL, apiKey, part] = process.argv.slice(2);
const require = createRequire(pathToFileURL(join(modules, 'x.js')));
const { default: OpenAI } = await import(pathToFileURL(require.resolve('openai')).href);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const pick = {
  name: 'pick',
  description: 'Have the person pick one.',
  parameters: { type: 'object', properties: { of: { type: 'array', items: { type: 'string' } } } },
};

const parts = {
  async conversation() {
    const first = client.responses.stream({ model: 'ada', input: 'Add, and pay bob.' });
    const asked = await first.finalResponse();
    const request = asked.output.find((item) => item.type === 'mcp_approval_request');
    const second = client.responses.stream({
      model: 'ada',
      previous_response_id: asked.id,
      input: [{ type: 'mcp_approval_response', approval_request_id: request.id, approve: true }],
    });
    const paid = await second.finalResponse();
    return { asked: shape(asked), paid: shape(paid), text: paid.output_text };
  },

  async reset() {
    const deltas = [];
    const stream = client.responses.stream({ model: 'ada', input: 'hello' });
    stream.on('response.output_text.delta', (event) => deltas.push(event.delta));
    const response = await stream.finalResponse();
    return { text: response.output_text, deltas };
  },

  async chat() {
    const stream = client.chat.completions.stream({ model: 'ada', messages: [{ role: 'user', content: 'hello' }] });
    return { text: (await stream.finalChatCompletion()).choices[0].message.content };
  },

  async chat_reset() {
    const stream = client.chat.completions.stream({ model: 'ada', messages: [{ role: 'user', content: 'hello' }] });
    try {
      return { text: (await stream.finalChatCompletion()).choices[0].message.content };
    } catch (error) {
      return { code: error.code, message: error.message };
    }
  },

  async models() {
    const names = [];
    for await (const model of client.models.list()) names.push(model.id);
    return { names };
  },

  async functions_chat() {
    const tools = [{ type: 'function', function: pick }];
    const messages = [{ role: 'user', content: 'choose' }];
    const asking = client.chat.completions.stream({ model: 'ada', messages, tools });
    const asked = (await asking.finalChatCompletion()).choices[0];
    messages.push(asked.message);
    for (const call of asked.message.tool_calls) {
      messages.push({ role: 'tool', tool_call_id: call.id, content: 'red' });
    }
    const answering = client.chat.completions.stream({ model: 'ada', messages, tools });
    const answered = (await answering.finalChatCompletion()).choices[0];
    const calls = asked.message.tool_calls.map((call) => [call.function.name, call.function.arguments]);
    return { reason: asked.finish_reason, calls, text: answered.message.content };
  },

  async functions() {
    const tools = [{ type: 'function', ...pick, strict: false }];
    const asked = await client.responses.stream({ model: 'ada', input: 'choose', tools }).finalResponse();
    const outputs = asked.output
      .filter((item) => item.type === 'function_call')
      .map((item) => ({ type: 'function_call_output', call_id: item.call_id, output: 'red' }));
    const answered = await client.responses
      .stream({ model: 'ada', previous_response_id: asked.id, input: outputs, tools })
      .finalResponse();
    return { asked: shape(asked), answered: shape(answered), text: answered.output_text };
  },

  async unknown() {
    try {
      return await client.responses.create({ model: 'nobody', input: 'hello' });
    } catch (error) {
      return { kind: error.constructor.name, status: error.status, code: error.code, request: !!error.requestID };
    }
  },
};

const shape = (response) => response.output.map((item) => [item.type, item.status ?? null]);
console.log(JSON.stringify(await parts[part]()));
