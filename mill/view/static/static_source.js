// Answers of a static copy: files that `mill view --export` wrote, loaded as scripts, because pages from disk may not fetch.
import { filled, source } from "./lib.js";

const waiting = new Map(), loaded = new Map();
window.millData = (name, data) => waiting.get(name)?.(data);

const load = (name) => {
  if (!loaded.has(name)) {
    loaded.set(name, new Promise((resolve, reject) => {
      waiting.set(name, resolve);
      const script = document.createElement("script");
      script.src = `data/${name}.js`;
      script.onerror = () => { loaded.delete(name); reject(new Error("this copy does not have it: it was not among the exported runs")); };
      document.head.append(script);
    }));
  }
  return loaded.get(name);
};

const compareBy = (key, desc) => (x, y) => {
  const [a, b] = [key(x), key(y)];
  if (a == null || b == null) return (a == null) - (b == null);
  return (a < b ? -1 : a > b ? 1 : 0) * (desc ? -1 : 1);
};

const page = (rows, { after, limit }) => {
  const start = Number(after) || 0, end = start + (Number(limit) || 100);
  return { total: rows.length, rows: rows.slice(start, end), next: end < rows.length ? String(end) : null };
};

const STATUSES = ["pending", "failed", "right", "wrong", "graded", "unscored"];
// Words as the search of the server has them: letters and digits without accents, in lower case.
const wordsOf = (text) => (text || "").normalize("NFD").replace(/\p{M}/gu, "").toLowerCase().match(/[\p{L}\p{N}]+/gu) || [];

// All words are in the texts; the last may be the start of one.
const hasWords = (texts, words) => {
  const found = wordsOf(texts.join(" ")), known = new Set(found), last = words.at(-1);
  return words.slice(0, -1).every((word) => known.has(word)) && found.some((word) => word.startsWith(last));
};

// The samples of a run that have all words, by the texts in the files of its samples.
const matching = async (run, count, words) => {
  const found = new Set();
  for (let at = 0; at * count.size < count.total; at += 1) {
    for (const { sample } of await load(`sample-${run}-${at}`)) {
      if (hasWords([sample.prompt, sample.reasoning, sample.response, sample.chosen].filter(Boolean), words)) found.add(`${sample.task}/${sample.id}`);
    }
  }
  return found;
};

const chosenSamples = async (given) => {
  const { rows, metrics, size } = await load(`samples-${given.run}`);
  const statuses = (given.status || "").split(",").filter(Boolean), words = wordsOf(given.q);
  const texts = words.length ? await matching(given.run, { size, total: rows.length }, words) : null;
  const kept = rows.filter((row) => (!given.task || row.task === given.task) && (given.category == null || row.category === given.category)
    && (!statuses.length || statuses.includes(row.status)) && (!given.flag || row.all_flags.includes(given.flag)) && (!texts || texts.has(`${row.task}/${row.id}`)));
  const column = /^v\d$/.test(given.sort || "") ? (row) => row.values[metrics[row.task]?.[Number(given.sort[1])]]
    : { id: (row) => row.id, category: (row) => row.category, status: (row) => STATUSES.indexOf(row.status), worst_token: (row) => row.worst }[given.sort] || ((row) => row[given.sort]);
  if (given.sort && given.sort !== "order") kept.sort(compareBy(column, given.desc));
  else if (given.desc) kept.reverse();
  return { kept, metrics, rows, size };
};

const isSample = (given) => (row) => row.task === given.t && String(row.id) === String(given.id);
const named = (row) => (row ? { task: row.task, id: row.id } : null);
const around = (rows, given) => {
  const at = rows.findIndex(isSample(given));
  return at < 0 ? {} : { previous: named(rows[at - 1]), next: named(rows[at + 1]), at };
};

