"""The prompts and scores of each text task, as strings worked out by hand from lm-evaluation-harness's definitions."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from mill.api.errors import DataError
from mill.api.message import Message
from mill.api.request import GENERATE, LOGLIKELIHOOD, ROLLING, Request
from mill.api.response import Response
from mill.api.task import RenderSettings, Sample, Task
from mill.execute.sample_state import SampleState
from mill.tasks.gsm8k import GSM8KReview
from mill.tasks.load import load_builtin, make_task
from mill.tasks.perplexity import join_pages

load_builtin()
Put = Callable[..., None]
ZERO, ONE = RenderSettings(n_shots=0), RenderSettings(n_shots=1)


def first(name: str) -> tuple[Task, Sample]:
    task = make_task(name)
    return task, task.samples()[0]


def rendered(name: str, settings: RenderSettings) -> tuple[Any, list[str]]:
    """The one context of the first sample's requests, and their continuations."""
    task, sample = first(name)
    requests = task.requests(sample, settings)
    (context,) = {request.context for request in requests}
    assert {request.kind for request in requests} == {LOGLIKELIHOOD}
    return context, [request.continuation for request in requests]


def generated(name: str, settings: RenderSettings) -> Request:
    """The one request of the first sample of a task that generates."""
    task, sample = first(name)
    (request,) = task.requests(sample, settings)
    assert (request.kind, request.continuation) == (GENERATE, "")
    return request


def scored(name: str, *scores: float) -> dict[str, Any]:
    task, sample = first(name)
    return task.score(sample, [Response(score=score) for score in scores])


def scored_text(name: str, text: str) -> dict[str, Any]:
    task, sample = first(name)
    return task.score(sample, [Response(text=text)])


def target(name: str) -> Any:
    task, sample = first(name)
    return task.target(sample)


def right_choice(name: str) -> int:
    """The index of the choice that is the target."""
    task, sample = first(name)
    return list(task.choice_texts(sample)).index(task.target(sample))


# MMLU

ALGEBRA = "The following are multiple choice questions (with answers) about abstract algebra.\n\n"
SUM = {"question": " What is 2 + 2? ", "choices": ["3", "4", "5", "22"], "answer": 1}
SUM_TEXT = "What is 2 + 2?\nA. 3\nB. 4\nC. 5\nD. 22\nAnswer:"
ORDER = {"question": "What is the order of Z_3?", "choices": ["1", "2", "3", "6"], "answer": 2}
UNIT = {"question": "Which is a unit of Z?", "choices": ["0", "2", "3", "-1"], "answer": 3}
UNIT_TEXT = "Which is a unit of Z?\nA. 0\nB. 2\nC. 3\nD. -1\nAnswer:"


@pytest.fixture
def mmlu(put: Put) -> None:
    put("cais/mmlu/abstract_algebra/test", SUM)
    put("cais/mmlu/abstract_algebra/dev", UNIT, ORDER, SUM)


def test_mmlu_needs_five_examples_and_says_when_there_are_fewer(mmlu: None) -> None:
    expected = (
        r"needs 5 examples before each question, but the dev split of cais/mmlu/abstract_algebra has only 2: lower --n"
    )
    with pytest.raises(DataError, match=expected):
        rendered("mmlu_abstract_algebra", RenderSettings())


def test_a_system_prompt_without_a_chat_template_comes_first(mmlu: None) -> None:
    context, continuations = rendered("mmlu_abstract_algebra", RenderSettings(n_shots=1, system_prompt="Be brief."))
    assert context == f"Be brief.\n\n{ALGEBRA}{UNIT_TEXT} D\n\n{SUM_TEXT}"
    assert continuations == [" A", " B", " C", " D"]


# Multiple choice by log-probability: every benchmark without an example and with one

