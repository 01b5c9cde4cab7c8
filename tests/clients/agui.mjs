// A client of AG-UI, unchanged, has conversations; what its reducer ends with is printed as JSON.
// Argument: the folder of node_modules. Input: {url, client, chats: [{thread?, messages?, steps: [...]}]}.
// A step: {text, run?} sends a message; {answer: payload} or {cancel: true} answers all open interrupts; {result: text}
// answers the open calls of the tools that the chat brings, also beside an answer.

import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const require = createRequire(pathToFileURL(join(process.argv[2], 'x.js')));
const task = JSON.parse(readFileSync(0, 'utf8'));
const { HttpAgent } = await import(pathToFileURL(require.resolve(task.client)).href);
console.error = console.warn = () => {};
let ids = 0;

function carryOut(agent, tools, content) {
  const names = new Set(tools.map(({ name }) => name));
  const answered = new Set(agent.messages.map(({ toolCallId }) => toolCallId));
  for (const { id, function: called } of agent.messages.flatMap(({ toolCalls }) => toolCalls ?? [])) {
    if (names.has(called.name) && !answered.has(id)) {
      agent.addMessage({ id: `result-${id}`, role: 'tool', toolCallId: id, content });
    }
  }
}

async function run(agent, chat, step) {
  const seen = { events: [] };
  const subscriber = {
    onEvent: ({ event }) => void seen.events.push(event),
    onRunFinishedEvent: ({ outcome, result }) => void Object.assign(seen, { outcome, result }),
    onRunErrorEvent: ({ event }) => void Object.assign(seen, { code: event.code, message: event.message }),
  };
  const parameters = { runId: step.run, tools: chat.tools };
  if (step.result !== undefined) carryOut(agent, chat.tools, step.result);
  if (step.text !== undefined) {
    agent.addMessage({ id: step.id ?? `${agent.threadId}-u${++ids}`, role: 'user', content: step.text });
  } else if (agent.pendingInterrupts.length > 0 && step.again === undefined) {
    parameters.resume = agent.pendingInterrupts.map(({ id }) =>
      step.cancel ? { interruptId: id, status: 'cancelled' } : { interruptId: id, status: 'resolved', payload: step.answer },
    );
  }
  if (step.forwardedProps !== undefined) parameters.forwardedProps = step.forwardedProps;
  try {
    await agent.runAgent(parameters, subscriber);
  } catch (error) {
    seen.error = String(error.message);
    seen.payload = error.payload;
  }
  seen.interrupts = agent.pendingInterrupts;
  return seen;
}

const chats = [];
for (const chat of task.chats) {
  const agent = new HttpAgent({
    url: task.url,
    threadId: chat.thread,
    initialMessages: chat.messages ?? [],
    initialState: chat.state,
  });
  const runs = [];
  for (const step of chat.steps) runs.push(await run(agent, chat, step));
  chats.push({ runs, messages: agent.messages, state: agent.state });
}
console.log(JSON.stringify(chats));
