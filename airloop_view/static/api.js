// The server's answers. A refusal is a sentence and a fix, and is shown as that.

import { query } from "./route.js";

export class Refused extends Error {
  constructor(sentence, fix, status) {
    super(sentence);
    this.fix = fix;
    this.status = status;
  }
}

export function address(path, values = {}) {
  const text = query(values).toString();
  return text ? `${path}?${text}` : path;
}

export async function get(path, values = {}, signal = undefined) {
  let answer;
  try {
    answer = await fetch(address(path, values), { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(
      "The server does not answer.",
      "Start it again: air view DIR. This page then goes on by itself.",
      0,
    );
  }
  const body = await answer.json().catch(() => null);
  if (answer.ok && body !== null) return body;
  throw new Refused(body?.error ?? `The server answered ${answer.status}.`, body?.fix ?? "", answer.status);
}

/** For what is fetched behind a page's back: a refusal, or a page that was left, is no fault of this code. */
export function unlessExpected(error) {
  if (!(error instanceof Refused) && error.name !== "AbortError") throw error;
}
