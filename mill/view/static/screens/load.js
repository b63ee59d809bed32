// Latency, throughput, tokens and cost: of runs, and of stress checks against the number of requests in flight.
import { counted, duration, href, html, number, setParams, useApi, visible, words } from "../lib.js";
import { Answer, Choice, newest, RunPicker } from "../parts.js";
import { Charts } from "../charts.js";

const Histogram = ({ bins, label, run }) => {
  if (!bins.length) return null;
  const most = Math.max(...bins.map((bin) => bin.n));
  const total = bins.reduce((sum, bin) => sum + bin.n, 0);
  return html`<figure class="chart"><figcaption>Time of an answer, ${visible(label)}</figcaption>
    <svg viewBox="0 0 440 150" role="img" aria-label=${`Histogram of ${counted(total, "answer")} from ${duration(bins[0].from)} to ${duration(bins.at(-1).to)}`}>
      ${bins.map((bin, at) => html`<rect class="column" x=${20 + at * 10} width="9" y=${120 - (110 * bin.n) / most} height=${(110 * bin.n) / most}><title>${duration(bin.from)} to ${duration(bin.to)}: ${number(bin.n)}</title></rect>`)}
      <text class="tick" x="20" y="138">${duration(bins[0].from)}</text>${bins.length > 1 && html`<text class="tick" x="220" y="138" text-anchor="middle">${duration(bins[Math.floor(bins.length / 2)].from)}</text><text class="tick" x="420" y="138" text-anchor="end">${duration(bins.at(-1).to)}</text>`}</svg>
    <a href=${href("samples", { run, sort: "seconds", desc: "1" })}>The slowest samples</a></figure>`;
};

const COLUMNS = [
  ["Samples", (run) => number(run.samples)], ["Right", (run) => number(run.right)],
  ["p50", (run) => duration(run.latency.p50)], ["p95", (run) => duration(run.latency.p95)], ["p99", (run) => duration(run.latency.p99)], ["Slowest", (run) => duration(run.latency.max)],
  ["Requests per second", (run) => number(run.requests_per_s)], ["Output tokens per second", (run) => number(run.tokens_per_s)],
  ["Prompt tokens", (run) => number(run.prompt_tokens)], ["Output tokens", (run) => number(run.output_tokens)], ["Tokens per right answer", (run) => number(run.tokens_per_right)],
];

const Stress = ({ uid, title, version }) => {
  const answer = useApi("check", { check: uid }, version);
  return html`<h2><a href=${href("checks", { check: uid })}>${visible(title)}</a></h2><${Answer} of=${answer}>${(data) => html`<${Charts} charts=${data.charts} />`}</${Answer}>`;
};

const MILLION = 1e6;
const LOG_RATIO = 20; // of the largest to the smallest cost, from which on an axis is logarithmic
const costOf = ({ prompt_tokens, output_tokens }, [priceIn, priceOut]) => (prompt_tokens * priceIn + output_tokens * priceOut) / MILLION;

// What a run took for some of its tasks: tokens for a sample, or with prices dollars for a thousand.
const tookFor = (usage, tasks, prices) => {
  const found = tasks.map((task) => usage.tasks[task]).filter(Boolean);
  const sum = (name) => found.reduce((total, one) => total + one[name], 0);
  const total = { prompt_tokens: sum("prompt_tokens"), output_tokens: sum("output_tokens") }, tokens = total.prompt_tokens + total.output_tokens;
  return tokens ? (prices.some(Boolean) ? 1000 * costOf(total, prices) : tokens) / sum("samples") : null;
};

const spread = (points, axis) => {
  const least = Math.min(...points.map((point) => point.x)), most = Math.max(...points.map((point) => point.x)), log = least > 0 && most > LOG_RATIO * least;
  const placed = log ? points.map((point) => ({ ...point, x: Math.log10(point.x) })) : points, xs = placed.map((point) => point.x);
  const middle = (Math.min(...xs) + Math.max(...xs)) / 2, half = Math.max((Math.max(...xs) - Math.min(...xs)) / 2, log ? 0 : 0.1 * most) || 1;
  const low = Math.min(...points.map((point) => point.low ?? point.y)), high = Math.max(...points.map((point) => point.high ?? point.y));
  const x = { label: axis, first: middle - 1.15 * half, last: middle + 1.15 * half, log };
  return { x, y: { first: low - 0.02 * (high - low), last: high + 0.25 * (high - low) || 1 }, series: [{ name: "", points: placed, apart: true }] };
};

