"use strict";
(() => {
  const root = document.documentElement;
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  document.getElementById("theme").addEventListener("click", () => {
    const now = root.dataset.theme || (prefersDark.matches ? "dark" : "light"); // until one is chosen, the system's
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });

  for (const section of document.querySelectorAll(".check")) {
    const form = section.querySelector(".filters");
    if (!form) continue;
    const samples = [...section.querySelectorAll(".sample")];
    const texts = new Map(); // read at the first search
    const text = (sample) => {
      if (!texts.has(sample)) {
        const parts = [...sample.querySelectorAll("summary, pre, .gold code, .error")].map((part) => part.textContent);
        texts.set(sample, parts.join("\n").toLowerCase());
      }
      return texts.get(sample);
    };
    const apply = () => {
      const chosen = [...form.querySelectorAll("select")].filter((select) => select.value);
      const words = form.elements.search.value.trim().toLowerCase();
      let shown = 0;
      for (const sample of samples) {
        const keeps = chosen.every((select) => sample.dataset[select.name] === select.value);
        sample.hidden = !(keeps && (!words || text(sample).includes(words)));
        shown += sample.hidden ? 0 : 1;
      }
      form.querySelector(".count").textContent = `${shown} of ${samples.length} samples`;
    };
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }

  // A long answer is scrolled to where it diverges from the other. "toggle" does not bubble, but it is captured.
  document.addEventListener("toggle", (event) => {
    for (const mark of event.target.querySelectorAll("pre mark")) {
      const pre = mark.closest("pre");
      pre.scrollTop = mark.offsetTop - pre.clientHeight / 2;
    }
  }, true);

  // Texts of models and files go into code blocks, where Markdown, HTML and @names have no effect; the fence is longer than any in them.
  const ticks = (text, least) =>
    "`".repeat(Math.max(least, ...(text.match(/`+/g) || []).map((run) => run.length + 1)));
  const fence = (text) => `${ticks(text, 3)}text\n${text}\n${ticks(text, 3)}`;
  const code = (text) => {
    const line = text.replace(/\s+/g, " ").trim() || " ";
    return line.includes("`") ? `${ticks(line, 1)} ${line} ${ticks(line, 1)}` : `\`${line}\``;
  };
  const issue = (sample) => {
    const check = sample.closest(".check");
    const summary = sample.querySelector("summary").cloneNode(true);
    const [kind, facts] = [".tag", ".facts"].map((name) => summary.querySelector(name));
    [kind, facts].forEach((part) => part.remove());
    const gold = sample.querySelector(".gold code");
    return [
      `### ${kind.textContent}: ${code(summary.textContent)}`,
      `${code(check.querySelector("h2").textContent)}, ${code(check.querySelector(".sub").textContent)}`,
      facts.textContent,
      "**prompt**",
      fence(sample.querySelector(".prompt").textContent),
      gold && `gold: ${code(gold.textContent)}`,
      ...[...sample.querySelectorAll(".side")].flatMap((side) => [
        `**answer** ${code(side.querySelector("h5").textContent)}`,
        fence(side.querySelector("pre, .error").textContent),
      ]),
    ].filter(Boolean).join("\n\n") + "\n";
  };
  const copy = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // no permission, or an old browser
      const area = document.createElement("textarea");
      area.value = text;
      area.style.position = "fixed";
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  };
  document.addEventListener("click", async (event) => {
    const button = event.target.closest(".copy");
    if (!button) return;
    const [text, name] = [issue(button.closest(".sample")), button.dataset.name || button.textContent];
    await copy(text);
    Object.assign(button.dataset, { copied: text, name });
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = name; }, 1500);
  });
})();
