// One sample in two runs, side by side, with the words in which the answers differ.
import { go, href, html, number, plain, useApi, useKeys, useSteps, visible } from "../lib.js";
import { Answer, Copy, Cut, pairLabels, Text } from "../parts.js";
import { Choices, Details, Media, Prompt, Response, responseText, Values } from "../sample_parts.js";
import { useRef } from "../vendor/preact.js";
import { CELLS, pairFilterOf } from "./compare.js";

// One side of the diff: words that only this side has are marked; the first of them is where the texts diverge.
const DiffSide = ({ diff, side, label, first }) => {
  let found = false;
  return html`<pre class="diff" tabindex="0" aria-label=${label}>${diff.map((part) => {
    if (part.same != null) return visible(part.same);
    const begins = !found;
    found = true;
    if (part[side]) return html`<mark ref=${begins ? first : null} class=${begins ? "first" : ""}>${visible(part[side])}</mark>`;
    return begins ? html`<mark ref=${first} class="first gap"></mark>` : null;
  })}</pre>`;
};

// Texts that are too long for a diff: the same start, then the rest.
const LongSide = ({ text, char, label, first }) => html`<pre class="diff" tabindex="0" aria-label=${label}><span class="same">${visible(text.slice(0, char))}</span><mark ref=${first} class="first">${visible(text.slice(char))}</mark></pre>`;

export const Pair = ({ params, state }) => {
  const filter = pairFilterOf(params);
  const answer = useApi("pair", { ...filter, t: params.t, id: params.id }, state.version);
  const marks = [useRef(null), useRef(null)];
  const [near, step] = useSteps(answer, (one) => go("pair", { ...filter, t: one.task, id: one.id }));
  const jump = () => marks.forEach((mark) => {
    const pre = mark.current?.closest("pre");
    if (pre) pre.scrollTop = mark.current.offsetTop - pre.clientHeight / 2;
    mark.current?.scrollIntoView({ block: "center" });
  });
  useKeys({ n: () => step("next"), p: () => step("previous"), f: () => step("next_flip"), d: jump });
  const labels = pairLabels(state, params.a, params.b);
  return html`<p class="crumbs"><a href=${href("compare", filter)}>${visible(labels[0])} and ${visible(labels[1])}</a> › ${visible(params.t)}</p>
    <div class="title"><h1>${visible(params.id)}</h1><span class="actions">
      <button disabled=${!near.previous} onClick=${() => step("previous")}>Previous <kbd>p</kbd></button><button disabled=${!near.next} onClick=${() => step("next")}>Next <kbd>n</kbd></button>
      <button disabled=${!near.next_flip} onClick=${() => step("next_flip")}>Next flip <kbd>f</kbd></button></span></div>
    <${Answer} of=${answer}>${(data) => {
      const sides = [data.a, data.b];
      const texts = sides.map((side) => responseText(side));
      const samePrompt = data.a.prompt === data.b.prompt;
      return html`<div class="filters"><span class=${`tag k-${data.cell}`}>${CELLS[data.cell]}</span>
          ${data.divergence && html`<span>first divergence at ${data.divergence.token != null ? `token ${number(data.divergence.token)}` : `character ${number(data.divergence.char + 1)}`}${data.divergence.margin != null ? `, margin ${number(data.divergence.margin)} nats` : ""}</span>
            <button onClick=${jump}>Go to the divergence <kbd>d</kbd></button>`}
          ${data.divergence == null && data.margin != null && html`<span>margin of the baseline ${number(data.margin)} nats</span>`}
          <a href=${href("tokens", { a: params.a, b: params.b, t: params.t, id: params.id })}>Tokens</a></div>
        <${Cut} cut=${data.cut} />
        ${samePrompt ? html`<section><${Prompt} sample=${data.a} /><${Media} sample=${data.a} params=${params} /></section>` : html`<p class="note warning">The prompts of the two runs differ.</p>`}
        ${data.a.target != null && html`<h3>Target</h3><${Text} text=${plain(data.a.target)} label="target" />`}
        <div class="columns pair">${sides.map((sample, at) => html`<section key=${at} aria-label=${labels[at]}><h2>${visible(labels[at])}</h2>
          ${!samePrompt && html`<${Prompt} sample=${sample} />`}
          <${Choices} sample=${sample} other=${sides[1 - at]} />
          <${Response} sample=${sample}>${data.diff ? html`<${DiffSide} diff=${data.diff} side=${"ab"[at]} label="response" first=${marks[at]} />`
            : data.divergence ? html`<${LongSide} text=${texts[at]} char=${data.divergence.char} label="response" first=${marks[at]} />` : null}</${Response}>
          <h3>Scores</h3><${Values} sample=${sample} /><${Details} sample=${sample} />
          ${data.commands[at] && html`<${Copy} text=${data.commands[at]}>Copy the command that computes this sample</${Copy}>`}</section>`)}</div>`;
    }}</${Answer}>`;
};