// A scatter for each benchmark, and each task of none, that several runs have: its first metric against what it took.
const costCharts = (usages, scores, prices, label) => {
  const plots = new Map(), axis = prices.some(Boolean) ? "dollars for 1,000 samples" : "tokens for a sample, prompt and output";
  usages.forEach((usage, at) => {
    const names = new Set();
    for (const { kind, name, metric, benchmark, tasks, cell } of scores.find((one) => one.run === usage.run)?.scores || []) {
      const key = `${kind}/${name}`, took = tookFor(usage, tasks, prices);
      if (names.has(key) || (kind === "task" && benchmark) || took == null || typeof cell.value !== "number") continue;
      names.add(key);
      if (!plots.has(key)) plots.set(key, { title: `${name}: ${words(metric)} against ${axis.split(",")[0]}`, points: [] });
      const text = `${label(usage.run)}: ${number(cell.value)}${cell.low == null ? "" : ` (${number(cell.low)} to ${number(cell.high)})`}, ${number(took)} ${axis}`;
      plots.get(key).points.push({ x: took, y: cell.value, low: cell.low, high: cell.high, colour: at, name: label(usage.run), tooltip: text });
    }
  });
  return [...plots.values()].filter(({ points }) => points.length > 1).slice(0, 24).map(({ title, points }) => ({ kind: "line", title, ...spread(points, axis) }));
};

export const Load = ({ params, state }) => {
  const known = state.runs.filter((run) => !run.of_check);
  const chosen = (params.runs || "").split(",").filter((uid) => state.runs.some((run) => run.uid === uid));
  const runs = chosen.length ? chosen : newest(known, 6);
  const tasks = [...new Set(state.runs.filter((run) => runs.includes(run.uid)).flatMap((run) => run.tasks))];
  const having = runs.filter((uid) => !params.task || state.runs.find((run) => run.uid === uid).tasks.includes(params.task));
  const answer = useApi("load", having.map((run) => ({ run, task: params.task })), state.version);
  const scores = useApi("run", having.map((run) => ({ run })), state.version);
  const prices = [params.price_in, params.price_out].map((price) => Number(price) || 0);
  const stress = state.checks.filter((check) => check.command === "stress");
  const priced = prices.some(Boolean);
  const label = (uid) => state.runs.find((run) => run.uid === uid)?.label;
  const Price = ({ name, text }) => html`<label>${text}<input type="number" min="0" step="any" value=${params[name] || ""} placeholder="0.15" onChange=${(event) => setParams({ [name]: event.target.value })} /></label>`;
  return html`<h1>Load and cost</h1><${RunPicker} state=${state} chosen=${runs} />
    <div class="filters">${tasks.length > 1 && html`<${Choice} label="Task" all="all" value=${params.task} options=${tasks.map((task) => [task, task])} onChange=${(task) => setParams({ task })} />`}
      <span>Price of a million tokens, in dollars:</span><${Price} name="price_in" text="prompt" /><${Price} name="price_out" text="output" /></div>
    <${Answer} of=${answer}>${(data) => html`<div class="scroll wide"><table class="list"><caption class="hidden">Latency and cost of runs</caption><thead><tr><th scope="col">Run</th>${COLUMNS.map(([name]) => html`<th scope="col" class="number">${name}</th>`)}${priced && html`<th scope="col" class="number">Cost</th><th scope="col" class="number">Cost per right answer</th>`}</tr></thead>
      <tbody>${data.map((run) => html`<tr key=${run.run}><th scope="row"><a href=${href("samples", { run: run.run, sort: "seconds", desc: "1" })}>${visible(label(run.run))}</a></th>${COLUMNS.map(([, value]) => html`<td class="number">${value(run)}</td>`)}
        ${priced && html`<td class="number">$${number(costOf(run, prices))}</td><td class="number">${run.right ? `$${number(costOf(run, prices) / run.right)}` : "–"}</td>`}</tr>`)}</tbody></table></div>
      <p class="note">Times are those that the samples recorded; in a batch, the time of an answer includes that of the others beside it. A percentile is the time that this share of answers does not exceed. Tokens are those of all requests of a sample: of multiple choice, of every choice. Rates are computed requests divided by the time that the model computed.</p>
      <div class="charts">${data.map((run) => html`<${Histogram} bins=${run.histogram} label=${label(run.run)} run=${run.run} />`)}</div>
      <${Answer} of=${scores}>${(found) => html`<${Charts} charts=${costCharts(data, found, prices, label)} />`}</${Answer}>`}</${Answer}>
    ${stress.map((check) => html`<${Stress} key=${check.uid} uid=${check.uid} title=${`stress on ${check.tasks.join(", ")}, ${check.created.replace("T", " ")}`} version=${state.version} />`)}
    ${stress.length === 0 && html`<p class="note">Latency and throughput against concurrency: <code>mill stress</code> measures them.</p>`}`;
};
