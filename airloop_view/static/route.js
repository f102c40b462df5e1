// A place in the viewer is a hash: "#/trajectory?run=exp1.0&id=…&turn=3". Everything that is shown can be linked to.

export function currentRoute() {
  return parseRoute(location.hash);
}

export function parseRoute(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  return { page: path, params: new URLSearchParams(query) };
}

/** Values may be lists (the key is repeated); empty ones are left out. */
export function query(values) {
  const params = new URLSearchParams();
  for (const [key, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "" && one !== false) params.append(key, one);
    }
  }
  return params;
}

export function link(page, values = {}) {
  const text = query(values).toString();
  return `#/${page}${text ? `?${text}` : ""}`;
}

/** Change the address without a step in the history: what a slider or a pointed-at token does. */
export function rewrite(page, values) {
  history.replaceState(null, "", link(page, values));
}

export function plain(params) {
  const values = {};
  for (const key of new Set(params.keys())) {
    const all = params.getAll(key);
    values[key] = all.length > 1 ? all : all[0];
  }
  return values;
}
