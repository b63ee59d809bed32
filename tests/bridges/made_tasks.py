"""Small tasks in lm-eval's format, of every kind, with their rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

ROWS: list[dict[str, Any]] = [
    {
        "question": f"What is {number} plus {number}?",
        "choices": [str(2 * number), str(number), str(3 * number + 1)],
        "gold": 0,
        "answer": str(2 * number),
        "text": f"The sum of {number} and {number} is {2 * number}.\n\nThat is all.",
        "label": number % 2,
    }
    for number in range(1, 25)
]

DATA = """
dataset_path: made/up
test_split: test
training_split: train
fewshot_split: train
"""
CHOICE = f"""{DATA}
output_type: multiple_choice
doc_to_text: "Q: {{{{question}}}}\\nA:"
doc_to_target: gold
doc_to_choice: choices
"""
TEXT = f"""{DATA}
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{answer}}}}"
"""
EXACT_MATCH = "metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]"

YAML = {
    "made_choice": f"""
task: made_choice
tag: made_tag
num_fewshot: 2
{CHOICE}
metric_list:
  - {{metric: acc, aggregation: mean, higher_is_better: true}}
  - metric: acc_norm
""",
    "made_mutual": f"task: made_mutual\nmetric_list: [metric: acc_mutual_info]\n{CHOICE}",
    "made_zero": f"task: made_zero\ntag: made_tag\nnum_fewshot: 0\nmetric_list: [metric: acc]\n{CHOICE}",
    "made_text": f"""
task: made_text
{TEXT}
generation_kwargs: {{until: ["\\n\\n", ""], max_gen_toks: 12, do_sample: false, num_beams: 1}}
filter_list:
  - name: strict-match
    filter:
      - {{function: regex, regex_pattern: '#### (\\d+)'}}
      - {{function: take_first}}
  - name: flexible-extract
    filter:
      - {{function: regex, group_select: -1, regex_pattern: '(\\d+|B)'}}
      - {{function: take_first}}
{EXACT_MATCH}
""",
    "made_repeats": f"""
task: made_repeats
repeats: 3
generation_kwargs: {{until: [x], do_sample: true, temperature: 0.7, max_gen_toks: 8}}
{TEXT}
{EXACT_MATCH}
""",
    "made_document": f"""
task: made_document
{DATA}
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{{{text}}}}"
metric_list: [{{metric: word_perplexity}}, {{metric: bits_per_byte}}]
""",
    "made_f1": f"""
task: made_f1
{DATA}
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_target: label
doc_to_choice: ["no", "yes"]
metric_list: [{{metric: f1}}, {{metric: acc}}]
""",
    "made_prefix": f"task: made_prefix\ngen_prefix: The answer is\n{TEXT}\n{EXACT_MATCH}\n",
    "made_last": f"""
task: made_last
{DATA}
output_type: loglikelihood
doc_to_text: "{{{{question}}}}"
doc_to_target: " {{{{answer}}}}"
metric_list: [{{metric: perplexity}}, {{metric: acc}}]
""",
    "made_code": f"task: made_code\nunsafe_code: true\n{TEXT}\n{EXACT_MATCH}\n",
    "made_group": """
group: made_group
task: [made_choice, made_zero]
aggregate_metric_list: [{metric: acc, weight_by_size: true}]
""",
    "made_outer": "group: made_outer\ntask: [made_group, made_mutual]\n",
}
TASKS = [name for name in YAML if name not in ("made_code", "made_group", "made_outer")]


def write_tasks(folder: Path) -> tuple[Path, Path]:
    """The folder of the YAML files, and the one for MILL_DATA with their rows."""
    tasks, data = folder / "tasks", folder / "data" / "made" / "up"
    tasks.mkdir()
    data.mkdir(parents=True)
    for name, text in YAML.items():
        (tasks / f"{name}.yaml").write_text(text)
    for split, rows in (("test", ROWS[:16]), ("train", ROWS[16:])):
        (data / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tasks, folder / "data"
