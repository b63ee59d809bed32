// One sample: what was sent, what came back, and why it has its score.
import { go, href, html, setParams, useApi, useKeys, useSteps, visible, plain } from "../lib.js";
import { address, offline } from "../api.js";
import { Answer, Choice, Copy, Cut, Text } from "../parts.js";
import { Choices, Details, Media, Prompt, Response, TokenText, Values } from "../sample_parts.js";
import { filterOf } from "./samples.js";

const orderText = (params) => (params.q || params.status || params.task || params.category != null || params.flag ? "of the filtered samples" : "of the run");

export const Sample = ({ params, state }) => {
  const answer = useApi("sample", { ...filterOf(params), t: params.t, id: params.id }, state.version);
  const [near, step] = useSteps(answer, (one) => go("sample", { ...filterOf(params), t: one.task, id: one.id }));
  useKeys({ n: () => step("next"), p: () => step("previous") });
  const run = state.runs.find((one) => one.uid === params.run);
  const others = state.runs.filter((one) => one.uid !== params.run && one.tasks.includes(params.t) && !one.of_check);
  const repeat = Number(params.repeat) || 0;
  return html`<p class="crumbs"><a href=${href("samples", filterOf(params))}>${visible(run?.label ?? params.run)}</a> › ${visible(params.t)}</p>
    <div class="title"><h1>${visible(params.id)}</h1>
      <span class="actions"><button disabled=${!near.previous} onClick=${() => step("previous")}>Previous <kbd>p</kbd></button><button disabled=${!near.next} onClick=${() => step("next")}>Next <kbd>n</kbd></button><span class="note">${orderText(params)}</span></span></div>
    <${Answer} of=${answer}>${({ sample, cut, tokens, command }) => html`
      <div class="filters">
        ${sample.responses?.length > 1 && html`<${Choice} label="Repeat" value=${String(repeat)} options=${sample.responses.map((_, at) => [String(at), String(at + 1)])} onChange=${(value) => setParams({ repeat: value === "0" ? "" : value })} />`}
        ${others.length > 0 && html`<${Choice} label="Compare with" all="choose a run" value="" options=${others.map((one) => [one.uid, one.label])} onChange=${(uid) => go("pair", { a: params.run, b: uid, t: params.t, id: params.id })} />`}
        ${command && html`<${Copy} text=${command}>Copy the command that computes this sample</${Copy}>`}
        ${!offline && html`<a href=${address("api/raw", { run: params.run, t: params.t, id: params.id })} download="sample.json">Raw line</a>`}
      </div>
      <${Cut} cut=${cut} />
      <div class="columns"><section>
        <${Prompt} sample=${sample} repeat=${repeat} />
        <${Media} sample=${sample} params=${params} />
        ${sample.target != null && html`<h3>Target</h3><${Text} text=${plain(sample.target)} label="target" />`}
      </section><section>
        <h3>${sample.choices?.length ? "Choices" : "Response"}</h3>
        <${Choices} sample=${sample} />
        <${Response} sample=${sample} repeat=${repeat}>${tokens.rows.length > 0 && !sample.choices?.length && repeat === 0 && html`<${TokenText} tokens=${tokens.rows} />`}</${Response}>
        <h3>Scores</h3><${Values} sample=${sample} />
        <${Details} sample=${sample} repeat=${repeat} />
      </section></div>`}</${Answer}>`;
};
