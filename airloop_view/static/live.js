// What changes on disk arrives here, over one stream of events. Nothing polls.

const listeners = new Set();
const waiting = new Set();
let missed = false; // events were lost while the stream was down

export function startLive(sign) {
  let stream = null;
  const say = (word, text) => {
    if (sign.dataset.state === word) return;
    sign.dataset.state = word;
    sign.textContent = text;
  };
  const connect = () => {
    stream = new EventSource("/api/events");
    stream.addEventListener("open", () => {
      say("on", "live");
      if (missed) tell([], true);
      missed = false;
    });
    stream.addEventListener("error", () => {
      missed = true;
      say("off", "not connected");
    });
    stream.addEventListener("change", (event) => tell(JSON.parse(event.data).runs ?? []));
  };
  // A browser has six connections for one server: were each tab in the background to hold one, the seventh tab would
  // wait for ever.
  const follow = () => {
    if (document.hidden) {
      missed ||= stream !== null;
      stream?.close();
      stream = null;
    } else if (stream === null) connect();
    if (!document.hidden && waiting.size) tell([]);
  };
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", () => stream?.close());
  follow();
}

/** `listener(runs)` gets a set of run ids, or null when any may have changed. Returns how to stop. */
export function onChange(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell(runs, all = false) {
  for (const run of all ? [null] : runs) waiting.add(run);
  if (document.hidden || !waiting.size) return; // nobody looks: told when somebody does
  const changed = waiting.has(null) ? null : new Set(waiting);
  waiting.clear();
  for (const listener of listeners) listener(changed);
}
