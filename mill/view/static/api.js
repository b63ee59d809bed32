// The answers that screens show, one function for each. A live page asks its server; an offline page has the answers in its
// own data, and filters, sorts and searches its rows itself.

// An empty category is a category: samples that have none.
export const filled = (params) => Object.entries(params).filter(([name, value]) => value != null && value !== false && (value !== "" || name === "category"));

const element = document.getElementById("data");
const held = element && JSON.parse(element.textContent);
export const offline = held !== null;

const token = new URLSearchParams(location.search).get("token") || "";
export const address = (path, params = {}) => `${path}?${new URLSearchParams([...filled(params), ["token", token]])}`;

const ask = async (name, params, signal) => {
  const response = await fetch(address(`api/${name}`, params), { signal });
  const answer = await response.json().catch((failure) => {
    if (failure.name === "AbortError") throw failure; // another request has replaced this one
    throw new Error(`the server answered ${response.status} with what is no JSON`);
  });
  if (!response.ok) throw new Error(answer.error || `the server answered ${response.status}`);
  return answer;
};

// What changes while the page is open. An offline page does not change.
export const follow = (onUpdate, onLost) => {
  if (offline) return undefined;
  const stream = new EventSource(address("events"));
  stream.onmessage = (event) => onUpdate(JSON.parse(event.data));
  stream.onerror = onLost;
  return () => stream.close();
};

// --- Rows of an offline page

const get = (found, what) => {
  if (found == null) throw new Error(`this page does not hold ${what}`);
  return found;
};
const runOf = (uid) => get(held.runs[uid], "this run");
const pairOf = ({ a, b }) => get(held.pairs[`${a}/${b}`], "a comparison of these runs");

const compareBy = (key, desc) => (x, y) => {
  const [a, b] = [key(x), key(y)];
  if (a == null || b == null) return (a == null) - (b == null);
  return (a < b ? -1 : a > b ? 1 : 0) * (desc ? -1 : 1);
};

// Words as the search of the server has them: letters and digits without accents, in lower case.
const wordsIn = (text) => (text || "").normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().match(/[\p{L}\p{N}]+/gu) || [];

// Whether the texts of a sample have all words; the last may be the start of one.
const hasWords = ({ prompt, reasoning, response, chosen }, wanted) => {
  if (!wanted.length) return true;
  const found = wordsIn([prompt, reasoning, response, chosen].filter(Boolean).join(" ")), all = new Set(found);
  return wanted.slice(0, -1).every((word) => all.has(word)) && found.some((word) => word.startsWith(wanted.at(-1)));
};

const isIn = (list, value) => !list || list.split(",").includes(value);
const inGroup = (row, { task, category }) => (!task || row.task === task) && (category == null || row.category === category);

const sorted = (rows, { sort, desc }, columns) => {
  if (!sort || sort === "order") return desc ? rows.reverse() : rows;
  return rows.sort(compareBy(columns[sort] || ((row) => row[sort]), desc));
};

const page = (rows, { after, limit }) => {
  const start = Number(after) || 0, end = start + (Number(limit) || 100);
  return { total: rows.length, rows: rows.slice(start, end), next: end < rows.length ? String(end) : null };
};

const isSample = (given) => (row) => row.task === given.t && String(row.id) === String(given.id);
const named = (row) => (row ? { task: row.task, id: row.id } : null);
const sampleOf = (uid, given) => get(runOf(uid).samples.find(isSample(given)), `sample ${given.id} of ${given.t}`);
const around = (rows, given) => {
  const at = rows.findIndex(isSample(given));
  return at < 0 ? {} : { previous: named(rows[at - 1]), next: named(rows[at + 1]), at };
};

