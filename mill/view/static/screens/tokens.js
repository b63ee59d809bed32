// Tokens of one sample, or the worst of all samples: by log-probability of a run, or by KL between two.
import { counted, href, html, number, setParams, useApi, visible } from "../lib.js";
import { Answer, Choice, Cut, pairLabels } from "../parts.js";
import { Alternatives, TokenText } from "../sample_parts.js";
import { useState } from "../vendor/preact.js";

const NONE = "No log-probabilities are recorded. Generation tasks record them with --gen_kwargs logprobs=5; `mill compare` records them for all texts.";

// Whole distributions are recorded where both engines have them.
const bound = (rows) => (rows.every((row) => row.exact || typeof row.kl !== "number") ? "" : " KL is a lower bound, from the alternatives that both runs recorded.");

const Worst = ({ params, state, labels }) => {
  const [open, setOpen] = useState(null);
  const answer = useApi("worst", { a: params.a, b: params.b, task: params.b ? "" : params.task }, state.version);
  const link = (row) => href("tokens", { a: params.a, b: params.b, t: row.task, id: row.sample, at: row.position });
  return html`<h2>Worst tokens</h2><${Answer} of=${answer}>${(data) => html`
    <p class="note">${params.b ? (data.forced ? "Largest KL over texts that both runs scored" : "Largest KL over the runs' own texts, as far as they are the same") : "Lowest log-probability, the worst token of each sample"}; ${data.texts < data.of ? `the first ${number(data.texts)} of ${counted(data.of, "text")}` : counted(data.of, "text")}.${params.b ? bound(data.rows) : ""}</p>
    ${data.rows.length === 0 ? html`<p class="note">${NONE}</p>` : html`<div class="scroll wide"><table class="list"><thead><tr><th scope="col">Token</th><th scope="col">Sample</th><th scope="col" class="number">Position</th>${params.b && html`<th scope="col" class="number">KL</th>`}<th scope="col" class="number">Log-probability</th>${params.b && html`<th scope="col" class="number">${visible(labels[1])}</th>`}</tr></thead>
      <tbody>${data.rows.map((row, at) => html`<tr><td><button class="link" aria-expanded=${open === at} onClick=${() => setOpen(open === at ? null : at)}><span class="same">…${visible(row.before)}</span><mark>${visible(row.text)}</mark></button>
        ${open === at && html`<${Alternatives} token=${row} labels=${labels} />`}</td>
        <td><a href=${link(row)}>${visible(row.task)} ${visible(row.sample)}</a></td><td class="number">${number(row.position)}</td>${params.b && html`<td class="number">${number(row.kl)}</td>`}<td class="number">${number(row.logprob)}</td>${params.b && html`<td class="number">${number(row.other)}</td>`}</tr>`)}</tbody></table></div>`}`}</${Answer}>`;
};

const One = ({ params, state, labels }) => {
  const answer = useApi("tokens", { a: params.a, b: params.b, t: params.t, id: params.id }, state.version);
  const by = params.by || (params.b ? "kl" : "logprob");
  return html`<p class="crumbs"><a href=${href("tokens", { a: params.a, b: params.b })}>worst tokens</a> › <a href=${params.b ? href("pair", { a: params.a, b: params.b, t: params.t, id: params.id }) : href("sample", { run: params.a, t: params.t, id: params.id })}>${visible(params.t)} ${visible(params.id)}</a></p>
    ${params.b && html`<div class="filters"><${Choice} label="Tint by" value=${by} options=${[["kl", "KL"], ["logprob", "log-probability"]]} onChange=${(value) => setParams({ by: value })} /></div>`}
    <${Answer} of=${answer}>${(data) => (data.tokens.rows.length === 0 ? html`<p class="note">${NONE}</p>` : html`
      ${params.b && html`<p class="note">${data.forced ? "The baseline's text, scored by both runs." : "The baseline's own text, up to the token at which the runs diverge."}${bound(data.tokens.rows)}</p>`}
      <${Cut} cut=${data.tokens.cut} /><${TokenText} tokens=${data.tokens.rows} by=${by} labels=${labels} at=${params.at ? Number(params.at) - 1 : null} />`)}</${Answer}>`;
};

export const Tokens = ({ params, state }) => {
  const a = params.a || state.runs.find((run) => !run.of_check)?.uid;
  if (!a) return html`<h1>Tokens</h1><p class="note">No run is here yet.</p>`;
  const runs = state.runs.map((run) => [run.uid, run.label]);
  const labels = pairLabels(state, a, params.b);
  const given = { ...params, a, b: params.b === a ? "" : params.b };
  const Screen = params.id ? One : Worst;
  return html`<h1>Tokens</h1><div class="filters">
      <${Choice} label="Run" value=${a} options=${runs} onChange=${(uid) => setParams({ a: uid, t: "", id: "", at: "" })} />
      <${Choice} label="against" all="none" value=${given.b} options=${runs.filter(([uid]) => uid !== a)} onChange=${(uid) => setParams({ a, b: uid, t: "", id: "", at: "" })} /></div>
    <${Screen} key=${`${a}/${given.b}`} params=${given} state=${state} labels=${labels} />`;
};
