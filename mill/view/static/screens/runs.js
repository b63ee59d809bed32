// Runs and checks below the folder, with the progress of those at work.
import { counted, duration, href, html, number, setParams, visible, words } from "../lib.js";
import { Bar, Choice, Search } from "../parts.js";
import { CheckCards } from "./checks.js";

const EMPTY = "No run is here yet. `mill eval MODEL TASK` and the checks write them; logs of lm-eval (--log_samples) and inspect_ai are read, too.";

const answered = (counts) => counts.right + counts.wrong + counts.graded + counts.unscored + counts.failed;

const Live = ({ live }) => html`<div class="live">
  <${Bar} share=${live.requests ? live.responses / live.requests : 0} />
  <span>${number(live.responses)} of ${number(live.requests)} responses${live.rate ? html`, ${number(live.rate)} per second` : ""}${live.seconds_left != null ? html`, ${duration(live.seconds_left)} left` : ""}</span></div>`;

const State = ({ run }) => {
  if (run.error) return html`<span class="bad">${visible(run.error)}</span>`;
  if (run.live) return html`<${Live} live=${run.live} />`;
  const { counts } = run;
  const parts = [counts.pending && `${number(counts.pending)} not answered`, counts.damaged && counted(counts.damaged, "damaged line")].filter(Boolean);
  return html`<span>${counted(answered(counts), "sample")}${parts.length ? `, ${parts.join(", ")}` : ""}</span>
    ${counts.failed > 0 && html` <a class="bad" href=${href("samples", { run: run.uid, status: "failed" })}>${number(counts.failed)} failed</a>`}
    ${run.ended && !["finished", "-"].includes(run.ended) && html` <span class="tag">${run.ended}</span>`}`;
};

const settingsText = (settings) => Object.entries(settings).map(([name, value]) => `${words(name)} ${typeof value === "object" ? JSON.stringify(value) : value}`).join(", ");

const Row = ({ run, chosen, toggle }) => html`<tr>
  <td><input type="checkbox" checked=${chosen} onChange=${toggle} aria-label=${`Choose ${run.label}`} /></td>
  <th scope="row"><a href=${href("samples", { run: run.uid })}>${visible(run.label)}</a>
    <small>${visible([run.tool === "mill" ? run.backend : run.tool, settingsText(run.settings)].filter(Boolean).join(" · "))}</small></th>
  <td>${run.scores.map((one) => html`<div class="score"><a href=${href("scores", { runs: run.uid })}>${visible(one.name)}</a> ${words(one.metric)} <b>${number(one.value)}</b></div>`)}
    ${run.more_scores > 0 && html`<a href=${href("scores", { runs: run.uid })}>${number(run.more_scores)} more</a>`}</td>
  <td><${State} run=${run} /></td>
  <td class="number">${run.started && html`<time>${run.started.replace("T", " ").replace("Z", "")}</time>`}<small>${run.seconds ? duration(run.seconds) : ""}</small></td></tr>`;

export const Runs = ({ params, state }) => {
  const chosen = new Set((params.runs || "").split(",").filter(Boolean));
  const toggle = (uid) => () => {
    chosen.has(uid) ? chosen.delete(uid) : chosen.add(uid);
    setParams({ runs: [...chosen].join(",") });
  };
  const wanted = (params.name || "").toLowerCase();
  const shown = state.runs.filter((run) => (params.checks || !run.of_check) && (!params.failed || run.counts.failed > 0)
    && `${run.label} ${run.tasks.join(" ")} ${run.name}`.toLowerCase().includes(wanted));
  const order = { newest: (a, b) => b.started.localeCompare(a.started), name: (a, b) => a.label.localeCompare(b.label), failed: (a, b) => b.counts.failed - a.counts.failed };
  shown.sort((a, b) => !!b.live - !!a.live || order[params.order || "newest"]?.(a, b) || a.label.localeCompare(b.label));
  const of_checks = state.runs.filter((run) => run.of_check).length;
  const picked = [...chosen];
  return html`<h1>Runs</h1>
    <div class="filters" role="search">
      <${Search} label="Filter" placeholder="model, task or folder" value=${params.name} onChange=${(name) => setParams({ name })} />
      <${Choice} label="Order" value=${params.order || "newest"} options=${["newest", "name", "failed"]} onChange=${(value) => setParams({ order: value })} />
      <label><input type="checkbox" checked=${!!params.failed} onChange=${(event) => setParams({ failed: event.target.checked ? "1" : "" })} /> with failed samples</label>
      ${of_checks > 0 && html`<label><input type="checkbox" checked=${!!params.checks} onChange=${(event) => setParams({ checks: event.target.checked ? "1" : "" })} /> runs of checks (${of_checks})</label>`}
      <span class="actions">
        <a class=${`button ${picked.length < 2 ? "off" : ""}`} aria-disabled=${picked.length < 2} href=${picked.length < 2 ? null : picked.length === 2 ? href("compare", { a: picked[0], b: picked[1] }) : href("scores", { runs: picked.join(",") })}>${picked.length < 2 ? "Choose two runs to compare" : `Compare ${picked.length} runs`}</a>
      </span></div>
    ${state.runs.length === 0 ? html`<p class="note">${state.syncing ? "Reading the folder…" : EMPTY}</p>` : html`
    <div class="scroll wide"><table class="list"><caption class="hidden">Runs</caption>
      <thead><tr><th scope="col"><span class="hidden">Choose</span></th><th scope="col">Run</th><th scope="col">Scores</th><th scope="col">Samples</th><th scope="col" class="number">Started</th></tr></thead>
      <tbody>${shown.map((run) => html`<${Row} key=${run.uid} run=${run} chosen=${chosen.has(run.uid)} toggle=${toggle(run.uid)} />`)}</tbody></table></div>
    <p class="note">${shown.length} of ${counted(state.runs.length, "run")}</p>`}
    ${state.checks.length > 0 && html`<h2>Checks</h2><${CheckCards} checks=${state.checks} />`}`;
};