DOG = {
    "activity_label": "Pets",
    "ctx_a": "A dog sees a ball.",
    "ctx_b": "the Dog",
    "ctx": "A dog sees a ball. the Dog",
    "endings": ["sings.", " runs [substeps] after it. ", "[header] reads [title] a book.", "flies"],
    "label": "1",
}
EGG = {
    "activity_label": "Food",
    "ctx_a": "[header] How to boil an egg [title] Fill a pot. [step] Use cold water.",
    "ctx_b": "",
    "ctx": "[header] How to boil an egg [title] Fill a pot. [step] Use cold water.",
    "endings": ["Eat the pot.", "Heat it.", "Paint it.", "Sell it."],
    "label": "1",
}
STONE = {
    "question": "What is hard?",
    "choices": {"text": ["milk", "stone", "air"], "label": ["A", "B", "C"]},
    "answerKey": "B",
}
RAIN = {
    "question": "What is wet?",
    "choices": {"text": ["sand", "fire", "rain"], "label": ["1", "2", "3"]},
    "answerKey": "3",
}
LID = {"goal": "Open a jar.", "sol1": "Sing.", "sol2": "Turn the lid.", "label": 1}
NAIL = {"goal": "Drive a nail.", "sol1": "Use a hammer.", "sol2": "Use soup.", "label": 0}
BOIL = {"passage": "Water boils at 100 C.", "question": "does water boil"}
BOIL_TEXT = "Water boils at 100 C.\nQuestion: does water boil?\nAnswer:"
SUN = {"question_stem": "The sun gives", "choices": {"text": ["milk", "light"], "label": ["A", "B"]}, "answerKey": " B"}
COW = {"question_stem": "A cow eats", "choices": {"text": ["grass", "glass"], "label": ["A", "B"]}, "answerKey": "A"}
RAIN_TEXT = "Question: What is wet?\nAnswer: rain\n\n"
STONES = [" milk", " stone", " air"]
# Task -> the folder of its data; the evaluated split with its row, that of the examples with its; the example, the question
# and the choices as they are sent; the index of the right one.
CHOICES: dict[str, tuple[str, tuple[str, Any], tuple[str, Any], str, str, list[str], int]] = {
    "mmlu_abstract_algebra": ("cais/mmlu/abstract_algebra", ("test", SUM), ("dev", UNIT), f"{UNIT_TEXT} D\n\n", SUM_TEXT,
                              [" A", " B", " C", " D"], 1),
    "hellaswag": ("Rowan/hellaswag", ("validation", DOG), ("train", EGG),
                  "Food: How to boil an egg. Fill a pot. Use cold water. Heat it.\n\n", "Pets: A dog sees a ball. The dog",
                  [" sings.", " runs after it.", "  reads. a book.", " flies"], 1),
    "arc_easy": ("allenai/ai2_arc/ARC-Easy", ("test", STONE), ("train", RAIN), RAIN_TEXT,
                 "Question: What is hard?\nAnswer:", STONES, 1),
    "arc_challenge": ("allenai/ai2_arc/ARC-Challenge", ("test", STONE), ("train", RAIN), RAIN_TEXT,
                      "Question: What is hard?\nAnswer:", STONES, 1),
    "piqa": ("baber/piqa", ("validation", LID), ("train", NAIL), "Question: Drive a nail.\nAnswer: Use a hammer.\n\n",
             "Question: Open a jar.\nAnswer:", [" Sing.", " Turn the lid."], 1),
    "boolq": ("aps/super_glue/boolq", ("validation", {**BOIL, "label": 1}),
              ("train", {"passage": "Ice is cold.", "question": "is ice hot", "label": 0}),
              "Ice is cold.\nQuestion: is ice hot?\nAnswer: no\n\n", BOIL_TEXT, [" no", " yes"], 1),
    "openbookqa": ("allenai/openbookqa/main", ("test", SUN), ("train", COW), "A cow eats grass\n\n", "The sun gives",
                   [" milk", " light"], 1),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_a_question_and_an_example_of_every_benchmark(put: Put, name: str) -> None:
    folder, (split, row), (pool, shot), example, question, choices, right = CHOICES[name]
    put(f"{folder}/{split}", row)
    put(f"{folder}/{pool}", shot)
    about = ALGEBRA if name.startswith("mmlu") else ""
    assert rendered(name, ZERO) == (about + question, choices)
    assert rendered(name, ONE) == (about + example + question, choices)
    assert right_choice(name) == right


def test_normed_accuracy_is_by_character_of_the_cleaned_endings(put: Put) -> None:
    put("Rowan/hellaswag/validation", DOG)
    # Characters: 6, 14, 15, 5.
    assert scored("hellaswag", -6.0, -7.0, -15.0, -5.5) == {"acc": 0.0, "acc_norm": 1.0}


# ARC and PIQA


def test_arc_answer_keys_may_be_digits(put: Put) -> None:
    put("ai2_arc/ARC-Easy/test", RAIN)
    assert right_choice("arc_easy") == 2
    assert target("arc_easy_gen") == "rain"
    assert scored("arc_easy", -3.0, -2.0, -1.0) == {"acc": 1.0, "acc_norm": 1.0}


def test_another_split_that_is_used_is_reported(put: Put) -> None:
    put("ai2_arc/ARC-Easy/validation", STONE)
    assert make_task("arc_easy").warnings() == ["the validation split is used instead of test, which is missing"]


def test_examples_from_another_split_are_noted_and_skip_the_question(put: Put) -> None:
    put("ai2_arc/ARC-Easy/test", STONE, RAIN)
    task, sample = first("arc_easy")
    assert (
        task.requests(sample, ONE)[0].context == "Question: What is wet?\nAnswer: rain\n\nQuestion: What is hard?\nAnswer:"
    )
    assert task.warnings() == ["examples come from the test split, since train is missing"]


@pytest.fixture
def piqa(put: Put) -> None:
    put("baber/piqa/validation", LID)
    put("baber/piqa/train", NAIL)


def test_a_chat_template_gets_messages_and_no_space_before_the_answer(piqa: None) -> None:
    settings = RenderSettings(n_shots=0, system_prompt="Be brief.", apply_chat_template=True)
    messages = (Message("system", "Be brief."), Message("user", "Question: Open a jar.\nAnswer:"))
    assert rendered("piqa", settings) == (messages, ["Sing.", "Turn the lid."])


def test_a_chat_template_gets_examples_in_the_users_message(piqa: None) -> None:
    text = "Question: Drive a nail.\nAnswer: Use a hammer.\n\nQuestion: Open a jar.\nAnswer:"
    assert rendered("piqa", RenderSettings(n_shots=1, apply_chat_template=True))[0] == (Message("user", text),)
    turns = rendered("piqa", RenderSettings(n_shots=1, apply_chat_template=True, fewshot_as_multiturn=True))[0]
    assert [turn.role for turn in turns] == ["user", "assistant", "user"]
    assert " ".join(turn.text for turn in turns).split() == text.split()


def test_normed_accuracy_counts_characters_not_bytes(put: Put) -> None:
    put("piqa/validation", {"goal": "?", "sol1": "éé", "sol2": "abcd", "label": 0})
    # -2.4/4 beats -2/2; by bytes -2/4 would win.
    assert scored("piqa", -2.0, -2.4) == {"acc": 1.0, "acc_norm": 0.0}


def test_choices_that_all_have_no_probability_are_an_error(piqa: None) -> None:
    with pytest.raises(ValueError, match="no choice has a finite log-probability"):
        scored("piqa", -math.inf, -math.inf)


# WinoGrande

CUP = {"sentence": "The cup is not in the bag because the _ is big.", "option1": "cup", "option2": "bag", "answer": "1"}
ANN = {"sentence": "Ann thanked Sue as _ had helped.", "option1": "Ann", "option2": "Sue", "answer": "2"}
CUPS = ["The cup is not in the bag because the cup", "The cup is not in the bag because the bag"]


@pytest.fixture
def winogrande(put: Put) -> None:
    put("allenai/winogrande/winogrande_xl/validation", CUP)
    put("allenai/winogrande/winogrande_xl/train", ANN)


@pytest.mark.parametrize(("settings", "before"), [(ZERO, ""), (ONE, "Ann thanked Sue as Sue had helped.\n\n")])
def test_winogrande_scores_the_rest_after_each_name(winogrande: None, settings: RenderSettings, before: str) -> None:
    task, sample = first("winogrande")
    requests = task.requests(sample, settings)
    assert [request.context for request in requests] == [before + text for text in CUPS]
    assert [request.continuation for request in requests] == [" is big.", " is big."]
    assert right_choice("winogrande") == 0


def test_winogrande_in_a_chat_has_no_space_before_the_rest(winogrande: None) -> None:
    task, sample = first("winogrande")
    requests = task.requests(sample, RenderSettings(n_shots=0, apply_chat_template=True))
    assert [request.context for request in requests] == [(Message("user", text),) for text in CUPS]
    assert [request.continuation for request in requests] == ["is big.", "is big."]


# BoolQ


@pytest.mark.parametrize(
    ("folder", "columns", "right"),
    [
        ("super_glue/boolq", {"label": 1}, 1),
        ("super_glue/boolq", {"label": 0}, 0),
        ("google/boolq", {"answer": True}, 1),
        ("google/boolq/default", {"answer": False}, 0),
    ],
)
def test_boolq_reads_both_forms_of_the_dataset(put: Put, folder: str, columns: dict[str, Any], right: int) -> None:
    put(f"{folder}/validation", {**BOIL, **columns})
    assert rendered("boolq", ZERO)[0] == BOIL_TEXT
    assert right_choice("boolq") == right
    assert scored("boolq", -2.0, -1.0) == {"acc": float(right)}


# GSM8K

NUTS = {"question": "Tom has 2 bags of 617 nuts. How many?", "answer": "2 * 617 = <<2*617=1234>>1234\n#### 1,234"}
EGGS = {"question": "3 eggs, 1 breaks. How many are left?", "answer": "3 - 1 = <<3-1=2>>2\n#### 2"}
NUTS_TEXT = "Question: Tom has 2 bags of 617 nuts. How many?\nAnswer:"


@pytest.fixture
def gsm8k(put: Put) -> None:
    put("openai/gsm8k/main/test", NUTS)
    put("openai/gsm8k/main/train", EGGS)


def test_gsm8k_with_and_without_an_example(gsm8k: None) -> None:
    request = generated("gsm8k", ZERO)
    assert request.context == NUTS_TEXT
    assert request.options == {"until": ("Question:", "</s>", "<|im_end|>"), "max_gen_toks": 256, "temperature": 0.0}
    example = "Question: 3 eggs, 1 breaks. How many are left?\nAnswer: 3 - 1 = <<3-1=2>>2\n#### 2"
    assert generated("gsm8k", ONE).context == f"{example}\n\n{NUTS_TEXT}"
    assert target("gsm8k") == "1234"


@pytest.mark.parametrize(
    ("text", "strict", "flexible"),
    [
        (" 2 * 617\n#### 1,234", 1.0, 1.0),
        ("The answer is $1,234.", 0.0, 1.0),
        ("#### $1234", 0.0, 1.0),
        ("#### 1234 nuts, or 2 bags", 1.0, 0.0),
        ("#### 7\n#### 1234", 0.0, 1.0),
        ("", 0.0, 0.0),
    ],
)
def test_gsm8k_scores_strictly_and_flexibly(gsm8k: None, text: str, strict: float, flexible: float) -> None:
    assert scored_text("gsm8k", text) == {"exact_match": strict, "exact_match_flexible": flexible}


# MMLU-Pro

BIOLOGY = (
    "The following are multiple choice questions (with answers) about biology. Think step by step and then finish your "
    'answer with "the answer is (X)" where X is the correct letter choice.\n'
)
DNA = {
    "question": "Where is DNA?",
    "options": [" nucleus ", "wall", "sap"],
    "answer": "A",
    "cot_content": "",
    "category": "biology",
}
DNA_TEXT = "Question:\nWhere is DNA?\nOptions:\nA. nucleus\nB. wall\nC. sap\nAnswer: Let's think step by step."
LEAF = {
    "question": "Why are leaves green?",
    "options": ["paint", "chlorophyll"],
    "answer": "B",
    "cot_content": "A: Let's think step by step. Chlorophyll is green. The answer is (B).",
    "category": "biology",
}
LEAF_TEXT = (
    "Question:\nWhy are leaves green?\nOptions:\nA. paint\nB. chlorophyll\n"
    "Answer: Let's think step by step. Chlorophyll is green. The answer is (B)."
)


@pytest.fixture
def mmlu_pro(put: Put) -> None:
    put("TIGER-Lab/MMLU-Pro/test", {**DNA, "category": "law"}, DNA, {**DNA, "category": "computer science", "answer": "C"})
    put("TIGER-Lab/MMLU-Pro/validation", {**LEAF, "category": "law"}, LEAF, {**LEAF, "question": "Second?"})


def test_mmlu_pro_with_and_without_an_example(mmlu_pro: None) -> None:
    request = generated("mmlu_pro_biology", ZERO)
    assert request.context == BIOLOGY + DNA_TEXT
    assert request.options == {"until": ("Question:",), "max_gen_toks": 2048, "temperature": 0.0}
    assert generated("mmlu_pro_biology", ONE).context == f"{BIOLOGY}{LEAF_TEXT}\n\n{DNA_TEXT}"
    assert target("mmlu_pro_biology") == "A"


def test_mmlu_pro_keeps_the_rows_of_its_category_for_questions_and_examples(mmlu_pro: None) -> None:
    assert [sample.doc for sample in make_task("mmlu_pro_biology").samples()] == [DNA]
    assert target("mmlu_pro_computer_science") == "C"
    with pytest.raises(DataError, match=r"mmlu_pro_biology needs 5 examples .* has only 2"):
        generated("mmlu_pro_biology", RenderSettings())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("DNA is in the nucleus. The answer is (A).", 1.0),
        ("The answer is (A). No, the answer is (B).", 1.0),
        ("The answer is (B). No, the answer is (A).", 0.0),
        ("A", 0.0),
        ("", 0.0),
    ],
)
def test_mmlu_pro_takes_the_first_stated_letter(mmlu_pro: None, text: str, value: float) -> None:
    assert scored_text("mmlu_pro_biology", text) == {"exact_match": value}


