// Read a response with one JSON value on each line, as they arrive.

import { Unreachable } from "./api.js";

/** The next bytes of a response; where the connection broke, an error that says so. @param {ReadableStreamDefaultReader<Uint8Array>} reader */
export async function readChunk(reader) {
  try {
    return await reader.read();
  } catch (problem) {
    if (problem instanceof DOMException && problem.name === "AbortError") throw problem;
    throw new Unreachable("The connection to the gateway broke.");
  }
}

/** @param {Response} response @returns {AsyncGenerator<any>} */
export async function* readLines(response) {
  for await (const line of textLines(response)) if (line.trim()) yield JSON.parse(line);
}

/** The data of server-sent events. @param {Response} response @returns {AsyncGenerator<string>} */
export async function* readEvents(response) {
  for await (const line of textLines(response)) if (line.startsWith("data:")) yield line.slice(5).trim();
}

/** @param {Response} response @returns {AsyncGenerator<string>} */
async function* textLines(response) {
  if (!response.body) return;
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await readChunk(reader);
      if (done) break;
      const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
      rest = lines.pop() || "";
      yield* lines;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {}); // it may have been aborted
  }
}
