// The frame of all screens: navigation, the state of the index, the theme.
import { counted, go, href, html, useKeys, useRoute, visible } from "./lib.js";
import { api, follow, offline } from "./api.js";
import { Failure, Waiting } from "./parts.js";
import { render, useEffect, useErrorBoundary, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { Checks } from "./screens/checks.js";
import { Compare } from "./screens/compare.js";
import { Load } from "./screens/load.js";
import { Pair } from "./screens/pair.js";
import { Runs } from "./screens/runs.js";
import { Sample } from "./screens/sample.js";
import { Samples } from "./screens/samples.js";
import { Scores } from "./screens/scores.js";
import { Tokens } from "./screens/tokens.js";

const SCREENS = { runs: Runs, scores: Scores, compare: Compare, pair: Pair, samples: Samples, sample: Sample, tokens: Tokens, load: Load, checks: Checks };
const NAVIGATION = [["runs", "Runs"], ["scores", "Scores"], ["compare", "Compare"], ["samples", "Samples"], ["tokens", "Tokens"], ["load", "Load and cost"], ["checks", "Checks"]];
const WITHIN = { pair: "compare", sample: "samples" };
const KEYS = [["1 … 7", "the screens in their order"], ["/", "search"], ["n, p", "next and previous sample"], ["f", "next flip"], ["d", "first divergence"], ["t", "light or dark"], ["?", "this list"]];

const themes = ["", "light", "dark"];
const stored = (name, value) => {
  try {
    if (value === undefined) return localStorage.getItem(name) || "";
    localStorage.setItem(name, value);
  } catch { /* private windows and pages from disk may have no storage */ }
  return value || "";
};

// The runs that a screen is about stay chosen on the next one.
const carried = ({ runs, run, a, b }) => {
  const chosen = [...new Set([...(runs || "").split(","), a, b, run].filter(Boolean))];
  return {
    runs: { runs: chosen.join(",") }, scores: { runs: chosen.join(",") }, load: { runs: chosen.join(",") },
    compare: { a: chosen[0], b: chosen[1] }, samples: { run: run || chosen[0] }, tokens: { a: chosen[0], b: a && b ? b : chosen[1] }, checks: {},
  };
};

const useOverview = () => {
  const [state, setState] = useState(null);
  const [update, setUpdate] = useState({ version: -1, live: {} });
  const [error, setError] = useState("");
  const [lost, setLost] = useState(false);
  useEffect(() => follow((found) => { setUpdate(found); setLost(false); }, () => setLost(true)), []);
  const working = Object.keys(update.live || {}).join();
  useEffect(() => {
    api.state({}).then((found) => { setState(found); setError(""); }, (failure) => setError(failure.message));
  }, [update.version, working]);
  const merged = state && { ...state, ...update, runs: state.runs.map((run) => ({ ...run, live: update.version < 0 ? run.live : update.live?.[run.uid] })) };
  return { state: merged, error, lost };
};

const Progress = ({ state, lost }) => {
  if (lost) return html`<span class="state bad" role="status">the server does not answer</span>`;
  const [done, total] = state.indexed;
  if (state.syncing && total > 1e7 && done < total) return html`<span class="state" role="status">reading samples, ${Math.floor((100 * done) / total)} %</span>`;
  const { done: searched, total: texts } = state.search;
  if (searched < texts) return html`<span class="state" role="status">search: ${Math.floor((100 * searched) / texts)} % of texts</span>`;
  const working = state.runs.filter((run) => run.live).length;
  return working ? html`<span class="state" role="status">${counted(working, "run")} at work</span>` : null;
};

const Help = ({ close }) => {
  const dialog = useRef(null);
  useEffect(() => dialog.current.showModal(), []);
  return html`<dialog ref=${dialog} onClose=${close} aria-label="Keys"><h2>Keys</h2>
    <dl>${KEYS.map(([key, what]) => html`<dt><kbd>${key}</kbd></dt><dd>${what}</dd>`)}</dl>
    <form method="dialog"><button>Close</button></form></dialog>`;
};

// Files of other people may have values of any type, where a screen expects a list: the rest of the page goes on.
const Guarded = ({ route, children }) => {
  const [failure, reset] = useErrorBoundary();
  useEffect(() => { if (failure) reset(); }, [route]);
  return failure ? html`<${Failure} text=${`This cannot be shown, because its data are not as expected: ${failure.message}`} />` : children;
};

const App = () => {
  const route = useRoute();
  const { state, error, lost } = useOverview();
  const [theme, setTheme] = useState(stored("mill-theme"));
  const [help, setHelp] = useState(false);
  const main = useRef(null);
  useEffect(() => {
    document.documentElement.dataset.theme = theme;
    stored("mill-theme", theme);
  }, [theme]);
  const links = carried(route.params);
  const nextTheme = () => setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]);
  useKeys({
    ...Object.fromEntries(NAVIGATION.map(([name], number) => [String(number + 1), () => go(name, links[name])])),
    t: nextTheme, "?": () => setHelp(true),
  });
  const Screen = Object.hasOwn(SCREENS, route.screen) ? SCREENS[route.screen] : null;
  const section = WITHIN[route.screen] || route.screen;
  useLayoutEffect(() => { // later it would take the focus from a field that a person has entered
    document.title = `mill: ${NAVIGATION.find(([name]) => name === section)?.[1] || "view"}`;
    main.current?.focus({ preventScroll: true });
    scrollTo(0, 0);
  }, [route.screen]);
  return html`
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <header class="top">
      <a class="brand" href=${href("runs")}>mill</a>
      <nav aria-label="Screens">${NAVIGATION.map(([name, title]) => html`<a href=${href(name, links[name])} aria-current=${name === section ? "page" : null}>${title}</a>`)}</nav>
      ${state && html`<${Progress} state=${state} lost=${lost} />`}
      <button onClick=${nextTheme} aria-label=${`Theme: ${themeName(theme)}`}>${themeName(theme)}</button>
      <button onClick=${() => setHelp(true)} aria-label="Keys">?</button>
    </header>
    ${help && html`<${Help} close=${() => setHelp(false)} />`}
    <main ref=${main} id="main" tabindex="-1">
      ${error && html`<${Failure} text=${error} />`}
      ${state && state.warnings.map((text) => html`<p class="note warning">${visible(text)}</p>`)}
      ${!Screen ? html`<${Failure} text=${`there is no screen ${route.screen}`} />`
        : state ? html`<${Guarded} route=${route}><${Screen} params=${route.params} state=${state} /></${Guarded}>` : !error && html`<${Waiting} what="Reading the folder" />`}
    </main>
    ${state && html`<footer>${visible(state.folder)} · mill ${state.mill}</footer>`}`;
};

const themeName = (theme) => ({ light: "Light", dark: "Dark" })[theme] || "Auto";

// An offline page of one check, or of one run, opens on it.
const start = ({ runs, checks }) => {
  if (location.hash) return;
  if (!runs.length && checks.length === 1) history.replaceState(null, "", href("checks", { check: checks[0].uid }));
  if (runs.length === 1 && !checks.length) history.replaceState(null, "", href("scores", { runs: runs[0].uid }));
};

const show = () => {
  const root = document.getElementById("app");
  root.replaceChildren();
  render(html`<${App} />`, root);
};
if (offline) api.state().then((state) => { start(state); show(); });
else show();
