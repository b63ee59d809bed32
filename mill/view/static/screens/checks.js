// Saved checks: verdict, rules with their outcomes, metrics, charts, the samples that changed, and one metric over time.
import { counted, href, html, number, setParams, useApi, visible, words } from "../lib.js";
import { address, offline } from "../api.js";
import { Answer, Choice, Copy, Facts, Search } from "../parts.js";
import { Choices } from "../sample_parts.js";
import { Charts } from "../charts.js";
import { useEffect, useRef, useState } from "../vendor/preact.js";

const MARKS = { kept: "✓ kept", broken: "✗ broken", inconclusive: "? inconclusive" };
const when = (time) => (time || "").replace("T", " ").replace("Z", "");
const nameOf = (check) => (check.error ? check.name : `${check.command} on ${check.tasks.join(", ")}`);

const Rules = ({ params, outcomes }) => {
  const [fail, setFail] = useState(params.fail_on || "");
  const [require, setRequire] = useState(params.require || "");
  useEffect(() => { setFail(params.fail_on || ""); setRequire(params.require || ""); }, [params.fail_on, params.require]);
  const apply = (event) => { event.preventDefault(); setParams({ fail_on: fail.trim(), require: require.trim() }); };
  return html`<h3>Rules</h3><form class="filters" onSubmit=${apply}>
      <label>--fail_on<input value=${fail} onInput=${(event) => setFail(event.target.value)} placeholder="flip_rate>0.02" maxlength="500" /></label>
      <label>--require<input value=${require} onInput=${(event) => setRequire(event.target.value)} placeholder="acc_drop<0.01" maxlength="500" /></label><button>Apply</button></form>
    ${outcomes.length > 0 && html`<div class="scroll wide"><table class="list"><caption class="hidden">Outcomes of rules</caption><thead><tr><th scope="col">Rule</th><th scope="col">Model</th><th scope="col">Outcome</th><th scope="col">Why</th></tr></thead>
      <tbody>${outcomes.map((one) => html`<tr><th scope="row"><code>${one.option} ${visible(one.rule)}</code></th><td>${visible(one.variant)}</td><td><span class=${`tag rule-${one.status}`}>${MARKS[one.status]}</span></td><td>${visible(one.reason)}</td></tr>`)}</tbody></table></div>`}`;
};

const Metrics = ({ data }) => html`<h3>Metrics</h3><div class="scroll"><table class="list metrics"><thead><tr><th scope="col">Metric</th>${data.variants.map((one) => html`<th scope="col" class="number">${visible(one.label)}</th>`)}</tr></thead>
  <tbody>${data.groups.map((group) => html`<tr class="group"><th scope="colgroup" colspan=${data.variants.length + 1}>${group.name}</th></tr>
    ${group.rows.map((row) => html`<tr><th scope="row" title=${row.about}>${row.name ? html`<a href=${href("checks", { metric: row.name })}>${visible(row.title)}</a>` : visible(row.title)}</th>
      ${row.cells.map(([value, interval]) => html`<td class="number">${value}${interval && html`<small>${interval}</small>`}</td>`)}</tr>`)}`)}</tbody></table></div>`;

