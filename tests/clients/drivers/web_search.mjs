// The Vercel AI SDK with its providers' web search tools, whole and streaming; then a second turn with the history.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, streamText } from "ai";
import { KEY, URL, drive, model } from "./note.mjs";

const options = { baseURL: `${URL}/v1`, apiKey: KEY };
const openai = createOpenAI(options);
const anthropic = createAnthropic(options);
const providers = {
  responses: [openai.responses, () => openai.tools.webSearch({ searchContextSize: "high" })],
  messages: [anthropic, () => anthropic.tools.webSearch_20250305({ maxUses: 3 })],
};
const providerOptions = { openai: { store: false } };

function asked(mode, [provider, tool], messages) {
  return { model: provider(model(mode)), messages, tools: { web_search: tool() }, providerOptions };
}

async function whole(given) {
  const { text, sources, toolCalls, response } = await generateText(given);
  return { text, sources, toolCalls, messages: response.messages };
}

async function streamed(given) {
  let broken;
  const result = streamText({ ...given, onError: ({ error }) => (broken = error) });
  const [text, sources, toolCalls] = [await result.text, await result.sources, await result.toolCalls];
  if (broken) throw broken;
  return { text, sources, toolCalls, messages: (await result.response).messages };
}

async function talk(mode, given, ask) {
  const messages = [{ role: "user", content: "What do pandas eat?" }];
  const first = await ask(asked(mode, given, messages));
  const more = [...messages, ...first.messages, { role: "user", content: "Are you sure?" }];
  const second = await ask(asked(mode, given, more));
  const urls = [...new Set(first.sources.map((source) => source.url))];
  return JSON.stringify({ text: first.text, urls, calls: first.toolCalls.length, again: second.text });
}

const ways = {};
for (const [name, given] of Object.entries(providers)) {
  ways[name] = (mode) => talk(mode, given, whole);
  ways[`${name}-stream`] = (mode) => talk(mode, given, streamed);
}
await drive(ways);
