// The parts of a sample: prompt, choices, dialog, media, answer, tokens, scores. Used for one sample and for two side by side.
import { counted, html, number, plain, visible, words } from "./lib.js";
import { address, offline } from "./api.js";
import { Bar, Json, Text } from "./parts.js";
import { useEffect, useState } from "./vendor/preact.js";

const FOLDED = 1500; // characters of a prompt from which on its start is folded
const SHOWN = 600;

const messagesOf = (prompt) => {
  if (typeof prompt !== "string" || !prompt.startsWith('[{"role":')) return null;
  try {
    const found = JSON.parse(prompt);
    return Array.isArray(found) && found.every((one) => one && typeof one === "object") ? found : null;
  } catch { // cut, or a text that only looks like messages
    return null;
  }
};

const Content = ({ content, media }) => (typeof content === "string" ? html`<${Text} text=${content} label="message" />`
  : (Array.isArray(content) ? content : []).map((part) => (part.type === "text" ? html`<${Text} text=${part.text} label="message" />` : html`<p class="tag">${part.type} ${visible(part[part.type])}</p>`)));

const ToolCalls = ({ calls, results = [] }) => (Array.isArray(calls) ? calls : []).map((call, number_) => {
  const { name, arguments: given } = call.function || call;
  const result = results[number_];
  return html`<div class="tool"><h5>call of ${visible(name)}</h5><${Text} text=${given} label="arguments" />
    ${result && html`<h5>result: ${words(result.outcome)}</h5><${Text} text=${result.output} label="result" />`}</div>`;
});

const Message = ({ message }) => html`<div class=${`message m-${["system", "user", "assistant", "tool"].includes(message.role) ? message.role : "user"}`}>
  <h5>${visible(message.role)}${message.name ? ` ${visible(message.name)}` : ""}</h5><${Content} content=${message.content} /><${ToolCalls} calls=${message.tool_calls} /></div>`;

const Folded = ({ text }) => {
  if (text.length <= FOLDED) return html`<${Text} text=${text} label="prompt" />`;
  const from = text.length - SHOWN;
  const line = text.lastIndexOf("\n\n", from);
  const cut = line > 0 ? line + 2 : from;
  return html`<details class="fold"><summary>first ${number(cut)} characters (examples and instructions)</summary><${Text} text=${text.slice(0, cut)} label="start of the prompt" /></details>
    <${Text} text=${text.slice(cut)} label="end of the prompt" />`;
};

export const Prompt = ({ sample, repeat = 0 }) => {
  const dialog = sample.messages?.[repeat];
  if (dialog?.length) return html`<h3>Dialog</h3>${dialog.map((message) => html`<${Message} message=${message} />`)}`;
  const messages = messagesOf(sample.prompt);
  const early = messages?.slice(0, -1) || [];
  return html`<h3>Prompt</h3>${messages ? html`
    ${early.length > 1 ? html`<details class="fold"><summary>${early.length} earlier messages</summary>${early.map((one) => html`<${Message} message=${one} />`)}</details>` : early.map((one) => html`<${Message} message=${one} />`)}
    <${Message} message=${messages.at(-1)} />` : html`<${Folded} text=${plain(sample.prompt ?? "")} />`}`;
};

// Choices with their log-probabilities; a longer bar is a larger share of the probability of all choices.
export const Choices = ({ sample, other }) => {
  if (!Array.isArray(sample.choices) || !sample.choices.length) return null;
  const scores = Array.isArray(sample.choice_logprobs) ? sample.choice_logprobs : [];
  const top = Math.max(...scores.filter((score) => typeof score === "number"));
  const total = scores.reduce((sum, score) => sum + (typeof score === "number" ? Math.exp(score - top) : 0), 0);
  return html`<table class="choices"><caption class="hidden">Choices</caption><thead><tr><th scope="col">Choice</th><th scope="col" class="number">Log-probability</th><th scope="col"><span class="hidden">Share</span></th></tr></thead>
    <tbody>${sample.choices.map((choice, at) => html`<tr class=${choice === sample.chosen ? "chosen" : ""}>
    <th scope="row">${visible(choice)} ${choice === sample.chosen && html`<span class="tag">chosen</span>`} ${choice === sample.target && html`<span class="tag st-right">target</span>`}
      ${other?.chosen === choice && sample.chosen !== choice && html`<span class="tag">chosen by the other</span>`}</th>
    <td class="number">${number(scores[at])}</td><td><${Bar} share=${typeof scores[at] === "number" ? Math.exp(scores[at] - top) / total : 0} kind=${choice === sample.target ? "good" : ""} /></td></tr>`)}</tbody></table>`;
};

