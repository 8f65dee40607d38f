// The tool that every driven client offers, and how a driver tells what came of a conversation.
import { writeFileSync } from "node:fs";

export const URL = process.env.GATEWAY_URL;
export const KEY = process.env.GATEWAY_KEY;
export const PROMPT = "Write a note.";
export const QUESTION = "What did the last tool say?";
export const SCHEMA = {
  type: "object",
  properties: { title: { type: "string" }, text: { type: "string" } },
  required: ["title", "text"],
  additionalProperties: false,
};

export function writeNote(mode, { title, text }) {
  writeFileSync(`${mode}-${title}.txt`, text);
  return `wrote ${title} by ${mode}`;
}

// The upstream is told by the model's name which conversation this is.
export const model = (mode) => `some-model-${mode}`;

// Holds the conversations asked for on the command line, or all of them, side by side.
export async function drive(ways) {
  const modes = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(ways);
  const told = await Promise.all(modes.map((mode) => outcome(mode, ways[mode.split("@")[0]])));
  for (const line of told) console.log(JSON.stringify(line));
}

async function outcome(mode, way) {
  try {
    return { mode, text: await way(mode) };
  } catch (error) {
    const kinds = [error?.constructor?.name ?? "unknown", error?.name ?? "unknown"];
    const status = typeof error?.status === "number" ? error.status : (error?.statusCode ?? null);
    return { mode, text: "", error: kinds, status, why: String(error?.message ?? error) };
  }
}
