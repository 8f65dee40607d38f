// The Vercel AI SDK over each provider that it has, whole and streaming.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { KEY, PROMPT, URL, drive, model, writeNote } from "./note.mjs";

const options = { baseURL: `${URL}/v1`, apiKey: KEY };
const providers = {
  responses: createOpenAI(options).responses,
  chat: createOpenAI(options).chat,
  messages: createAnthropic(options),
  compatible: createOpenAICompatible({ ...options, name: "gateway", includeUsage: true }),
};

const providerOptions = { openai: { store: false } }; // stored items: stateful_vercel_ai.mjs

function asked(mode, provider) {
  const inputSchema = z.object({ title: z.string(), text: z.string() });
  const write_note = tool({ description: "Writes a note.", inputSchema, execute: (given) => writeNote(mode, given) });
  const fixed = { prompt: PROMPT, instructions: "Be brief.", stopWhen: stepCountIs(4), providerOptions };
  return { ...fixed, model: provider(model(mode)), tools: { write_note } };
}

const ways = {};
for (const [name, provider] of Object.entries(providers)) {
  ways[name] = async (mode) => (await generateText(asked(mode, provider))).text;
  ways[`${name}-stream`] = async (mode) => {
    let broken;
    const result = streamText({ ...asked(mode, provider), onError: ({ error }) => (broken = error) });
    const [text, finish] = [await result.text, await result.finishReason];
    if (broken) throw broken;
    if (finish !== "stop") throw new Error(`ended as ${finish}: ${text}`);
    return text;
  };
}
await drive(ways);
