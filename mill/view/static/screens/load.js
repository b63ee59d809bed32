// Latency, throughput, tokens and cost: of runs, and of stress checks against the number of requests in flight.
import { counted, duration, href, html, number, setParams, source, useApi, visible } from "../lib.js";
import { Answer, Chart, Choice } from "../parts.js";
import { newest, RunPicker } from "./run_picker.js";

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
  return html`<h2><a href=${href("checks", { check: uid })}>${visible(title)}</a></h2><${Answer} of=${answer}>${(data) => html`<div class="charts">${data.charts.map((svg) => html`<${Chart} svg=${svg} />`)}</div>`}</${Answer}>`;
};

export const Load = ({ params, state }) => {
  const known = state.runs.filter((run) => !run.of_check);
  const chosen = (params.runs || "").split(",").filter((uid) => state.runs.some((run) => run.uid === uid));
  const runs = chosen.length ? chosen : newest(known, 6);
  const tasks = [...new Set(state.runs.filter((run) => runs.includes(run.uid)).flatMap((run) => run.tasks))];
  const answer = useApi("load", { runs: runs.join(","), task: params.task, price_in: params.price_in, price_out: params.price_out }, state.version);
  const stress = state.checks.filter((check) => check.command === "stress");
  const priced = params.price_in || params.price_out;
  const label = (uid) => state.runs.find((run) => run.uid === uid)?.label;
  const Price = ({ name, text }) => html`<label>${text}<input type="number" min="0" step="any" value=${params[name] || ""} placeholder="0.15" onChange=${(event) => setParams({ [name]: event.target.value })} /></label>`;
  return html`<h1>Load and cost</h1><${RunPicker} state=${state} chosen=${runs} />
    <div class="filters">${tasks.length > 1 && !source.isStatic && html`<${Choice} label="Task" all="all" value=${params.task} options=${tasks.map((task) => [task, task])} onChange=${(task) => setParams({ task })} />`}
      <span>Price of a million tokens, in dollars:</span><${Price} name="price_in" text="prompt" /><${Price} name="price_out" text="output" /></div>
    <${Answer} of=${answer}>${(data) => html`<div class="scroll wide"><table class="list"><caption class="hidden">Latency and cost of runs</caption><thead><tr><th scope="col">Run</th>${COLUMNS.map(([name]) => html`<th scope="col" class="number">${name}</th>`)}${priced && html`<th scope="col" class="number">Cost</th><th scope="col" class="number">Cost per right answer</th>`}</tr></thead>
      <tbody>${data.runs.map((run) => html`<tr key=${run.run}><th scope="row"><a href=${href("samples", { run: run.run, sort: "seconds", desc: "1" })}>${visible(label(run.run))}</a></th>${COLUMNS.map(([, value]) => html`<td class="number">${value(run)}</td>`)}
        ${priced && html`<td class="number">$${number(run.cost)}</td><td class="number">${run.cost_per_right == null ? "–" : `$${number(run.cost_per_right)}`}</td>`}</tr>`)}</tbody></table></div>
      <p class="note">Times are those that the samples recorded; in a batch, the time of an answer includes that of the others beside it. A percentile is the time that this share of answers does not exceed. Tokens are those of all requests of a sample: of multiple choice, of every choice. Rates are computed requests divided by the time that the model computed.</p>
      <div class="charts">${data.runs.map((run) => html`<${Histogram} bins=${run.histogram} label=${label(run.run)} run=${run.run} />`)}</div>`}</${Answer}>
    ${stress.map((check) => html`<${Stress} key=${check.uid} uid=${check.uid} title=${`stress on ${check.tasks.join(", ")}, ${check.created.replace("T", " ")}`} version=${state.version} />`)}
    ${stress.length === 0 && html`<p class="note">Latency and throughput against concurrency: <code>mill stress</code> measures them.</p>`}`;
};
