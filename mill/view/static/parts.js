// Elements that several screens use.
import { counted, html, number, plain, readRoute, setParams, useApi, useKeys, visible, words } from "./lib.js";
import { address, offline } from "./api.js";
import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";

export const Failure = ({ text }) => html`<p class="failure" role="alert">${visible(text)}</p>`;

export const Waiting = ({ what = "Loading" }) => html`<p class="loading" role="status">${what}…</p>`;

// The answer of a request, or what is known instead of it.
export const Answer = ({ of, children }) => html`
  ${of.error && html`<${Failure} text=${of.error} />`}
  ${of.data ? children(of.data) : of.loading && !of.error ? html`<${Waiting} />` : null}`;

const STATUS = { right: "✓", wrong: "✗", failed: "!", pending: "…", graded: "~", unscored: "·" };
export const Status = ({ name }) => html`<span class=${`tag st-${name}`}><span aria-hidden="true">${STATUS[name] || ""}</span> ${words(name)}</span>`;

export const Text = ({ text, label }) => html`<pre tabindex="0" aria-label=${label}>${visible(text)}</pre>`;

// A header that sorts by its column, and back.
export const SortHeader = ({ name, column, sort, desc, numeric, children }) => {
  const active = sort === column;
  const next = { sort: column, desc: active && !desc ? "1" : "", after: "" };
  return html`<th scope="col" class=${numeric ? "number" : ""} aria-sort=${active ? (desc ? "descending" : "ascending") : "none"}>
    <button class="sort" onClick=${() => setParams(next)}>${children || name}<span aria-hidden="true">${active ? (desc ? " ▼" : " ▲") : ""}</span></button></th>`;
};

export const ShowMore = ({ list }) => list.showMore && html`<p><button disabled=${list.busy} onClick=${list.showMore}>Show more</button> <span class="note">${number(list.rows.length)} of ${number(list.total)}</span></p>`;

export const Copy = ({ text, children }) => {
  const [copied, set] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or a page from disk
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    set(true);
    setTimeout(() => set(false), 1500);
  };
  return html`<button class="copy-button" onClick=${copy}>${copied ? "Copied" : children}</button>`;
};

export const Choice = ({ label, value, options, onChange, all }) => html`<label>${label}
  <select value=${value ?? ""} onChange=${(event) => onChange(event.target.value)}>
    ${all != null && html`<option value="">${all}</option>`}
    ${options.map((one) => {
      const [name, text] = Array.isArray(one) ? one : [one, words(one)];
      return html`<option value=${name} selected=${name === value}>${visible(text)}</option>`;
    })}
  </select></label>`;

// A field that reports what was typed once the person pauses. What it reported comes back as `value`, perhaps after more was
// typed; only another value replaces the text.
export const Search = ({ value, onChange, label = "Search", placeholder = "words in prompts and answers" }) => {
  const [text, set] = useState(value || "");
  const timer = useRef(0), field = useRef(null), reported = useRef(value || "");
  useLayoutEffect(() => {
    if ((value || "") === reported.current) return;
    clearTimeout(timer.current);
    reported.current = value || "";
    set(reported.current);
  }, [value]);
  useEffect(() => () => clearTimeout(timer.current), []); // the next screen has other filters
  useKeys({ "/": () => field.current?.focus() });
  const type = (event) => {
    const typed = event.target.value;
    set(typed);
    clearTimeout(timer.current);
    const { screen } = readRoute(); // a link may have been followed when the time is over
    timer.current = setTimeout(() => {
      if (readRoute().screen !== screen) return;
      reported.current = typed;
      onChange(typed);
    }, 250);
  };
  return html`<label>${label}<input type="search" ref=${field} value=${text} onInput=${type} placeholder=${placeholder} maxlength="200" /></label>`;
};

