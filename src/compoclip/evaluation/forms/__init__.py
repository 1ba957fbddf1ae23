"""The forms of items, one object each: `FORMS[name]` scores and judges items of that form.

Metrics of single items are comparisons between their scores, which determine ties and chance
(`cases.Comparisons`). Items ranked against each other are judged together, and chance depends on
the data: `BinaryForm.items`, and `RetrievalRanks.within` for retrieval and classification.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compoclip.benchmarks.case import Benchmark, Content, Form
from compoclip.evaluation.forms.cases import ONE_BY_ONE, BinaryForm
from compoclip.evaluation.forms.classification import ClassificationForm
from compoclip.evaluation.forms.form import ItemForm
from compoclip.evaluation.forms.probe import ProbeForm
from compoclip.evaluation.forms.retrieval import JudgedForm, RetrievalForm
from compoclip.evaluation.items import EncodedFeatures, Items

FORMS: Mapping[Form, ItemForm[Any]] = {
    **ONE_BY_ONE,
    Form.BINARY: BinaryForm(Form.BINARY, 1, 1, answers=2, metrics=("auc", "accuracy")),
    Form.RETRIEVAL: RetrievalForm(),
    Form.CLASSIFICATION: ClassificationForm(),
    Form.PROBE: ProbeForm(),
    Form.JUDGED: JudgedForm(),
}


def form_of(content: Content) -> ItemForm[Any]:
    """Return the form that scores the content as a whole: the one that judges items together, or
    any of forms that judge them one by one."""
    forms = [FORMS[name] for name in content.forms]
    return next((form for form in forms if form.together), forms[0])


def score(benchmark: Benchmark, features: EncodedFeatures, content: Content | None = None) -> Items:
    """Score and judge a benchmark's items, or those of a part of its content.

    features: of every image and text of `content`. Raises CompoclipError when an item does not fit
    its form, or the items cannot be judged.
    """
    content = benchmark.content if content is None else content
    return form_of(content).items(content, features, benchmark)
