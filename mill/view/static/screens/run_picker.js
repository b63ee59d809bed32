// Which runs a screen shows, as a list of check boxes that opens on demand.
import { html, setParams, visible } from "../lib.js";

// The runs that a screen shows at first.
export const newest = (runs, count) => [...runs].sort((a, b) => b.started.localeCompare(a.started)).slice(0, count).map((run) => run.uid);

export const RunPicker = ({ state, chosen }) => {
  const runs = state.runs.filter((run) => !run.of_check || chosen.includes(run.uid));
  const toggle = (uid, on) => setParams({ runs: (on ? [...chosen, uid] : chosen.filter((one) => one !== uid)).join(",") });
  return html`<details class="picker"><summary>${chosen.length} of ${runs.length} runs are shown: choose</summary>
    <fieldset><legend class="hidden">Runs to show</legend>${runs.map((run) => html`<label key=${run.uid}>
      <input type="checkbox" checked=${chosen.includes(run.uid)} onChange=${(event) => toggle(run.uid, event.target.checked)} /> ${visible(run.label)}</label>`)}</fieldset></details>`;
};
