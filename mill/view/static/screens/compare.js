// Two runs: what became right or wrong, whether that is noise, and the pairs behind every number.
import { counted, href, html, listVersion, number, percent, pValue, setParams, useApi, usePages, visible } from "../lib.js";
import { filled, offline } from "../api.js";
import { Answer, Choice, Interval, pairLabels, Search, ShowMore, SortHeader, Status } from "../parts.js";

const PAIR_FILTERS = ["a", "b", "task", "category", "cell", "changed", "metric", "margin", "q", "sort", "desc"];
export const pairFilterOf = (params) => Object.fromEntries(filled(Object.fromEntries(PAIR_FILTERS.map((name) => [name, params[name]]))));
export const CELLS = { both_right: "both right", regression: "regression", improvement: "improvement", both_wrong: "both wrong", other: "graded or without a score" };
const MARGINS = [0, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2];

const CellButton = ({ name, data, params }) => {
  const on = params.cell === name;
  return html`<button class=${`cell-button k-${name}`} aria-pressed=${on} onClick=${() => setParams({ cell: on ? "" : name, after: "" })}>
    <b>${number(data.cells[name])}</b> ${CELLS[name]}</button>`;
};

const Table = ({ data, labels, params }) => html`<table class="two-by-two"><caption>${number(data.n)} pairs; a cell is a filter</caption>
  <thead><tr><td></td><th scope="col">${visible(labels[1])} right</th><th scope="col">${visible(labels[1])} wrong</th></tr></thead>
  <tbody><tr><th scope="row">${visible(labels[0])} right</th><td><${CellButton} name="both_right" data=${data} params=${params} /></td><td><${CellButton} name="regression" data=${data} params=${params} /></td></tr>
  <tr><th scope="row">${visible(labels[0])} wrong</th><td><${CellButton} name="improvement" data=${data} params=${params} /></td><td><${CellButton} name="both_wrong" data=${data} params=${params} /></td></tr></tbody></table>
  ${data.cells.other > 0 && html`<p><${CellButton} name="other" data=${data} params=${params} /></p>`}`;

const Margin = ({ value, noMargin, above, flips }) => {
  const at = Math.max(0, MARGINS.findIndex((margin) => margin >= (Number(value) || 0)));
  return html`<label class="slider">Hide near-ties below a margin of <output>${MARGINS[at]} nats</output>
    <input type="range" min="0" max=${MARGINS.length - 1} step="1" value=${at} aria-valuetext=${`${MARGINS[at]} nats`} onInput=${(event) => setParams({ margin: MARGINS[event.target.value] || "" })} />
    ${value ? html`<small>${number(above.regression + above.improvement)} of ${counted(flips, "answer")} that became right or wrong stay${above.regression + above.improvement === 1 ? "s" : ""} in the list below; the tests are over all pairs</small>` : ""}
    ${noMargin > 0 && html`<small>${counted(noMargin, "changed pair")} without a known margin stay${noMargin === 1 ? "s" : ""}</small>`}</label>`;
};

const groupKeys = { category: (one) => `${one.task}/${one.category}`, n: (one) => one.n, lost: (one) => Math.abs((one.lost ?? one.scores?.[2])?.value ?? 0), p: (one) => -(one.p_corrected ?? 2), changed: (one) => one.changed / one.n };