// A value between the ends of its interval, on a scale that all rows share.
export const Interval = ({ low, value, high, from = 0, to = 1, colour = 0, title }) => {
  const at = (x) => 100 * Math.min(1, Math.max(0, (x - from) / (to - from || 1)));
  if (value == null) return html`<svg class="interval" viewBox="0 0 100 12" aria-hidden="true"></svg>`;
  return html`<svg class=${`interval c${colour % 6}`} viewBox="0 0 100 12" preserveAspectRatio="none" role="img" aria-label=${title}>
    <title>${title}</title>
    ${from < 0 && to > 0 && html`<line class="zero" x1=${at(0)} x2=${at(0)} y1="0" y2="12" />`}
    ${low != null && high != null && html`<line class="whisker" x1=${at(low)} x2=${at(high)} y1="6" y2="6" />`}
    <line class="point" x1=${at(value)} x2=${at(value)} y1="1.5" y2="10.5" /></svg>`;
};

export const Bar = ({ share, kind = "" }) => html`<span class=${`bar ${kind}`} aria-hidden="true"><i style=${{ width: `${100 * Math.min(1, Math.max(0, share || 0))}%` }}></i></span>`;

export const Json = ({ data, label }) => html`<pre tabindex="0" aria-label=${label}>${visible(plain(data))}</pre>`;

export const Cut = ({ cut }) => (cut && (cut.characters || cut.items)
  ? html`<p class="note">Not shown here: ${[cut.characters && counted(cut.characters, "character"), cut.items && counted(cut.items, "entry").replace("entrys", "entries")].filter(Boolean).join(" and ")}. The raw line has everything.</p>` : null);

// The names of two runs; settings that both have in parentheses are left out.
export const pairLabels = (state, a, b) => {
  const labels = [a, b].map((uid) => state.runs.find((run) => run.uid === uid)?.label ?? "");
  const [first, second] = labels.map((label) => label.split(" ("));
  return first[0] !== second[0] && first.length > 1 && first.slice(1).join() === second.slice(1).join() ? [first[0], second[0]] : labels;
};

// The runs that a screen shows at first.
export const newest = (runs, count) => [...runs].sort((a, b) => b.started.localeCompare(a.started)).slice(0, count).map((run) => run.uid);

// Which runs a screen shows, as a list of check boxes that opens on demand.
export const RunPicker = ({ state, chosen }) => {
  const runs = state.runs.filter((run) => !run.of_check || chosen.includes(run.uid));
  const toggle = (uid, on) => setParams({ runs: (on ? [...chosen, uid] : chosen.filter((one) => one !== uid)).join(",") });
  return html`<details class="picker"><summary>${chosen.length} of ${runs.length} runs are shown: choose</summary>
    <fieldset><legend class="hidden">Runs to show</legend>${runs.map((run) => html`<label key=${run.uid}>
      <input type="checkbox" checked=${chosen.includes(run.uid)} onChange=${(event) => toggle(run.uid, event.target.checked)} /> ${visible(run.label)}</label>`)}</fieldset></details>`;
};

// What ran, as names and values.
export const Facts = ({ label, facts }) => html`<p class="note facts-line">${label && html`<b>${visible(label)}</b>: `}${facts.map(([name, value], at) => html`${at > 0 && " · "}<i>${name}</i> ${visible(value)}`)}</p>`;

// What a reader of a run's results must know: what ran, why it is not finished, its warnings, and which rows are here.
export const About = ({ run, version }) => {
  const { data } = useApi("run", { run }, version);
  if (!data) return null;
  return html`${data.unfinished && html`<p class="note warning">${data.unfinished}</p>`}
    <${Facts} facts=${[...data.about, ["run", data.path], ...(data.computed_by.length ? [["computed by", data.computed_by.join("; ")]] : [])]} />
    ${!offline && html`<p class="note"><a href=${address(`report/run/${run}`)} target="_blank" rel="noopener">This run as one file</a></p>`}
    ${(data.held || []).map((text) => html`<p class="note warning">${text}</p>`)}
    ${data.warnings.map((text) => html`<p class="note warning">${visible(text)}</p>`)}`;
};
