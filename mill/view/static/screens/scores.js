// Scores of the chosen runs side by side: tasks and benchmarks with their intervals, what was decided on them, and the
// categories and calibration of a task.
import { href, html, number, setParams, useApi, visible, words } from "../lib.js";
import { About, Answer, Choice, Interval, newest, RunPicker, Search, SortHeader } from "../parts.js";
import { Charts } from "../charts.js";
import { useState } from "../vendor/preact.js";

const MOST_SCORES = 300; // rows shown at once

const range = (estimates) => {
  const values = estimates.flatMap((one) => [one.low, one.value, one.high]).filter((value) => typeof value === "number");
  return values.every((value) => value >= 0 && value <= 1) ? [0, 1] : [Math.min(0, ...values), Math.max(...values)];
};
const described = (one) => `${number(one.value)}${one.low != null ? ` (${number(one.low)} to ${number(one.high)})` : ""}, n ${number(one.n)}`;

const Cell = ({ one, scale, colour, link }) => {
  if (!one) return html`<td class="number">–</td>`;
  return html`<td class="number"><a href=${link}>${number(one.value)}</a>
    ${one.low != null && html`<small>${number(one.low)} to ${number(one.high)}</small>`}
    <${Interval} ...${one} from=${scale[0]} to=${scale[1]} colour=${colour} title=${described(one)} />
    <small>n ${number(one.n)}${one.total > one.n + (one.errors || 0) ? ` of ${number(one.total)}` : ""}${one.errors ? html`, <span class="bad">${number(one.errors)} failed</span>` : ""}</small></td>`;
};

const difference = (row, runs) => {
  const [a, b] = runs.map((uid) => row.cells[uid]?.value);
  return typeof a === "number" && typeof b === "number" ? b - a : null;
};

// The normal approximation for two runs on the same samples without their pairing: Compare has the paired test.
const deviation = (row, runs) => {
  const [a, b] = runs.map((uid) => row.cells[uid]);
  const delta = difference(row, runs);
  return delta != null && a.stderr != null && b.stderr != null && (a.stderr || b.stderr) ? Math.abs(delta) / Math.hypot(a.stderr, b.stderr) : null;
};

const Calibration = ({ task, runs, state, version }) => {
  const answer = useApi("calibration", runs.map((run) => ({ run, task })), version);
  return html`<${Answer} of=${answer}>${(data) => {
    const charts = data.map(({ run, chart }) => chart && { ...chart, title: `${state.runs.find((one) => one.uid === run)?.label}: ${chart.title}` }).filter(Boolean);
    return charts.length > 0 && html`<h2>Calibration of ${visible(task)}</h2><${Charts} charts=${charts} />`;
  }}</${Answer}>`;
};

const Categories = ({ task, runs, state, version }) => {
  const having = runs.filter((uid) => state.runs.find((run) => run.uid === uid)?.tasks.includes(task));
  const answer = useApi("categories", having.map((run) => ({ run, task })), version);
  return html`<${Answer} of=${answer}>${(data) => {
    const lists = data.map((one) => one.rows);
    const names = [...new Set(lists.flatMap((list) => list.map((one) => one.category)))];
    const of = Object.fromEntries(data.map(({ run, rows: list }) => [run, Object.fromEntries(list.map((one) => [one.category, one]))]));
    const scale = range(lists.flatMap((list) => list.map((one) => one.estimate).filter(Boolean)));
    return html`<h2>Categories of ${visible(task)} <a class="close" href=${href("scores", { runs: runs.join(",") })}>close</a></h2>
      ${names.length < 2 && html`<p class="note">This task has no categories.</p>`}
      <div class="scroll wide"><table class="list"><thead><tr><th scope="col">Category</th>${runs.map((uid) => html`<th scope="col" class="number">${visible(state.runs.find((run) => run.uid === uid)?.label)}</th>`)}</tr></thead>
      <tbody>${names.map((name) => html`<tr key=${name}><th scope="row">${visible(name || "(none)")}</th>
        ${runs.map((uid, column) => {
          const one = of[uid]?.[name];
          return html`<${Cell} one=${one?.estimate && { ...one.estimate, errors: one.failed }} scale=${scale} colour=${column} link=${href("samples", { run: uid, task, category: name })} />`;
        })}</tr>`)}</tbody></table></div>
      <${Calibration} task=${task} runs=${having} state=${state} version=${version} />`;
  }}</${Answer}>`;
};

// The rows of several runs as one table: a cell for each run that has the metric.
const mergedScores = (answers) => {
  const rows = new Map();
  for (const { run, scores } of answers) {
    for (const { cell, ...row } of scores) {
      const key = `${row.kind}/${row.name}/${row.metric}`;
      if (!rows.has(key)) rows.set(key, { ...row, cells: {} });
      rows.get(key).cells[run] = cell;
    }
  }
  return [...rows.values()];
};