const valueText = (values) => (Array.isArray(values) ? values : []).map((value) => (Array.isArray(value) ? value.map(number).join(" / ") : number(value))).join(", ");

export const Values = ({ sample }) => html`<table class="facts-table"><caption class="hidden">Values</caption><tbody>
  ${Object.entries(sample.values || {}).map(([name, values]) => html`<tr><th scope="row">${visible(words(name))}</th><td>${valueText(values)}</td></tr>`)}
  ${[["extracted answer", sample.extracted], ["finish reason", sample.finish_reason], ["prompt tokens", sample.prompt_tokens], ["output tokens", sample.output_tokens], ["reasoning tokens", sample.reasoning_tokens], ["seconds", sample.seconds]]
    .filter(([, value]) => value != null).map(([name, value]) => html`<tr><th scope="row">${name}</th><td>${typeof value === "number" ? number(value) : visible(plain(value))}</td></tr>`)}</tbody></table>`;

const lastOf = (sample, repeat) => sample.responses?.[repeat]?.at(-1);

export const responseText = (sample, repeat = 0) => lastOf(sample, repeat)?.text ?? (repeat === 0 ? sample.response : null) ?? "";

export const Response = ({ sample, repeat = 0, children }) => {
  const last = lastOf(sample, repeat);
  const reasoning = last?.reasoning ?? (repeat === 0 ? sample.reasoning : null);
  const error = last?.error ?? (repeat === 0 ? sample.error : null);
  const generated = !sample.choices?.length || responseText(sample, repeat);
  const text = responseText(sample, repeat);
  return html`
    ${error && html`<p class="error">${visible(error)}</p>`}
    ${reasoning && html`<details class="fold"><summary>reasoning, ${number(reasoning.length)} characters</summary><${Text} text=${reasoning} label="reasoning" /></details>`}
    <${ToolCalls} calls=${last?.tool_calls} results=${last?.tool_results} />
    ${repeat === 0 && sample.flags?.map((flag) => html`<span class="tag">${words(flag)}</span> `)}
    ${generated && !error && (children || (text ? html`<${Text} text=${text} label="response" />` : html`<p class="note">no text</p>`))}`;
};

export const Details = ({ sample, repeat = 0 }) => html`
  ${sample.details?.[repeat] && Object.keys(sample.details[repeat]).length > 0 && html`<h3>Why it has these values</h3>
    <table class="facts-table"><tbody>${Object.entries(sample.details[repeat]).map(([name, value]) => html`<tr><th scope="row">${visible(words(name))}</th><td><pre>${visible(plain(value))}</pre></td></tr>`)}</tbody></table>`}
  ${sample.judgements?.[repeat]?.length > 0 && html`<h3>Judgements</h3>${sample.judgements[repeat].map((text) => html`<${Text} text=${text ?? "(the judge failed)"} label="judgement" />`)}`}
  ${sample.tools?.length > 0 && html`<details class="fold"><summary>${counted(sample.tools.length, "tool")}</summary><${Json} data=${sample.tools} label="tools" /></details>`}
  <details class="fold"><summary>data of the sample</summary><${Json} data=${sample.doc} label="data" /></details>`;

// Images, audio and video of a sample, where their files can still be read. An offline page has those that there was room for.
const Part = ({ part, url }) => {
  if (!url) return html`<p class="note">${part.type} ${visible(part.name)}: not in this page</p>`;
  if (part.type === "image") return html`<figure class="media"><img src=${url} alt=${`image: ${part.name}`} loading="lazy" /><figcaption>${visible(part.name)}</figcaption></figure>`;
  if (part.type === "audio") return html`<figure class="media"><audio controls preload="none" src=${url} aria-label=${part.name}></audio><figcaption>${visible(part.name)}</figcaption></figure>`;
  return html`<figure class="media"><video controls preload="none" src=${url} aria-label=${part.name}></video><figcaption>${visible(part.name)}</figcaption></figure>`;
};

