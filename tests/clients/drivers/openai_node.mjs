// openai-node in every way that it can hold a conversation with tools.
import OpenAI from "openai";
import { KEY, PROMPT, SCHEMA, URL, drive, model, writeNote } from "./note.mjs";

const client = new OpenAI({ baseURL: `${URL}/v1`, apiKey: KEY, timeout: 30_000 });
const named = { name: "write_note", description: "Writes a note.", parameters: SCHEMA };

function tools(mode) {
  return [{ type: "function", function: { ...named, parse: JSON.parse, function: (given) => writeNote(mode, given) } }];
}

function runs(stream) {
  return async (mode) => {
    const messages = [{ role: "user", content: PROMPT }];
    const runner = client.chat.completions.runTools({ model: model(mode), messages, tools: tools(mode), stream });
    return (await runner.finalContent()) ?? "";
  };
}

function responses(ask) {
  return async (mode) => {
    const input = [{ role: "user", content: PROMPT }];
    const fixed = { model: model(mode), tools: [{ type: "function", strict: true, ...named }], store: false };
    const thinking = { include: ["reasoning.encrypted_content"], reasoning: { effort: "low", summary: "auto" } };
    for (;;) {
      const reply = await ask({ ...fixed, ...thinking, input });
      if (reply.status !== "completed") throw new Error(`ended as ${reply.status}`);
      input.push(...reply.output.map(({ parsed_arguments, ...item }) => item));
      const calls = reply.output.filter((item) => item.type === "function_call");
      if (!calls.length) return reply.output_text;
      for (const call of calls) {
        const output = writeNote(mode, JSON.parse(call.arguments));
        input.push({ type: "function_call_output", call_id: call.call_id, output });
      }
    }
  };
}

await drive({
  chat: runs(false),
  "chat-stream": runs(true),
  responses: responses((asked) => client.responses.create(asked)),
  "responses-stream": responses((asked) => client.responses.stream(asked).finalResponse()),
});