const Groups = ({ data, params }) => {
  if (data.groups.length < 2) return null;
  const key = groupKeys[params.by || "lost"] || groupKeys.lost;
  const rows = [...data.groups].sort((x, y) => (key(x) < key(y) ? 1 : key(x) > key(y) ? -1 : 0));
  const Header = ({ name, children }) => html`<th scope="col" class=${name === "category" ? "" : "number"} aria-sort=${(params.by || "lost") === name ? "descending" : "none"}><button class="sort" onClick=${() => setParams({ by: name })}>${children}</button></th>`;
  return html`<h2>Tasks and categories</h2><div class="scroll wide"><table class="list"><thead><tr>
    <${Header} name="category">Task and category</${Header}><${Header} name="n">Pairs</${Header}><${Header} name="changed">Texts changed</${Header}><th scope="col" class="number">Worse / better</th><${Header} name="lost">Lost</${Header}><${Header} name="p">p, corrected</${Header}></tr></thead>
    <tbody>${rows.slice(0, 200).map((one) => html`<tr key=${`${one.task}/${one.category}`}><th scope="row"><a href=${href("compare", { ...pairFilterOf(params), task: one.task, category: one.category })}>${visible(one.task)}${one.category ? ` / ${visible(one.category)}` : ""}</a></th>
      <td class="number">${number(one.n)}</td><td class="number">${percent(one.changed / one.n)}</td><td class="number">${number(one.cells.regression)} / ${number(one.cells.improvement)}</td>
      <td class="number">${one.lost ? html`${percent(one.lost.value)}<small>${percent(one.lost.low)} to ${percent(one.lost.high)}</small><${Interval} ...${one.lost} from=${-1} to=${1} title=${`${percent(one.lost.low)} to ${percent(one.lost.high)}`} />` : one.scores ? html`${number(one.scores[2].value)}<small>${number(one.scores[2].low)} to ${number(one.scores[2].high)}</small>` : "–"}</td>
      <td class="number">${pValue(one.p_corrected)}<small>p ${pValue(one.p)}</small></td></tr>`)}</tbody></table></div>
    <p class="note">p: McNemar's exact test, of graded scores the paired t-test; corrected by Holm's method for ${data.groups.length} categories.${rows.length > 200 ? ` The first 200 of ${rows.length}.` : ""}</p>`;
};

const Pairs = ({ params, state, labels }) => {
  const filter = pairFilterOf(params);
  const answer = usePages("pairs", filter, listVersion(state, params.q));
  const sorting = { sort: params.sort, desc: params.desc };
  return html`<${Answer} of=${answer}>${(data) => html`<p class="note" role="status">${counted(data.total, "pair")}</p>
      ${data.total > 0 && html`<div class="scroll wide"><table class="list"><caption class="hidden">Pairs</caption><thead><tr><th scope="col">Sample</th>
        <${SortHeader} column="category" ...${sorting}>Task</${SortHeader}><${SortHeader} column="cell" ...${sorting}>Result</${SortHeader}><th scope="col">Answers</th>
        <${SortHeader} column="difference" numeric ...${sorting}>Difference</${SortHeader}><${SortHeader} column="margin" numeric ...${sorting}>Margin</${SortHeader}><th scope="col">${visible(labels[0])}</th><th scope="col">${visible(labels[1])}</th></tr></thead>
        <tbody>${answer.list.rows.map((row) => html`<tr key=${`${row.task}/${row.id}`}><th scope="row"><a href=${href("pair", { ...filter, t: row.task, id: row.id })}>${visible(row.id)}</a></th>
          <td>${visible(row.task)}${row.category && html`<small>${visible(row.category)}</small>`}</td>
          <td><span class=${`tag k-${row.cell}`}>${CELLS[row.cell]}</span>${row.statuses.includes("failed") && html` <${Status} name="failed" />`}</td>
          <td>${row.flipped ? "answer changed" : row.changed ? "text changed" : "same"}${row.other_prompt ? ", other prompt" : ""}</td>
          <td class="number">${row.values[0] != null && row.values[1] != null ? number(row.values[1] - row.values[0]) : "–"}</td><td class="number">${number(row.margin)}</td><td class="excerpt">${visible(row.responses[0])}</td><td class="excerpt">${visible(row.responses[1])}</td></tr>`)}</tbody></table></div>`}
      <${ShowMore} list=${answer.list} />`}</${Answer}>`;
};