export const Scores = ({ params, state }) => {
  const known = state.runs.filter((run) => !run.of_check);
  const chosen = (params.runs || "").split(",").filter((uid) => state.runs.some((run) => run.uid === uid));
  const runs = chosen.length ? chosen : newest(known, 8);
  const [most, setMost] = useState(MOST_SCORES);
  const answer = useApi("run", runs.map((run) => ({ run })), state.version);
  const label = (uid) => state.runs.find((run) => run.uid === uid)?.label;
  const wanted = (params.name || "").toLowerCase();
  return html`<h1>Scores</h1>
    <${RunPicker} state=${state} chosen=${runs} />
    <div class="filters" role="search">
      <${Search} label="Filter" placeholder="task or metric" value=${params.name} onChange=${(name) => setParams({ name })} />
      <${Choice} label="Show" all="tasks and benchmarks" value=${params.kind} options=${[["benchmark", "benchmarks"], ["task", "tasks"]]} onChange=${(kind) => setParams({ kind })} />
    </div>
    ${runs.length === 1 && html`<${About} run=${runs[0]} version=${state.version} />`}
    <${Answer} of=${answer}>${(data) => {
      const everything = mergedScores(data);
      const rows = everything.filter((row) => (!params.kind || row.kind === params.kind) && `${row.name} ${row.metric} ${row.benchmark}`.toLowerCase().includes(wanted));
      const two = runs.length === 2;
      const by = { name: (row) => row.name, difference: (row) => Math.abs(difference(row, runs) ?? -1), deviation: (row) => deviation(row, runs) ?? -1 };
      runs.forEach((uid) => { by[uid] = (row) => row.cells[uid]?.value ?? -Infinity; });
      const key = by[params.sort];
      if (key) rows.sort((x, y) => (key(x) < key(y) ? -1 : key(x) > key(y) ? 1 : 0) * (params.desc ? -1 : 1));
      const scales = {};
      for (const row of everything) (scales[row.metric] ||= []).push(...Object.values(row.cells));
      const sorting = { sort: params.sort, desc: params.desc };
      return html`${rows.length === 0 && html`<p class="note">No scores: the chosen runs are not finished, or the filter hides them.</p>`}
        ${rows.length > 0 && html`<div class="scroll wide"><table class="list"><caption class="hidden">Scores</caption><thead><tr>
          <${SortHeader} column="name" ...${sorting}>Task</${SortHeader}>
          ${runs.map((uid) => html`<${SortHeader} column=${uid} numeric ...${sorting}>${visible(label(uid))}</${SortHeader}>`)}
          ${two && html`<${SortHeader} column="difference" numeric ...${sorting}>Difference</${SortHeader}><${SortHeader} column="deviation" numeric ...${sorting}>In standard errors</${SortHeader}>`}
        </tr></thead><tbody>${rows.slice(0, most).map((row) => html`<tr key=${`${row.kind}/${row.name}/${row.metric}`} class=${row.kind}>
          <th scope="row">${row.kind === "task" ? html`<a href=${href("scores", { runs: runs.join(","), task: row.name })}>${visible(row.name)}</a>` : html`${visible(row.name)} <span class="tag">mean</span>`}
            <small>${words(row.metric)}${row.n_shots ? `, ${row.n_shots}-shot` : ""}</small></th>
          ${runs.map((uid, column) => html`<${Cell} one=${row.cells[uid]} colour=${column} scale=${range(scales[row.metric])} link=${href("samples", { run: uid, task: row.kind === "task" ? row.name : "" })} />`)}
          ${two && html`<td class="number">${difference(row, runs) == null ? "–" : html`<a href=${href("compare", { a: runs[0], b: runs[1], task: row.kind === "task" ? row.name : "" })}>${difference(row, runs) > 0 ? "+" : ""}${number(difference(row, runs))}</a>`}</td>
            <td class="number">${number(deviation(row, runs))}</td>`}</tr>`)}</tbody></table></div>
          ${rows.length > most && html`<p><button onClick=${() => setMost(most + MOST_SCORES)}>Show more</button> <span class="note">${number(most)} of ${number(rows.length)} rows</span></p>`}
          <${Charts} charts=${[...new Map(data.flatMap((one) => one.decisions).map((chart) => [chart.title, chart])).values()]} />
          ${two && html`<p class="note">Standard errors as if the two runs had other samples; <a href=${href("compare", { a: runs[0], b: runs[1] })}>Compare</a> pairs them, which shows smaller changes.</p>`}`}
        ${params.task && html`<${Categories} task=${params.task} runs=${runs} state=${state} version=${state.version} />`}`;
    }}</${Answer}>`;
};