# WikiText

RAW = (
    " = Heat = \n The point is 100 @.@ 5 ° C , or 1 @,@ 000 in the low @-@ pressure unit"
    " ( see \" Units \" ) . It 's known . \n = = History = = \n = = = Early = = = \n The boys ' tea ; why ? \n"
)
PLAIN = (
    ' = Heat =\nThe point is 100.5°C, or 1,000 in the low-pressure unit (see "Units"). It\'s known.\n'
    "== History ==\n=== Early ===\nThe boys' tea; why?\n"
)


def test_wikitext_is_scored_detokenized(put: Put) -> None:
    put("EleutherAI/wikitext_document_level/wikitext-2-raw-v1/test", {"page": RAW})
    task, sample = first("wikitext")
    (request,) = task.requests(sample, RenderSettings())
    assert (request.kind, request.context, request.continuation) == (ROLLING, PLAIN, "")
    assert task.warnings() == []


def test_wikitext_counts_words_and_bytes_of_the_original(put: Put) -> None:
    put("EleutherAI/wikitext_document_level/wikitext-2-raw-v1/test", {"page": " = Été = \n One two . \n"})
    # Words: = Été = One two . and an empty one at either end. Bytes: 22 characters, of which two take two.
    assert scored("wikitext", -10.0) == {
        "word_perplexity": (-10.0, 8.0),
        "byte_perplexity": (-10.0, 24.0),
        "bits_per_byte": (-10.0, 24.0),
    }


