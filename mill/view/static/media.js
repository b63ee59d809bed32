// Images, audio and video of a sample, where their files can still be read.
import { html, source, visible } from "./lib.js";

const Part = ({ part, url }) => {
  if (part.type === "image") return html`<figure class="media"><img src=${url} alt=${`image: ${part.name}`} loading="lazy" /><figcaption>${visible(part.name)}</figcaption></figure>`;
  if (part.type === "audio") return html`<figure class="media"><audio controls preload="none" src=${url} aria-label=${part.name}></audio><figcaption>${visible(part.name)}</figcaption></figure>`;
  return html`<figure class="media"><video controls preload="none" src=${url} aria-label=${part.name}></video><figcaption>${visible(part.name)}</figcaption></figure>`;
};

export const Media = ({ sample, params }) => {
  if (!sample.media?.length) return null;
  return html`<h3>Media</h3>${sample.media.map((part, index) => html`<${Part} part=${part} url=${(source.isStatic && part.url) || source.file("api/media", { run: params.run || params.a, t: params.t, id: params.id, number: index })} />`)}`;
};
