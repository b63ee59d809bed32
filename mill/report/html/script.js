"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia && window.matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "dark" : "light";
  document.getElementById("theme").addEventListener("click", () => {
    root.dataset.theme = root.dataset.theme === "dark" ? "light" : "dark";
  });

  for (const section of document.querySelectorAll(".check")) {
    const form = section.querySelector(".filters");
    if (!form) continue;
    const samples = [...section.querySelectorAll(".sample")];
    const apply = () => {
      const wanted = (name) => form.elements[name].value;
      const words = wanted("search").toLowerCase();
      let shown = 0;
      for (const sample of samples) {
        const keeps = ["variant", "category", "kind"].every((name) => !wanted(name) || sample.dataset[name] === wanted(name));
        sample.hidden = !(keeps && (!words || sample.dataset.search.includes(words)));
        shown += sample.hidden ? 0 : 1;
      }
      form.querySelector(".count").textContent = `${shown} of ${samples.length} samples`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }

  const fence = (text) => {
    const ticks = (text.match(/`+/g) || [""]).reduce((most, run) => Math.max(most, run.length), 2) + 1;
    const mark = "`".repeat(Math.max(3, ticks));
    return `${mark}text\n${text}\n${mark}`;
  };
  const issue = (sample) => {
    const heading = sample.querySelector("summary").innerText.replace(/\s+/g, " ").trim();
    const sides = [...sample.querySelectorAll(".side")].map((side) =>
      `**${side.querySelector("h5").innerText.trim()}**\n${fence(side.querySelector("pre").textContent || side.innerText)}`);
    return [`### ${heading}`, "**prompt**", fence(sample.querySelector(".prompt").textContent), ...sides].join("\n\n") + "\n";
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const text = issue(button.closest(".sample"));
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    button.dataset.copied = text;
    button.textContent = "Copied";
  });
})();
