// The samples of a run: a table with filters, in pages.
import { counted, duration, href, html, listVersion, number, setParams, usePages, visible, words } from "../lib.js";
import { filled } from "../api.js";
import { About, Answer, Choice, Search, ShowMore, SortHeader, Status } from "../parts.js";

const STATUSES = ["right", "wrong", "graded", "failed", "unscored", "pending"];
const FLAGS = [["truncated_prompt", "truncated prompt"], ["token_limit", "token limit reached"], ["empty", "empty answer"], ["filtered", "withheld by a filter"], ["truncated_reasoning", "truncated reasoning"], ["max_rounds_reached", "limit of rounds reached"], ["logprobs", "with log-probabilities"]];
const FILTERS = ["run", "task", "category", "status", "flag", "q", "sort", "desc"];
export const filterOf = (params) => Object.fromEntries(filled(Object.fromEntries(FILTERS.map((name) => [name, params[name]]))));

const Rows = ({ rows, params, metrics }) => rows.map((row) => html`<tr key=${`${row.task}/${row.id}`}>
  <th scope="row"><a href=${href("sample", { ...filterOf(params), t: row.task, id: row.id })}>${visible(row.id)}</a></th>
  <td>${visible(row.task)}${row.category && html`<small>${visible(row.category)}</small>`}</td>
  <td><${Status} name=${row.status} />${row.flags.filter((flag) => flag !== "logprobs").map((flag) => html` <span class="tag">${words(flag)}</span>`)}</td>
  ${metrics.map((name) => html`<td class="number">${number(row.values[name])}</td>`)}
  <td class="number">${number(row.prompt_tokens)}</td><td class="number">${number(row.output_tokens)}</td>
  <td class="number">${row.seconds == null ? "–" : duration(row.seconds)}</td>
  <td class="number">${number(row.margin)}</td><td class="excerpt">${visible(row.response)}</td><td class="excerpt">${visible(row.target)}</td></tr>`);

export const Samples = ({ params, state }) => {
  const run = params.run || state.runs.find((one) => !one.of_check)?.uid;
  const filter = { ...filterOf(params), run };
  const answer = usePages(run ? "samples" : null, filter, listVersion(state, params.q));
  if (!run) return html`<h1>Samples</h1><p class="note">No run is here yet.</p>`;
  const current = state.runs.find((one) => one.uid === run);
  const change = (changes) => setParams({ run, ...changes });
  const sorting = { sort: params.sort, desc: params.desc };
  return html`<h1>Samples</h1>
    <div class="filters" role="search">
      <${Choice} label="Run" value=${run} options=${state.runs.map((one) => [one.uid, one.label])} onChange=${(uid) => change({ run: uid, task: "", category: null })} />
      <${Choice} label="Task" all="all" value=${params.task} options=${(current?.tasks || []).map((task) => [task, task])} onChange=${(task) => change({ task, category: null })} />
      <${Choice} label="Result" all="all" value=${params.status} options=${STATUSES} onChange=${(status) => change({ status })} />
      <${Choice} label="Only" all="all" value=${params.flag} options=${FLAGS} onChange=${(flag) => change({ flag })} />
      <${Search} value=${params.q} onChange=${(q) => change({ q })} />
      ${params.category != null && html`<span class="tag">category ${visible(params.category || "(none)")} <button class="link" aria-label="Show all categories" onClick=${() => change({ category: null })}>×</button></span>`}
    </div>
    <${About} run=${run} version=${state.version} />
    <${Answer} of=${answer}>${(data) => {
      const { rows } = answer.list;
      const metrics = [...new Set(rows.flatMap((row) => Object.keys(row.values)))].slice(0, 12);
      const column = (name) => { const lists = Object.values(data.metrics); const at = lists[0]?.indexOf(name); return lists.every((list) => list.indexOf(name) === at) ? `v${at}` : null; };
      return html`<p class="note" role="status">${counted(data.total, "sample")}${params.q && state.search.done < state.search.total ? `, of those searched so far (${Math.floor((100 * state.search.done) / state.search.total)} %)` : ""}</p>
        ${data.total === 0 ? html`<p class="note">No sample fits these filters.</p>` : html`<div class="scroll wide"><table class="list samples-table"><caption class="hidden">Samples</caption><thead><tr>
          <${SortHeader} column="id" ...${sorting}>Sample</${SortHeader}><${SortHeader} column="category" ...${sorting}>Task</${SortHeader}><${SortHeader} column="status" ...${sorting}>Result</${SortHeader}>
          ${metrics.map((name) => (column(name) ? html`<${SortHeader} column=${column(name)} numeric ...${sorting}>${words(name)}</${SortHeader}>` : html`<th scope="col" class="number">${words(name)}</th>`))}
          <${SortHeader} column="prompt_tokens" numeric ...${sorting}>Prompt tokens</${SortHeader}><${SortHeader} column="output_tokens" numeric ...${sorting}>Output tokens</${SortHeader}>
          <${SortHeader} column="seconds" numeric ...${sorting}>Time</${SortHeader}><${SortHeader} column="margin" numeric ...${sorting}>Margin</${SortHeader}>
          <th scope="col">Response</th><th scope="col">Target</th></tr></thead><tbody><${Rows} rows=${rows} params=${{ ...params, run }} metrics=${metrics} /></tbody></table></div>
          <${ShowMore} list=${answer.list} />`}`;
    }}</${Answer}>`;
};