LINES = [" \n", " = First = \n", " \n", " One . \n", " = = Part = = \n", " 2 = 2 \n", " = Second one = \n", " Two . \n"]
PAGES = [" = First = \n \n One . \n = = Part = = \n 2 = 2 \n", " = Second one = \n Two . \n"]


def test_wikitext_lines_are_joined_into_pages_at_first_level_titles(put: Put) -> None:
    assert join_pages(LINES) == PAGES
    put("Salesforce/wikitext/wikitext-2-raw-v1/test", *({"text": line} for line in LINES))
    assert [sample.doc for sample in make_task("wikitext").samples()] == [{"page": page} for page in PAGES]


def test_wikitext_without_raw_text_reports_that_another_form_is_used(put: Put) -> None:
    put("Salesforce/wikitext/wikitext-2-v1/test", *({"text": line} for line in LINES))
    task = make_task("wikitext")
    assert len(task.samples()) == 2
    assert task.warnings() == [
        "wikitext-2-v1, with its <unk> words, is used instead of wikitext-2-raw-v1: scores are not comparable"
    ]


PROMPT = (
    "Solve the problem step by step. End with a line that holds #### and the number alone.\n\n"
    "Question: Tom has 2 bags of 3 nuts. How many nuts?\nAnswer:"
)
REVIEW = "Check every step of your answer. Correct what is wrong, then end again with #### and the number alone."


