// Saved checks: verdict, rules with their outcomes, charts, and one metric over time.
import { href, html, setParams, source, useApi, visible, words } from "../lib.js";
import { Answer, Chart, Choice } from "../parts.js";
import { useEffect, useState } from "../vendor/hooks.mjs";

const MARKS = { kept: "✓ kept", broken: "✗ broken", inconclusive: "? inconclusive" };

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

const Check = ({ params, state }) => {
  const answer = useApi("check", { check: params.check, fail_on: params.fail_on, require: params.require }, state.version);
  const [last, setLast] = useState(null);
  useEffect(() => { if (answer.data) setLast(answer.data); }, [answer.data]);
  const shown = answer.data || (last?.uid === params.check ? last : null);
  return html`<${Answer} of=${{ ...answer, data: shown }}>${(data) => html`
    <h2>${data.command} on ${visible(data.tasks.join(", "))}</h2>
    <p class="note">${data.created.replace("T", " ")}${data.baseline ? html`, baseline ${visible(data.baseline)}` : ""} · <a href=${source.file(`report/check/${data.uid}`)} target="_blank" rel="noopener">offline report</a>
      ${Object.keys(data.settings).length > 0 && html` · ${visible(Object.entries(data.settings).filter(([, value]) => value != null).map(([name, value]) => `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", "))}`}</p>
    ${data.variants.map((one) => html`<p class="verdict">${visible(one.label)}: ${visible(one.verdict)}
      ${one.run && data.baseline_run && html` <a href=${href("compare", { a: data.baseline_run, b: one.run })}>Compare its samples</a>`}
      ${one.run && !data.baseline_run && html` <a href=${href("samples", { run: one.run })}>Its samples</a>`}</p>
      <p class="sentences">${visible(one.sentences.join(" "))}</p>`)}
    ${!source.isStatic && html`<${Rules} params=${params} outcomes=${data.outcomes} />`}
    <h3>Metrics</h3><div class="scroll wide"><table class="list"><thead><tr><th scope="col">Metric</th>${data.variants.map((one) => html`<th scope="col" class="number">${visible(one.label)}</th>`)}</tr></thead>
      <tbody>${data.metrics.map((metric, at) => html`${metric.group !== data.metrics[at - 1]?.group && html`<tr class="group"><th scope="colgroup" colspan=${data.variants.length + 1}>${metric.group}</th></tr>`}<tr><th scope="row" title=${metric.about}><a href=${href("checks", { metric: metric.name })}>${metric.title}</a></th>${data.variants.map((one) => {
        const found = one.metrics[metric.name];
        return html`<td class="number">${found ? html`${found.text}${found.interval && html`<small>${found.interval}</small>`}${one.p_values[metric.name] != null && html`<small>p ${typeof one.p_values[metric.name] === "number" ? one.p_values[metric.name].toPrecision(2) : "–"}</small>`}` : "–"}</td>`;
      })}</tr>`)}</tbody></table></div>
    ${[...data.warnings, ...data.variants.flatMap((one) => one.warnings.map((text) => `${one.label}: ${text}`))].map((text) => html`<p class="note warning">${visible(text)}</p>`)}
    <div class="charts">${data.charts.map((svg) => html`<${Chart} svg=${svg} />`)}</div>`}</${Answer}>`;
};

const Trend = ({ params, state }) => {
  const answer = useApi("trend", { metric: params.metric || "match_rate" }, state.version);
  return html`<h2>One metric over time</h2><${Answer} of=${answer}>${(data) => html`
    <div class="filters"><${Choice} label="Metric" value=${data.metric} options=${data.known} onChange=${(metric) => setParams({ metric })} /></div>
    ${data.chart ? html`<div class="charts"><${Chart} svg=${data.chart} /></div>` : html`<p class="note">No check has measured ${words(data.metric)}.</p>`}
    <div class="scroll wide"><table class="list"><thead><tr><th scope="col">Check</th><th scope="col">When</th><th scope="col" class="number">${words(data.metric)}</th></tr></thead>
      <tbody>${Object.entries(data.series).flatMap(([name, points]) => points.map((point) => html`<tr><th scope="row"><a href=${href("checks", { check: point.uid })}>${visible(name)}</a></th><td>${point.created.replace("T", " ")}</td><td class="number">${point.text}</td></tr>`))}</tbody></table></div>`}</${Answer}>`;
};

export const Checks = ({ params, state }) => {
  if (!state.checks.length) return html`<h1>Checks</h1><p class="note">No check is here yet: \`mill compare\`, \`sweep\`, \`diff\`, \`stress\` and \`determinism\` write them.</p>`;
  const options = state.checks.map((check) => [check.uid, check.error ? check.name : `${check.command} on ${check.tasks.join(", ")}, ${check.created.replace("T", " ")}`]);
  return html`<h1>Checks</h1><div class="filters"><${Choice} label="Check" all="all checks" value=${params.check} options=${options} onChange=${(check) => setParams({ check, metric: "" })} /></div>
    ${params.check ? html`<${Check} params=${params} state=${state} />` : html`
      <ul class="cards">${state.checks.map((check) => html`<li key=${check.uid}><a href=${href("checks", { check: check.uid })}>${check.error ? visible(check.name) : visible(`${check.command} on ${check.tasks.join(", ")}`)}</a> <small>${(check.created || "").replace("T", " ")}</small>
        ${check.error && html`<p class="bad">${visible(check.error)}</p>`}${(check.variants || []).map((one) => html`<p>${visible(one.label)}: ${visible(one.verdict)}</p>`)}</li>`)}</ul>
      <${Trend} params=${params} state=${state} />`}`;
};