export const Media = ({ sample, params }) => {
  if (!sample.media?.length) return null;
  return html`<h3>Media</h3>${sample.media.map((part, index) => html`<${Part} part=${part} url=${part.url || offline ? part.url : address("api/media", { run: params.run || params.a, t: params.t, id: params.id, number: index })} />`)}`;
};

// A text as its tokens, each tinted by a value; a click shows the alternatives at that position.
const LEVELS = 8;
// From 0 (as expected) to 8: by log-probability down to e⁻⁸, or by KL on a logarithmic scale from 1e-4 to 1 nat.
const level = (token, by) => {
  if (by === "kl") return typeof token.kl !== "number" ? 0 : Math.round(LEVELS * Math.min(1, Math.max(0, (Math.log10(Math.max(token.kl, 1e-9)) + 4) / 4)));
  return typeof token.logprob !== "number" ? LEVELS : Math.round(Math.min(LEVELS, Math.max(0, -token.logprob)));
};

const tokenText = (text) => (text === "" ? "∅" : visible(text).replaceAll("\n", "⏎\n"));

const Alternative = ({ title, top, chosen }) => html`<table class="alternatives"><caption>${title}</caption><tbody>
  ${top.map(([name, value]) => html`<tr class=${name === chosen ? "chosen" : ""}><th scope="row"><code>${tokenText(String(name))}</code></th><td class="number">${number(typeof value === "number" ? Math.exp(value) : value)}</td><td class="number">${number(value)}</td><td><${Bar} share=${typeof value === "number" ? Math.exp(value) : 0} /></td></tr>`)}
  ${top.length === 0 && html`<tr><td>no alternatives were recorded</td></tr>`}</tbody></table>`;

export const Alternatives = ({ token, labels = ["this run", "the other run"] }) => html`<div class="panel" aria-live="polite">
  <p>token <code>${tokenText(token.text)}</code>${token.id != null ? ` (id ${token.id})` : ""}: log-probability ${number(token.logprob)}${token.other !== undefined ? `, ${labels[1]} ${number(token.other)}` : ""}${typeof token.kl === "number" ? `, KL ${number(token.kl)} nats` : ""}
  ${token.diverged && html` <span class="tag st-wrong">divergence: ${labels[1]} has <code>${tokenText(token.other_text ?? "")}</code></span>`}</p>
  <div class="columns"><${Alternative} title=${labels[0]} top=${token.top} chosen=${token.text} />${token.other_top && html`<${Alternative} title=${labels[1]} top=${token.other_top} chosen=${token.other_text ?? token.text} />`}</div></div>`;

export const TokenText = ({ tokens, by = "logprob", labels, at }) => {
  const [chosen, choose] = useState(at ?? null);
  useEffect(() => choose(at ?? null), [tokens, at]);
  return html`<div class="token-text" role="group" aria-label=${`Text by ${by === "kl" ? "KL" : "log-probability"}`}>
    ${tokens.map((token, index) => html`<button class=${`token tint${level(token, by)} ${token.diverged ? "diverged" : ""}`} aria-pressed=${index === chosen} title=${by === "kl" && token.kl != null ? `KL ${number(token.kl)}` : `log-probability ${number(token.logprob)}`} onClick=${() => choose(index === chosen ? null : index)}>${tokenText(token.text)}</button>`)}</div>
    <p class="legend-line">${by === "kl" ? "KL" : "log-probability"}: <span class="token tint0">${by === "kl" ? "1e-4" : "0"}</span><span class="token tint4">${by === "kl" ? "0.01" : "−4"}</span><span class="token tint8">${by === "kl" ? "1" : "−8"}</span> <span class="note">click a token for its alternatives</span></p>
    ${chosen != null && tokens[chosen] && html`<${Alternatives} token=${tokens[chosen]} labels=${labels} />`}`;
};
