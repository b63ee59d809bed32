// What all screens share: elements, the URL as state, answers, and how values are written.
import { h, htm, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { api, filled } from "./api.js";

export const html = htm.bind(h);

// --- The URL: #/screen?name=value. Every filter is in it, so that a page survives a reload and can be shared.

export const readRoute = () => {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return { screen: path || "runs", params: Object.fromEntries(new URLSearchParams(query)) };
};

export const href = (screen, params = {}) => {
  const query = new URLSearchParams(filled(params)).toString();
  return `#/${screen}${query ? `?${query}` : ""}`;
};

export const go = (screen, params) => { location.hash = href(screen, params); };

// Changes of a filter replace the entry in the history: "back" leaves the screen instead of undoing each letter.
export const setParams = (changes) => {
  const { screen, params } = readRoute();
  history.replaceState(null, "", href(screen, { ...params, ...changes }));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
};

export const useRoute = () => {
  const [route, set] = useState(readRoute);
  useLayoutEffect(() => { // a link may be followed as soon as the page is seen
    const update = () => set(readRoute());
    addEventListener("hashchange", update);
    return () => removeEventListener("hashchange", update);
  }, []);
  return route;
};

// --- Answers

// The answer to a request, or those to several with the same name. The last one stays while a new one is on its way, so that
// a page does not flicker; `current` is whether it is the answer to these parameters.
export const useApi = (name, params, version = 0) => {
  const [state, set] = useState({ data: null, error: "", loading: true });
  const key = JSON.stringify([name, params]);
  const latest = useRef("");
  useEffect(() => {
    if (!name) return undefined;
    const controller = new AbortController();
    set((old) => ({ ...old, loading: true }));
    const answers = Array.isArray(params) ? Promise.all(params.map((one) => api[name](one, controller.signal))) : api[name](params, controller.signal);
    answers.then(
      (data) => { latest.current = key; set({ data, error: "", loading: false }); },
      (error) => {
        if (error.name === "AbortError") return;
        set((old) => ({ data: latest.current === key ? old.data : null, error: error.message, loading: false }));
      },
    );
    return () => controller.abort();
  }, [key, version]);
  return { ...state, current: state.data != null && latest.current === key };
};

// A list in pages: the answer to its first page, and in `list` all rows that are there with what shows more of them.
export const usePages = (name, params, version) => {
  const key = JSON.stringify([params, version]);
  const [state, set] = useState({ key: "" });
  const further = state.key === key ? state : { key, rows: [], after: null };
  const first = useApi(name, params, version);
  const page = useApi(further.after ? name : null, { ...params, after: further.after }, version);
  useEffect(() => {
    if (further.after && page.current) set({ key, rows: [...further.rows, ...page.data.rows], next: page.data.next, after: null });
  }, [page.current, page.data]);
  const next = further.next === undefined ? first.data?.next : further.next;
  const showMore = next && (() => set({ ...further, after: next }));
  return { ...first, list: first.data && { rows: [...first.data.rows, ...further.rows], total: first.data.total, showMore, busy: !!further.after } };
};

// What a list depends on besides its parameters: with words to search for, also how many texts can be searched so far.
export const listVersion = (state, words) => (words ? `${state.version}/${state.search.done}` : state.version);

// --- Keys. Not while a person types, and not with Ctrl or another modifier.

export const useKeys = (keys) => {
  const current = useRef(keys);
  current.current = keys;
  useLayoutEffect(() => { // a key may come as soon as the page is seen
    const press = (event) => {
      const typing = event.target.closest?.("input, textarea, select");
      if (typing || event.ctrlKey || event.metaKey || event.altKey) return;
      const action = current.current[event.key];
      if (action) { event.preventDefault(); action(); }
    };
    addEventListener("keydown", press);
    return () => removeEventListener("keydown", press);
  }, []);
};

// Steps to a neighbour of what is shown. A key that comes while its answer is on the way counts once it is there.
export const useSteps = (answer, open) => {
  const waiting = useRef("");
  const near = answer.data?.neighbours || {};
  const step = (name) => {
    if (!answer.current) waiting.current = name;
    else if (near[name]) open(near[name]);
  };
  useEffect(() => {
    if (!answer.current || !waiting.current) return;
    const name = waiting.current;
    waiting.current = "";
    step(name);
  }, [answer.current, answer.data]);
  return [near, step];
};

// --- How values are written

export const number = (value) => {
  if (value == null) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < 1e15) return value.toLocaleString("en");
  const size = Math.abs(value);
  return size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 0 })
    : size >= 0.001 ? value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3) : value.toExponential(1);
};

export const percent = (value, digits = 1) => (value == null ? "–" : `${(100 * value).toFixed(digits)} %`);

export const duration = (seconds) => {
  if (seconds == null) return "–";
  if (seconds < 1) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const minutes = Math.floor(seconds / 60);
  return minutes < 60 ? `${minutes} min ${Math.round(seconds % 60)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
};

export const pValue = (p) => (p == null ? "–" : p < 0.001 ? p.toExponential(1) : p.toFixed(3));

export const counted = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

// Characters that change how other text is shown, or that cannot be seen, are written as escapes.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b\u200e\u200f\u202a-\u202e\u2060-\u2069\ufeff]|\p{Cs}/gu;
export const visible = (text) => String(text ?? "").replace(HIDDEN, (found) => {
  const code = found.charCodeAt(0);
  return code < 256 ? `\\x${code.toString(16).padStart(2, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
});

export const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1) ?? "");

export const words = (name) => String(name).replaceAll("_", " ");
