// Calls of the admin API. A session is a cookie that the browser sends and a token that only this page knows.

const TOKEN = "dragoman-token";
const channel = "BroadcastChannel" in window ? new BroadcastChannel("dragoman") : null;
const ASK_TABS_MS = 150;
const ANSWER_MS = 30_000; // within which the gateway begins to answer whatever is only read
let isAsking = false;

export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{code?: string, message?: string, field?: string | null}} error
   */
  constructor(status, error) {
    super(error.message || `The gateway answered with HTTP ${status}.`);
    this.status = status;
    this.code = error.code || "";
    this.field = error.field || "";
  }
}

/** The gateway did not answer at all. */
export class Unreachable extends Error {}

/** Fail if the gateway has not begun to answer in time: one that is frozen ends no connection. @returns {Promise<never>} */
export function answerLate() {
  return new Promise((_, fail) => setTimeout(() => fail(new Unreachable(`The gateway has not answered for ${ANSWER_MS / 1000} s. Is it running?`)), ANSWER_MS));
}

export const session = {
  /** @type {any} */
  about: null,
  get token() { return sessionStorage.getItem(TOKEN); },
  /** @param {string | null} token */
  keep(token) {
    if (token) sessionStorage.setItem(TOKEN, token);
    else sessionStorage.removeItem(TOKEN);
  },
  /** Whether this session may use a part of the admin API. @param {string} scope */
  may(scope) {
    const about = session.about;
    return Boolean(about && (about.role === "owner" || about.scopes.includes(scope)));
  },
};

channel?.addEventListener("message", (event) => {
  if (event.data === "token?" && session.token) channel.postMessage({ token: session.token });
  if (event.data === "signed out" && session.token) {
    session.keep(null);
    location.reload();
  }
  if (event.data?.token && !isAsking && !session.token) { // a tab that was too busy to answer in time
    session.keep(event.data.token);
    dispatchEvent(new Event("token-found"));
  }
});

/** Ask the other tabs of this console for their token: this storage belongs to one tab. */
export function askOtherTabs() {
  return new Promise((resolve) => {
    if (!channel || session.token) return resolve(session.token);
    /** @param {MessageEvent} event */
    const hear = (event) => { if (event.data?.token) done(event.data.token); };
    /** @param {string | null} token */
    const done = (token) => {
      channel.removeEventListener("message", hear);
      isAsking = false;
      if (token) session.keep(token);
      resolve(token);
    };
    isAsking = true;
    channel.addEventListener("message", hear);
    channel.postMessage("token?");
    setTimeout(() => done(null), ASK_TABS_MS);
  });
}

/**
 * Send a request with the session's token. Raises ApiError or Unreachable.
 * @param {string} method
 * @param {string} path
 * @param {unknown} [body]
 * @param {{headers?: Record<string, string>, signal?: AbortSignal}} [options]
 * @returns {Promise<Response>}
 */
export async function send(method, path, body, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { ...options.headers };
  if (session.token) headers["x-dragoman-console"] = session.token;
  if (body !== undefined) headers["content-type"] = "application/json";
  const answer = fetch(path, {
    method, headers, signal: options.signal, redirect: "error", credentials: "same-origin", cache: "no-store",
    body: body === undefined ? undefined : JSON.stringify(body),
  });
  let response;
  try {
    response = await (method === "GET" ? Promise.race([answer, answerLate()]) : answer);
  } catch (problem) {
    if (options.signal?.aborted || problem instanceof Unreachable) throw problem;
    throw new Unreachable("The gateway does not answer. Is it running?");
  }
  if (response.ok) return response;
  const read = await response.json().catch(() => ({}));
  const error = typeof read.error === "object" && read.error ? read.error : {};
  const failed = new ApiError(response.status, error);
  if (response.status === 401 && session.token && error.code === "session_ended") {
    session.keep(null);
    dispatchEvent(new CustomEvent("signed-out", { detail: failed.message }));
  }
  throw failed;
}

/**
 * @param {string} path
 * @param {Record<string, string | number | null | undefined>} [query]
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function get(path, query = {}, signal) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
  return (await send("GET", text ? `${path}?${text}` : path, undefined, { signal })).json();
}

/** All pages of a list. @param {string} path @param {string} name of the list @param {Record<string, string | number>} [query] @returns {Promise<any>} the last page, with all items */
export async function getAll(path, name, query = {}) {
  const items = [];
  for (let cursor = null; ;) {
    const page = await get(path, { ...query, cursor });
    items.push(...page[name]);
    cursor = page.next;
    if (!cursor) return { ...page, [name]: items };
  }
}

/** @param {{key: string} | {link: string}} proof */
export async function signIn(proof) {
  session.about = await (await send("POST", "/console/session", proof)).json();
  session.keep(session.about.token);
  delete session.about.token;
}

/** @returns {Promise<boolean>} */
export async function resume() {
  await askOtherTabs();
  if (!session.token) return false;
  try {
    session.about = await get("/console/session");
    return true;
  } catch (error) {
    if (error instanceof ApiError && [400, 401, 403].includes(error.status)) {
      session.keep(null);
      return false;
    }
    throw error;
  }
}

export async function signOut() {
  try {
    await send("DELETE", "/console/session");
  } finally {
    session.keep(null);
    channel?.postMessage("signed out");
    location.assign("/console");
  }
}
