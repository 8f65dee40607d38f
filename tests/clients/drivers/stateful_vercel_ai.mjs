// The Vercel AI SDK with its default settings over several turns: it refers to the items that the server keeps.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { KEY, PROMPT, QUESTION, URL, drive, model, writeNote } from "./note.mjs";

const provider = createOpenAI({ baseURL: `${URL}/v1`, apiKey: KEY });
const reasoning = { openai: { forceReasoning: true, reasoningEffort: "low", reasoningSummary: "auto" } };

async function converse(mode, turn, providerOptions) {
  const inputSchema = z.object({ title: z.string(), text: z.string() });
  const write_note = tool({ description: "Writes a note.", inputSchema, execute: (given) => writeNote(mode, given) });
  const fixed = { instructions: "Be brief.", stopWhen: stepCountIs(6), providerOptions };
  const messages = [];
  let text = "";
  for (const content of [PROMPT, QUESTION]) {
    messages.push({ role: "user", content });
    const reply = await turn({ ...fixed, model: provider.responses(model(mode)), tools: { write_note }, messages });
    messages.push(...reply.messages);
    text = reply.text;
  }
  return text;
}

async function whole(request) {
  const { text, responseMessages } = await generateText(request);
  return { text, messages: responseMessages };
}

async function streamed(request) {
  let broken;
  const result = streamText({ ...request, onError: ({ error }) => (broken = error) });
  const text = await result.text;
  if (broken) throw broken;
  return { text, messages: await result.responseMessages };
}

await drive({
  items: (mode) => converse(mode, whole, {}),
  "items-stream": (mode) => converse(mode, streamed, {}),
  reasoning: (mode) => converse(mode, whole, reasoning),
  "reasoning-stream": (mode) => converse(mode, streamed, reasoning),
});