const STATUS_ORDER = ["pending", "failed", "right", "wrong", "graded", "unscored"];
const chosenSamples = (given) => {
  const { samples, metrics } = runOf(given.run), wanted = wordsIn(given.q);
  const rows = samples.filter((row) => inGroup(row, given) && isIn(given.status, row.status) && (!given.flag || row.flags.includes(given.flag)) && hasWords(row.sample, wanted));
  const at = /^v\d+$/.test(given.sort) ? Number(given.sort.slice(1)) : null;
  return sorted(rows, given, { [given.sort]: at === null ? null : (row) => row.values[metrics[row.task]?.[at]], status: (row) => STATUS_ORDER.indexOf(row.status), worst_token: (row) => row.worst });
};

const CELL_ORDER = ["both_right", "regression", "improvement", "both_wrong", "other"];
const chosenPairs = (given) => {
  const margin = Number(given.margin) || 0, wanted = wordsIn(given.q);
  const rows = pairOf(given).rows.filter((row) => inGroup(row, given) && isIn(given.cell, row.cell) && (!given.changed || row.changed)
    && (row.margin == null || row.margin >= margin) && (!wanted.length || hasWords(sampleOf(given.a, { t: row.task, id: row.id }).sample, wanted)));
  return sorted(rows, given, { cell: (row) => CELL_ORDER.indexOf(row.cell), difference: (row) => (row.values.includes(null) ? null : row.values[1] - row.values[0]) });
};

// The tests are over all pairs, also those that are not held; what the slider leaves is counted in those that are.
const heldSummary = (given) => {
  const { compare } = pairOf(given), all = get(compare[given.task || ""], `a comparison of ${given.task}`);
  const group = given.category != null && all.groups.find((one) => one.category === given.category);
  const left = chosenPairs({ ...given, cell: "", changed: "", q: "", sort: "" });
  const above = Object.fromEntries(CELL_ORDER.map((name) => [name, left.filter((row) => row.cell === name).length]));
  return { ...all, ...(group ? { ...group, groups: [group] } : {}), above, held: pairOf(given).rows.filter((row) => inGroup(row, given)).length };
};

const heldPair = (given) => {
  const rows = chosenPairs(given), row = get(pairOf(given).rows.find(isSample(given)), `the pair ${given.id} of ${given.t}`);
  const first = sampleOf(given.a, given), second = sampleOf(given.b, { t: row.task, id: row.other });
  const near = around(rows, given), flip = (one) => ["regression", "improvement"].includes(one.cell) && one !== row;
  return {
    ...row, a: first.sample, b: second.sample, cut: { characters: first.cut.characters + second.cut.characters, items: first.cut.items + second.cut.items },
    commands: [first.command, second.command], neighbours: { ...near, next_flip: named(rows.slice((near.at ?? -1) + 1).find(flip) || rows.find(flip)) },
  };
};

// --- One function for each answer

const endpoint = (name, fromData) => async (params, signal) => (offline ? fromData(params) : ask(name, params, signal));

export const api = {
  state: endpoint("state", () => held.state),
  run: endpoint("run", ({ run }) => runOf(run).run),
  categories: endpoint("categories", ({ run, task }) => ({ run, rows: runOf(run).categories[task] || [] })),
  calibration: endpoint("calibration", ({ run, task }) => ({ run, chart: runOf(run).calibration[task] })),
  samples: endpoint("samples", (given) => ({ ...page(chosenSamples(given), given), metrics: runOf(given.run).metrics })),
  sample: endpoint("sample", (given) => ({ ...sampleOf(given.run, given), neighbours: around(chosenSamples(given), given) })),
  compare: endpoint("compare", heldSummary),
  pairs: endpoint("pairs", (given) => page(chosenPairs(given), given)),
  pair: endpoint("pair", heldPair),
  tokens: endpoint("tokens", (given) => (given.b ? heldPair(given).tokens : { tokens: sampleOf(given.a, given).tokens, forced: false })),
  worst: endpoint("worst", (given) => (given.b ? pairOf(given).worst : runOf(given.a).worst)),
  load: endpoint("load", ({ run, task }) => runOf(run).load[task || ""]),
  check: endpoint("check", ({ check }) => get(held.checks[check], "this check")),
  trend: endpoint("trend", ({ metric }) => held.trends[metric] || { metric, known: Object.keys(held.trends), series: {}, chart: null }),
};
