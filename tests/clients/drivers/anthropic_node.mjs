// @anthropic-ai/sdk in every way that it can hold a conversation with tools.
import Anthropic from "@anthropic-ai/sdk";
import { KEY, PROMPT, SCHEMA, URL, drive, model, writeNote } from "./note.mjs";

const client = new Anthropic({ baseURL: URL, apiKey: KEY, timeout: 30_000 });
const tool = { name: "write_note", description: "Writes a note.", input_schema: SCHEMA };
const textOf = (message) => message.content.filter((block) => block.type === "text").map((block) => block.text).join("");

function loop(ask) {
  return async (mode) => {
    const messages = [{ role: "user", content: PROMPT }];
    for (;;) {
      const thinking = { type: "adaptive" };
      const reply = await ask({ model: model(mode), max_tokens: 2048, system: "Be brief.", tools: [tool], thinking, messages });
      messages.push({ role: "assistant", content: reply.content });
      const uses = reply.content.filter((block) => block.type === "tool_use");
      if (!uses.length) return textOf(reply);
      const results = uses.map((use) => ({ type: "tool_result", tool_use_id: use.id, content: writeNote(mode, use.input) }));
      messages.push({ role: "user", content: results });
    }
  };
}

function runner(stream) {
  return async (mode) => {
    const run = (given) => writeNote(mode, given);
    const tools = [{ ...tool, type: "custom", run, parse: (given) => given }];
    const messages = [{ role: "user", content: PROMPT }];
    return textOf(await client.beta.messages.toolRunner({ model: model(mode), max_tokens: 2048, tools, messages, stream }).runUntilDone());
  };
}

await drive({
  messages: loop((asked) => client.messages.create(asked)),
  "messages-stream": loop((asked) => client.messages.stream(asked).finalMessage()),
  runner: runner(false),
  "runner-stream": runner(true),
});
