// The transport and the reducer of the AI SDK, unchanged, have conversations; the messages they end with are printed.
// Argument: the folder of node_modules. Input: {url, client, chats: [{id, steps: [...]}]}.
// A step: {text} sends a message; {approve: true or false} answers all approvals; {result: value} answers the open calls
// of the tools that the chat brings, also beside an answer; {back: true} reconnects.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const require = createRequire(pathToFileURL(join(process.argv[2], 'x.js')));
const task = JSON.parse(readFileSync(0, 'utf8'));
const {
  DefaultChatTransport,
  readUIMessageStream,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} = await import(pathToFileURL(require.resolve(task.client)).href);
let ids = 0;

function answer(message, chat, step) {
  const names = new Set((chat.tools ?? []).map(({ name }) => name));
  const parts = message.parts.map((part) => {
    if (part.state === 'approval-requested' && step.approve !== undefined) {
      const approval = { ...part.approval, approved: step.approve, reason: step.reason };
      return { ...part, state: 'approval-responded', approval };
    }
    if (part.state === 'input-available' && names.has(part.toolName) && step.result !== undefined) {
      return { ...part, state: 'output-available', output: step.result };
    }
    return part;
  });
  return { ...message, parts };
}

async function run(transport, chat, messages, step) {
  const seen = { chunks: [], statuses: [] };
  let last = messages.at(-1);
  if (step.text !== undefined) {
    messages.push({ id: step.id ?? `${chat.id}-u${++ids}`, role: 'user', parts: [{ type: 'text', text: step.text }] });
    last = undefined;
  } else if (step.approve !== undefined || step.result !== undefined) {
    messages[messages.length - 1] = last = answer(last, chat, step);
    seen.wouldSend =
      lastAssistantMessageIsCompleteWithApprovalResponses({ messages }) ||
      lastAssistantMessageIsCompleteWithToolCalls({ messages });
  }
  const request = { chatId: chat.id, messages, trigger: step.trigger ?? 'submit-message', messageId: undefined };
  try {
    const stream = step.back ? await transport.reconnectToStream(request) : await transport.sendMessages(request);
    if (stream === null) return { ...seen, nothing: true };
    const tee = stream.pipeThrough(
      new TransformStream({
        transform(chunk, controller) {
          seen.chunks.push(structuredClone(chunk));
          controller.enqueue(chunk);
        },
      }),
    );
    if (step.back && last?.role === 'assistant') messages.pop();
    let grown = step.back || last?.role !== 'assistant' ? undefined : structuredClone(last);
    if (grown) messages.pop();
    const failed = (error) => void (seen.error = String(error.message ?? error));
    for await (const message of readUIMessageStream({ message: grown, stream: tee, onError: failed })) grown = message;
    if (grown) messages.push(grown);
  } catch (error) {
    seen.error = String(error.message ?? error);
  }
  return seen;
}

const chats = [];
for (const chat of task.chats) {
  const transport = new DefaultChatTransport({
    api: task.url,
    headers: task.headers,
    body: chat.tools && { tools: chat.tools },
  });
  const messages = chat.messages ?? [];
  const runs = [];
  for (const step of chat.steps) runs.push(await run(transport, chat, messages, step));
  chats.push({ runs, messages });
}
console.log(JSON.stringify(chats));