const chosenPairs = async (given) => {
  const { rows, size } = await load(`pairs-${given.a}-${given.b}`);
  const cells = (given.cell || "").split(",").filter(Boolean), margin = Number(given.margin) || 0, words = wordsOf(given.q);
  const sizes = words.length ? await load(`samples-${given.a}`) : null;
  const texts = sizes ? await matching(given.a, { size: sizes.size, total: sizes.rows.length }, words) : null;
  const kept = rows.filter((row) => (!given.task || row.task === given.task) && (given.category == null || row.category === given.category) && (!cells.length || cells.includes(row.cell))
    && (!given.changed || row.changed) && (row.margin == null || row.margin >= margin) && (!texts || texts.has(`${row.task}/${row.id}`)));
  const order = ["both_right", "regression", "improvement", "both_wrong", "other"];
  const column = { cell: (row) => order.indexOf(row.cell), difference: (row) => (row.values[0] == null || row.values[1] == null ? null : row.values[1] - row.values[0]) }[given.sort] || ((row) => row[given.sort]);
  if (given.sort && given.sort !== "order") kept.sort(compareBy(column, given.desc));
  return { kept, rows, size };
};

const answers = {
  state: () => load("state"),
  run: ({ run }) => load(`run-${run}`),
  async scores({ runs }) {
    const wanted = runs.split(",");
    const { rows } = await load("scores");
    return { runs: wanted, rows: rows.map((row) => ({ ...row, cells: Object.fromEntries(Object.entries(row.cells).filter(([uid]) => wanted.includes(uid))) })).filter((row) => Object.keys(row.cells).length) };
  },
  async categories({ task, runs }) {
    const all = await load("categories");
    return { runs: Object.fromEntries(runs.split(",").filter((uid) => all[uid]?.[task]).map((uid) => [uid, all[uid][task]])) };
  },
  async samples(given) {
    const { kept, metrics } = await chosenSamples(given);
    return { ...page(kept, given), metrics };
  },
  async sample(given) {
    const { kept, rows, size } = await chosenSamples(given);
    const number = rows.findIndex(isSample(given));
    if (number < 0) throw new Error(`there is no sample ${given.id} of ${given.t} in this run`);
    const found = (await load(`sample-${given.run}-${Math.floor(number / size)}`))[number % size];
    return { ...found, neighbours: around(kept, given) };
  },
  async compare(given) {
    const margins = await load(`compare-${given.a}-${given.b}`);
    const { all, tasks } = margins[given.margin || 0] || margins[0];
    if (given.category != null) {
      const group = (given.task ? tasks[given.task] : all)?.groups.find((one) => one.category === given.category);
      if (group) return { ...all, ...group, groups: [group] };
    }
    return given.task ? tasks[given.task] : all;
  },
  async pairs(given) {
    return page((await chosenPairs(given)).kept, given);
  },
  async pair(given) {
    const { kept, rows, size } = await chosenPairs(given);
    const number = rows.findIndex(isSample(given));
    if (number < 0) throw new Error(`the two runs share no sample ${given.id} of ${given.t}`);
    const found = (await load(`pair-${given.a}-${given.b}-${Math.floor(number / size)}`))[number % size];
    const near = around(kept, given), flip = (row) => ["regression", "improvement"].includes(row.cell) && !isSample(given)(row);
    return { ...found, neighbours: { ...near, next_flip: named(kept.slice((near.at ?? -1) + 1).find(flip) || kept.find(flip)) } };
  },
  async tokens(given) {
    if (!given.b) return { tokens: (await answers.sample({ run: given.a, t: given.t, id: given.id })).tokens, forced: false };
    return (await answers.pair(given)).tokens;
  },
  worst: ({ a, b }) => load(b ? `worst-${a}-${b}` : `worst-${a}`),
  async load({ runs, price_in = 0, price_out = 0 }) {
    const all = await load("load");
    const priced = Number(price_in) || Number(price_out);
    return { runs: runs.split(",").filter((uid) => all[uid]).map((uid) => {
      const one = all[uid], cost = (one.prompt_tokens * price_in + one.output_tokens * price_out) / 1e6;
      return { ...one, cost: priced ? cost : null, cost_per_right: priced && one.right ? cost / one.right : null };
    }) };
  },
  check: ({ check }) => load(`check-${check}`),
  async trend({ metric }) {
    const all = await load("trends");
    return all[metric] || { metric, known: Object.keys(all), series: {}, chart: "" };
  },
};

Object.assign(source, {
  isStatic: true,
  get: (name, params) => answers[name](Object.fromEntries(filled(params))),
  events: () => () => {},
  file: (path) => `${path.replace("report/check/", "reports/")}.html`,
});