// Texts of models and files go into code blocks, where Markdown, HTML and @names have no effect; the fence is longer than any in them.
const ticks = (text, least) => "`".repeat(Math.max(least, ...(text.match(/`+/g) || []).map((run) => run.length + 1)));
const fence = (text) => `${ticks(text, 3)}text\n${text}\n${ticks(text, 3)}`;
const code = (text) => {
  const line = text.replace(/\s+/g, " ").trim() || " ";
  return line.includes("`") ? `${ticks(line, 1)} ${line} ${ticks(line, 1)}` : `\`${line}\``;
};
const issueOf = (check, row) => [
  `### ${row.kind}: ${code(`${row.task} · ${row.id} · ${row.variant}`)}`,
  `${code(`${nameOf(check)}, ${check.variants.map((one) => one.label).join(", ")}${check.against ? ` against ${check.baseline}` : ""}, ${check.created}`)}`,
  row.facts.join(" · "), "**prompt**", fence(row.prompt), row.gold != null && `gold: ${code(row.gold)}`,
  ...row.sides.flatMap((side) => [`**answer** ${code([side.name, side.extracted != null && `→ ${side.extracted}`, side.right != null && (side.right ? "right" : "wrong")].filter(Boolean).join(" "))}`, fence(side.error ?? side.text.join(""))]),
].filter(Boolean).join("\n\n") + "\n";

// A side of a changed answer: what both have is faint, and the first token that differs is marked and scrolled to.
const ChangedSide = ({ side }) => {
  const mark = useRef(null);
  useEffect(() => {
    const pre = mark.current?.closest("pre");
    if (pre) pre.scrollTop = mark.current.offsetTop - pre.clientHeight / 2;
  }, []);
  const [same, first, rest] = side.text;
  return html`<div class="side"><h4>${visible(side.name)}${side.extracted != null && html` → <code>${visible(side.extracted)}</code>`}${side.right != null && html` <span class=${`tag ${side.right ? "st-right" : "st-wrong"}`}>${side.right ? "right" : "wrong"}</span>`}</h4>
    ${side.error != null ? html`<p class="error">${visible(side.error)}</p>` : html`<pre tabindex="0" aria-label=${`answer of ${side.name}`}>${first == null ? visible(same) : html`<span class="same">${visible(same)}</span><mark ref=${mark}>${visible(first)}</mark>${visible(rest)}`}</pre>`}</div>`;
};

const ChangedChoices = ({ row }) => row.choices && html`<div class="columns">${row.sides.map((side, at) => html`<div><h4>${visible(side.name)}</h4>
  <${Choices} sample=${{ choices: row.choices.map(([text]) => text), choice_logprobs: row.choices.map(([, scores]) => scores[at]), chosen: side.text.join(""), target: row.gold }} /></div>`)}</div>`;

const Change = ({ check, row }) => {
  const [open, setOpen] = useState(false);
  return html`<details class="sample" onToggle=${(event) => setOpen(event.target.open)}>
    <summary><span class=${`tag k-${row.kind}`}>${row.kind}</span> ${visible(`${row.task} · ${row.id} · ${row.variant}`)}<span class="facts">${row.facts.join(" · ")}</span></summary>
    ${open && html`<h4>prompt</h4><pre class="prompt" tabindex="0" aria-label="prompt">${visible(row.prompt)}</pre>
      ${row.gold != null && html`<p class="note gold">gold: <code>${visible(row.gold)}</code></p>`}
      <div class="columns">${row.sides.map((side) => html`<${ChangedSide} side=${side} />`)}</div><${ChangedChoices} row=${row} />
      <p><${Copy} text=${issueOf(check, row)}>Copy as issue</${Copy}></p>`}</details>`;
};

const textsOf = (row) => [row.kind, row.task, row.id, row.variant, row.prompt, row.gold, ...row.facts, ...row.sides.flatMap((side) => [side.error, side.extracted, side.text.join("")])].join("\n").toLowerCase();

const Changes = ({ params, data }) => {
  const { rows, left_out, listed } = data.changes;
  if (!listed) return null;
  if (!rows.length) return html`<h3>What changed</h3><p class="note">No sample changed.</p>`;
  const values = (name) => [...new Set(rows.map((row) => row[name]))].sort().map((one) => [one, one]);
  const wanted = (params.q || "").trim().toLowerCase();
  const shown = rows.filter((row) => ["variant", "category", "kind"].every((name) => !params[name] || row[name] === params[name]) && (!wanted || textsOf(row).includes(wanted)));
  return html`<h3>What changed</h3><div class="filters" role="search">
      ${[["variant", "Variant"], ["category", "Category"], ["kind", "Kind"]].map(([name, label]) => values(name).length > 1 && html`<${Choice} label=${label} all="all" value=${params[name]} options=${values(name)} onChange=${(value) => setParams({ [name]: value || null })} />`)}
      <${Search} value=${params.q} onChange=${(q) => setParams({ q })} /><span class="note" role="status">${number(shown.length)} of ${counted(rows.length, "changed sample")}</span></div>
    ${shown.map((row) => html`<${Change} key=${`${row.task}/${row.id}/${row.variant}`} check=${data} row=${row} />`)}
    ${left_out > 0 && html`<p class="note">${number(left_out)} more changed samples are in check.json.</p>`}`;
};

const Check = ({ params, state }) => {
  const answer = useApi("check", { check: params.check, fail_on: params.fail_on, require: params.require }, state.version);
  const [last, setLast] = useState(null);
  useEffect(() => { if (answer.data) setLast(answer.data); }, [answer.data]);
  const known = answer.data || (last?.uid === params.check ? last : null);
  return html`<${Answer} of=${{ ...answer, data: known }}>${(data) => html`
    <h2>${visible(nameOf(data))}</h2>
    <p class="note">${when(data.created)}${data.baseline && html`, baseline ${visible(data.baseline)}`}${!offline && html` · <a href=${address(`report/check/${data.uid}`)} target="_blank" rel="noopener">This check as one file</a>`}</p>
    ${data.variants.map((one) => html`<p class="verdict">${visible(one.label)}: ${visible(one.verdict)}
      ${one.run && data.baseline_run && html` <a href=${href("compare", { a: data.baseline_run, b: one.run })}>Compare its samples</a>`}
      ${one.run && !data.baseline_run && html` <a href=${href("samples", { run: one.run })}>Its samples</a>`}</p>`)}
    ${data.about.map(([label, facts]) => html`<${Facts} label=${label} facts=${facts} />`)}
    ${!offline && html`<${Rules} params=${params} outcomes=${data.outcomes} />`}
    <${Metrics} data=${data} />
    ${data.warnings.map((text) => html`<p class="note warning">${visible(text)}</p>`)}
    ${data.variants.flatMap((one) => one.details.map((text) => html`<p class="note">${visible(one.label)}: ${visible(text)}</p>`))}
    <${Charts} charts=${data.charts} />
    <${Changes} params=${params} data=${data} />`}</${Answer}>`;
};

const Trend = ({ params, state }) => {
  const answer = useApi("trend", { metric: params.metric || "match_rate" }, state.version);
  return html`<h2>One metric over time</h2><${Answer} of=${answer}>${(data) => html`
    <div class="filters"><${Choice} label="Metric" value=${data.metric} options=${data.known} onChange=${(metric) => setParams({ metric })} /></div>
    ${data.chart ? html`<${Charts} charts=${[data.chart]} />` : html`<p class="note">No check has measured ${words(data.metric)}.</p>`}
    <div class="scroll wide"><table class="list"><thead><tr><th scope="col">Check</th><th scope="col">When</th><th scope="col" class="number">${words(data.metric)}</th></tr></thead>
      <tbody>${Object.entries(data.series).flatMap(([name, points]) => points.map((point) => html`<tr><th scope="row"><a href=${href("checks", { check: point.uid })}>${visible(name)}</a></th><td>${when(point.created)}</td><td class="number">${point.text}</td></tr>`))}</tbody></table></div>`}</${Answer}>`;
};

// All checks with their verdicts; also at the end of the list of runs.
export const CheckCards = ({ checks }) => html`<ul class="cards">${checks.map((check) => html`<li key=${check.uid}><a href=${href("checks", { check: check.uid })}>${visible(nameOf(check))}</a> <small>${when(check.created)}</small>
  ${check.error && html`<p class="bad">${visible(check.error)}</p>`}${(check.variants || []).map((one) => html`<p>${visible(one.label)}: ${visible(one.verdict)}</p>`)}</li>`)}</ul>`;

export const Checks = ({ params, state }) => {
  if (!state.checks.length) return html`<h1>Checks</h1><p class="note">No check is here yet: \`mill compare\`, \`sweep\`, \`diff\`, \`stress\` and \`determinism\` write them.</p>`;
  const options = state.checks.map((check) => [check.uid, `${nameOf(check)}${check.error ? "" : `, ${when(check.created)}`}`]);
  return html`<h1>Checks</h1><div class="filters"><${Choice} label="Check" all="all checks" value=${params.check} options=${options} onChange=${(check) => setParams({ check, metric: "", variant: null, category: null, kind: null, q: "" })} /></div>
    ${params.check ? html`<${Check} params=${params} state=${state} />` : html`<${CheckCards} checks=${state.checks} /><${Trend} params=${params} state=${state} />`}`;
};
