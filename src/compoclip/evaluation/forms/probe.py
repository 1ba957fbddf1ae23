"""Linear probes: logistic regression on image features, as the CLIP paper fits it.

Radford et al., Learning Transferable Visual Models From Natural Language Supervision (ICML 2021),
appendix A.3: L-BFGS for at most 1,000 iterations, on features before the projection, the strength
of the L2 penalty chosen on validation photos among 10^-6 to 10^6 by a search that ends at 8 steps
per decade; the classifier that is measured is fitted to training and validation photos.

The objective is that of scikit-learn's `LogisticRegression`, with C the inverse of the strength:
with z_i = W x_i + b, and half of C for two classes, whose two rows of W are one there,

    C sum_i CE(z_i, y_i) + |W|^2 / 2

OpenAI's example of a probe takes features after the projection and a fixed C of 0.316;
CLIP_benchmark trains with AdamW on unit-length features after the projection. open_clip has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.special import logsumexp

from compoclip.benchmarks.case import (
    CLASS_LABEL,
    PROBED,
    Aggregate,
    Benchmark,
    Classification,
    Form,
    Probe,
)
from compoclip.console import counted, note
from compoclip.errors import CompoclipError, require
from compoclip.evaluation.forms.classification import classified
from compoclip.evaluation.forms.form import ItemForm, first_wins
from compoclip.evaluation.forms.retrieval import rank
from compoclip.evaluation.items import EncodedFeatures, Indices, Items, Values

_SOLVER = {"maxiter": 1000, "maxls": 50, "gtol": 1e-4, "ftol": 64 * np.finfo(float).eps}
_DECADES = (-6.0, -4.0, -2.0, 0.0, 2.0, 4.0, 6.0)
_FINEST = 1 / 8  # of a decade


def fit(features: Values, labels: Indices, classes: int, strength: float) -> Values:
    """Return the weights and biases (K, D + 1) of a logistic regression with K classes.

    features: (N, D). labels: (N,), of 0 .. K - 1. strength: C.
    """
    n, columns = len(labels), (np.arange(len(labels)), labels)
    penalty = (2 if classes == 2 else 1) / (strength * n)

    def objective(flat: Values) -> tuple[float, Values]:
        weights = flat.reshape(classes, -1)
        logits = features @ weights[:, :-1].T + weights[:, -1]
        total = logsumexp(logits, axis=1)
        loss = (total - logits[columns]).mean()
        slope = np.exp(logits - total[:, None])
        slope[columns] -= 1
        gradient = penalty * weights
        gradient[:, :-1] += slope.T @ features / n
        gradient[:, -1] = slope.mean(axis=0)
        return loss + penalty / 2 * (weights[:, :-1] ** 2).sum(), gradient.ravel()

    from scipy.optimize import minimize  # slow to import, and only a probe needs it

    start = np.zeros(classes * (features.shape[1] + 1))
    solution = minimize(objective, start, jac=True, method="L-BFGS-B", options=_SOLVER)
    weights: Values = solution.x.reshape(classes, -1)
    return weights


def search(accuracy: Callable[[float], float]) -> float:
    """Return the C with the highest accuracy: of seven, then of the middles beside the best so far.

    Of equally good ones the smallest counts.
    """
    measured: dict[float, float] = {}

    def best_of(decades: Sequence[float]) -> float:
        measured.update({x: accuracy(10.0**x) for x in decades if x not in measured})
        return max(sorted(measured), key=measured.__getitem__)

    peak, step = best_of(_DECADES), 1.0
    while step >= _FINEST:
        peak = best_of([x for x in (peak - step, peak + step) if abs(x) <= _DECADES[-1]])
        step /= 2
    return float(10.0**peak)


class ProbeForm(ItemForm[Probe]):
    """The class with the highest logit for each measured image.

    accuracy: it is the true one. Chance is what the best constant answer reaches, the most frequent
    class of the photos that the classifier is fitted to.
    """

    name = Form.PROBE
    metrics = ("accuracy",)

    def items(self, content: Probe, features: EncodedFeatures, benchmark: Benchmark) -> Items:
        """Fit the classifier and measure it; a note says which C was chosen.

        Raises CompoclipError for training photos of one class.
        """

        def of(part: Classification) -> tuple[Values, Indices]:
            rows = features.image_index(part.images)
            return features.images[rows].astype(np.float64), np.array(part.labels, dtype=np.int64)

        train, train_labels = of(content.train)
        held_out, held_out_labels = of(content.validation)
        images, labels = of(content.test)
        both: Values = np.concatenate([train, held_out])
        both_labels: Indices = np.concatenate([train_labels, held_out_labels])
        classes = len(content.test.classes)
        if len(np.unique(train_labels)) <= 1:
            raise CompoclipError(
                f"{benchmark.name}: the training photos are of one class, and a probe tells "
                "classes apart; add photos of others"
            )
        require(len(held_out), benchmark.name, "no validation photo is left; add some")

        def accuracy(strength: float) -> float:
            weights = fit(train, train_labels, classes, strength)
            return float(((_with_ones(held_out) @ weights.T).argmax(1) == held_out_labels).mean())

        strength = search(accuracy)
        measured = set(features.image_index(content.test.images).tolist())
        fitted = (*content.train.images, *content.validation.images)
        shared = len(measured.intersection(features.image_index(fitted).tolist()))
        also = f"; {counted(shared, 'photo')} of them are measured, too" if shared else ""
        note(
            f"{benchmark.name}: C = {strength:.3g}, chosen on {counted(len(held_out), 'photo')}; "
            f"fitted to {counted(len(both), 'photo')}{also}"
        )
        weights = fit(both, both_labels, classes, strength).astype(np.float32)
        ranks = rank(_with_ones(images).astype(np.float32), weights, [[k] for k in labels])
        (first,) = first_wins([PROBED], benchmark.ties, self.ties)
        constant = labels == np.bincount(both_labels).argmax()
        accuracies = ranks.within(1, first)._replace(chance=constant.astype(np.float64))
        items = classified(self.name, content.test, content.listed, ranks, {"accuracy": accuracies})
        return replace(items, extra={**items.extra, "c": [strength for _ in labels]})

    def rules(self, content: Probe, subtasks: Sequence[str]) -> tuple[dict[str, Aggregate], str]:
        """Accuracy, and its mean over the classes."""
        per_class = Aggregate((PROBED,), macro_by=CLASS_LABEL)
        return {"accuracy": Aggregate((PROBED,)), "mean-per-class": per_class}, "accuracy"


def _with_ones(features: Values) -> Values:
    """Return features (N, D + 1) whose products with weights and biases are logits."""
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)