@pytest.fixture
def review(put: Put) -> GSM8KReview:
    put("gsm8k/test", {"question": "Tom has 2 bags of 3 nuts. How many nuts?", "answer": "2 * 3 = <<2*3=6>>6\n#### 6"})
    return GSM8KReview("gsm8k_review")


def test_the_second_round_sees_the_first_answer(review: GSM8KReview) -> None:
    (sample,) = review.samples()
    (first,) = review.requests(sample, RenderSettings())
    assert first.context == (Message("user", PROMPT),)
    answers = [Response(text="5\n#### 5"), Response(text="#### 6")]
    second = review.next_round(sample, RenderSettings(), answers[:1])
    assert second is not None
    assert second.context == (*first.context, Message("assistant", "5\n#### 5"), Message("user", REVIEW))
    assert review.next_round(sample, RenderSettings(), answers) is None


@pytest.mark.parametrize(
    ("first", "second", "values"),
    [
        ("#### 5", "#### 6", {"exact_match_first": 0.0, "exact_match": 1.0, "changed": 1.0}),
        ("#### 6", "#### 5", {"exact_match_first": 1.0, "exact_match": 0.0, "changed": 1.0}),
        ("#### 6", "Yes, it is $6.", {"exact_match_first": 1.0, "exact_match": 1.0, "changed": 0.0}),
        ("no idea", "#### 6", {"exact_match_first": 0.0, "exact_match": 1.0, "changed": 1.0}),
    ],
)
def test_both_answers_are_scored(review: GSM8KReview, first: str, second: str, values: dict[str, float]) -> None:
    (sample,) = review.samples()
    assert review.score(sample, [Response(text=first), Response(text=second)]) == values
    assert set(values) == set(review.metrics)


def test_a_failed_first_round_ends_the_dialog_with_its_error(review: GSM8KReview) -> None:
    (sample,) = review.samples()
    state = SampleState.of(review, sample, RenderSettings())
    state.answers[state.first_request.key] = [Response(error="server gone")]
    assert not state.advance()
    assert [[response.error for response in repeat] for repeat in state.repeats()] == [["server gone"]]
