// A text as its tokens, each tinted by a value; a click shows the alternatives at that position.
import { html, number, visible } from "./lib.js";
import { Bar } from "./parts.js";
import { useEffect, useState } from "./vendor/hooks.mjs";

const LEVELS = 8;
// From 0 (as expected) to 8: by log-probability down to e⁻⁸, or by KL on a logarithmic scale from 1e-4 to 1 nat.
const level = (token, by) => {
  if (by === "kl") return typeof token.kl !== "number" ? 0 : Math.round(LEVELS * Math.min(1, Math.max(0, (Math.log10(Math.max(token.kl, 1e-9)) + 4) / 4)));
  return typeof token.logprob !== "number" ? LEVELS : Math.round(Math.min(LEVELS, Math.max(0, -token.logprob)));
};

const shown = (text) => (text === "" ? "∅" : visible(text).replaceAll("\n", "⏎\n"));

const Side = ({ title, top, chosen }) => html`<table class="alternatives"><caption>${title}</caption><tbody>
  ${top.map(([name, value]) => html`<tr class=${name === chosen ? "chosen" : ""}><th scope="row"><code>${shown(String(name))}</code></th><td class="number">${number(typeof value === "number" ? Math.exp(value) : value)}</td><td class="number">${number(value)}</td><td><${Bar} share=${typeof value === "number" ? Math.exp(value) : 0} /></td></tr>`)}
  ${top.length === 0 && html`<tr><td>no alternatives were recorded</td></tr>`}</tbody></table>`;

export const Alternatives = ({ token, labels = ["this run", "the other run"] }) => html`<div class="panel" aria-live="polite">
  <p>token <code>${shown(token.text)}</code>${token.id != null ? ` (id ${token.id})` : ""}: log-probability ${number(token.logprob)}${token.other !== undefined ? `, ${labels[1]} ${number(token.other)}` : ""}${typeof token.kl === "number" ? `, KL ${number(token.kl)} nats` : ""}
  ${token.diverged && html` <span class="tag st-wrong">divergence: ${labels[1]} has <code>${shown(token.other_text ?? "")}</code></span>`}</p>
  <div class="columns"><${Side} title=${labels[0]} top=${token.top} chosen=${token.text} />${token.other_top && html`<${Side} title=${labels[1]} top=${token.other_top} chosen=${token.other_text ?? token.text} />`}</div></div>`;

export const TokenText = ({ tokens, by = "logprob", labels, at }) => {
  const [chosen, choose] = useState(at ?? null);
  useEffect(() => choose(at ?? null), [tokens, at]);
  return html`<div class="token-text" role="group" aria-label=${`Text by ${by === "kl" ? "KL" : "log-probability"}`}>
    ${tokens.map((token, index) => html`<button class=${`token tint${level(token, by)} ${token.diverged ? "diverged" : ""}`} aria-pressed=${index === chosen} title=${by === "kl" && token.kl != null ? `KL ${number(token.kl)}` : `log-probability ${number(token.logprob)}`} onClick=${() => choose(index === chosen ? null : index)}>${shown(token.text)}</button>`)}</div>
    <p class="legend-line">${by === "kl" ? "KL" : "log-probability"}: <span class="token tint0">${by === "kl" ? "1e-4" : "0"}</span><span class="token tint4">${by === "kl" ? "0.01" : "−4"}</span><span class="token tint8">${by === "kl" ? "1" : "−8"}</span> <span class="note">click a token for its alternatives</span></p>
    ${chosen != null && tokens[chosen] && html`<${Alternatives} token=${tokens[chosen]} labels=${labels} />`}`;
};