export const Compare = ({ params, state }) => {
  const runs = state.runs.map((run) => [run.uid, run.label]);
  const labels = pairLabels(state, params.a, params.b);
  const ready = params.a && params.b && params.a !== params.b;
  const { cell, changed, q, sort, desc, ...summary } = pairFilterOf(params);
  const answer = useApi(ready ? "compare" : null, summary, state.version);
  const tasks = (state.runs.find((run) => run.uid === params.a)?.tasks || []).filter((task) => state.runs.find((run) => run.uid === params.b)?.tasks.includes(task));
  return html`<h1>Compare</h1>
    <div class="filters"><${Choice} label="Baseline" all="choose" value=${params.a} options=${runs} onChange=${(a) => setParams({ a })} />
      <${Choice} label="with" all="choose" value=${params.b} options=${runs} onChange=${(b) => setParams({ b })} />
      ${!offline && answer.data?.metrics?.length > 1 && html`<${Choice} label="by" all="each task's first metric" value=${params.metric} options=${answer.data.metrics} onChange=${(metric) => setParams({ metric })} />`}
      ${ready && html`<button onClick=${() => setParams({ a: params.b, b: params.a })}>Swap</button> <a href=${href("tokens", { a: params.a, b: params.b })}>Worst tokens</a>`}</div>
    ${!ready && html`<p class="note">${params.a && params.a === params.b ? "A run is not compared with itself: choose another one." : "Choose two runs."}</p>`}
    ${ready && html`<${Answer} of=${answer}>${(data) => html`
      ${data.sentences.length > 0 && html`<p class="sentences"><b>${visible(data.sentences[0])}</b> ${visible(data.sentences.slice(1).join(" "))}</p>`}
      <div class="columns"><div><${Table} data=${data} labels=${labels} params=${params} /></div>
        <div><dl class="facts-list"><dt>Accuracy</dt><dd>${data.accuracy ? html`${percent(data.accuracy[0])} → ${percent(data.accuracy[1])}` : "–"}</dd>
          <dt>Accuracy lost</dt><dd>${data.lost ? html`${percent(data.lost.value)} (${percent(data.lost.low)} to ${percent(data.lost.high)})` : "–"}</dd>
          ${data.scores && html`<dt>${visible(data.score_name)}</dt><dd>${number(data.scores[0].value)} → ${number(data.scores[1].value)}</dd>
          <dt>Lost</dt><dd>${number(data.scores[2].value)} (${number(data.scores[2].low)} to ${number(data.scores[2].high)}), p ${pValue(data.score_p)}</dd>`}
          ${data.accuracy && html`<dt>McNemar's p</dt><dd>${pValue(data.p)}</dd>`}<dt>Changed answers</dt><dd>${number(data.flipped)} of ${number(data.n)}</dd><dt>Changed texts</dt><dd>${number(data.changed)} of ${number(data.n)}</dd>
          ${data.unpaired > 0 && html`<dt>Not compared</dt><dd>${counted(data.unpaired, "sample")} that one run does not have, or has no answer to</dd>`}
          ${data.other_prompt > 0 && html`<dt>Other prompts</dt><dd class="bad">${counted(data.other_prompt, "pair")}: the same data, rendered with other settings</dd>`}</dl>
        <${Margin} value=${params.margin} noMargin=${data.no_margin} above=${data.above} flips=${data.cells.regression + data.cells.improvement} /></div></div>
      <${Groups} data=${data} params=${params} />`}</${Answer}>
      <h2>Pairs</h2>${answer.data?.held < answer.data?.n && html`<p class="note warning">This page holds ${number(answer.data.held)} of ${counted(answer.data.n, "pair")}; the figures above are over all.</p>`}<div class="filters" role="search">
        <${Choice} label="Task" all="all" value=${params.task} options=${tasks.map((task) => [task, task])} onChange=${(task) => setParams({ task, category: null })} />
        <${Choice} label="Result" all="all" value=${params.cell} options=${Object.entries(CELLS)} onChange=${(value) => setParams({ cell: value })} />
        <label><input type="checkbox" checked=${!!params.changed} onChange=${(event) => setParams({ changed: event.target.checked ? "1" : "" })} /> changed texts</label>
        <${Search} value=${params.q} onChange=${(value) => setParams({ q: value })} />
        ${params.category != null && html`<span class="tag">category ${visible(params.category || "(none)")} <button class="link" aria-label="Show all categories" onClick=${() => setParams({ category: null })}>×</button></span>`}</div>
      <${Pairs} params=${params} state=${state} labels=${labels} />`}`;
};
