"""Methods made of the parts of others; losses that remember; the list of methods."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import torch

from build.runs import losses
from compoclip.cli.main import main
from compoclip.data.caption_plan import OneOf
from compoclip.data.transform import ImageTransform, RandomCrop
from compoclip.errors import UsageError
from compoclip.losses.contract import Features, Layout, Role
from compoclip.losses.intra_cross import RankingLoss
from compoclip.losses.rows import OnlyKinds, missing
from compoclip.methods.base import Method
from compoclip.methods.compose import compose
from compoclip.methods.registry import load_recipe, method_names
from compoclip.models.checkpoint import load_model
from compoclip.models.preprocess import Preprocess
from losses_oracle import features_for, layout_of
from method_data import PLAIN, arguments, differing, run_of
from own_files import METHOD


def method(name: str, **options: object) -> Method:
    return load_recipe(name)(**options)


def test_texts_of_others_are_added_after_the_method_s_own() -> None:
    fsc = method("fsc-clip")
    both = compose(fsc, ["+mosaic", "+hard-positives", "+tsvlc-rb"])
    assert both.plan.rewrites[:3] == fsc.plan.rewrites
    assert [each for each in both.plan.rewrites if isinstance(each, OneOf)] == list(
        method("hard-positives").plan.rewrites
    )
    assert both.plan.texts == method("mosaic-clip").plan.texts
    assert both.kinds[: len(fsc.kinds)] == fsc.kinds
    assert both.name == "fsc-clip+mosaic+hard-positives+tsvlc-rb"
    assert both.composed == ("texts +mosaic", "texts +hard-positives", "texts +tsvlc-rb")
    assert both.record()["composed"] == list(both.composed)
    alone = compose(fsc, ["negclip", "+replace"])
    assert alone.plan.rewrites == ("negclip", "replace")
    assert compose(fsc).losses == fsc.losses


def test_settings_reach_the_parts() -> None:
    settings = ["terms.negclip.weight=0.5", "texts.hn_fraction=0.25", "images.count=3"]
    settings += ["trains.image_tower=false", "optim.lr=1e-3", "optim.batch_size=32"]
    made = compose(method("negclip-original"), settings=settings)
    assert made.losses[0].weight == 0.5
    assert made.plan.hn_fraction == 0.25
    assert made.images.count == 3  # type: ignore[union-attr]
    assert not made.trains.image_tower
    assert (made.optim.lr, made.optim.batch_size) == (1e-3, 32)
    less = compose(method("fsc-clip"), settings=["terms.local_hn.weight=0"])
    assert [term.name for term in less.losses] == ["clip", "global_hn"]
    assert not less.needs_local
    for weights in ("1,0,0", "[1, 0, 0]"):
        graph = compose(method("mosaic-clip"), settings=[f"texts.graph.weights={weights}"])
        (texts,) = graph.plan.texts
        assert texts.record()["weights"] == (1.0, 0.0, 0.0)
    bags = compose(method("dac"), settings=['texts.bags.negatives=["negclip", "replace"]'])
    records = {part.name: part.record() for part in bags.plan.texts}
    assert records["bags"]["negatives"] == ("negclip", "replace")


@pytest.mark.parametrize(
    ("texts", "terms", "settings", "message"),
    [
        (["+mosiac"], [], [], "no method or rewrite 'mosiac'; did you mean mosaic"),
        (["+clip-ft"], [], [], "clip-ft adds no texts"),
        ([], ["mosaic"], [], r"write \+METHOD"),
        ([], ["+mosaik"], [], "no method 'mosaik'; did you mean mosaic"),
        ([], ["+mosaic"], [], r"no texts of mosaic-clip; add --texts \+mosaic-clip"),
        ([], ["+fsc.glob"], [], "no term 'glob'; did you mean global_hn"),
        ([], ["+clic"], [], "batches that only clic makes"),
        ([], [], ["terms.clip=1"], "only the weight"),
        ([], [], ["terms.klip.weight=1"], "no term 'klip'; did you mean clip"),
        ([], [], ["terms.clip.weight=-1"], "0 or more"),
        ([], [], ["terms.clip.weight=x"], "'x' is not a number"),
        ([], [], ["terms.clip.weight=0"], "without a loss"),
        ([], [], ["clip"], "write PATH=VALUE"),
        ([], [], ["term.clip.weight=1"], "no part 'term'; did you mean terms"),
        ([], [], ["texts.hn_fracton=1"], "no 'hn_fracton'; did you mean hn_fraction"),
        ([], [], ["texts.hn_fraction=2"], "between 0 and 1"),
        ([], [], ["texts.rewrites=a"], "cannot be set in this way"),
        ([], [], ["trains.image_tower=maybe"], "is not true or false"),
        ([], [], ["lora.rank=2"], "clip-ft has no lora"),
        ([], [], ["optim.batch_size=1.5"], "not a whole number"),
        ([], [], ["texts.cleaned=some"], "'some' is not one of all, variations, texts"),
        (["+mosaic"], [], ["texts.graph.weights=[1, x]"], r"'\[1, x\]' is not a list"),
        (["+mosaic"], [], ["texts.graph.weights=[1, 0"], r"'\[1, 0' is not a list"),
        (["+mosaic"], [], ["texts.graph.weights=[]"], "graph weights must be three numbers"),
        (["+mosaic"], [], ["texts.graph.weights=1,0"], "graph weights must be three numbers"),
    ],
)
def test_what_does_not_fit_is_one_clear_line(
    texts: list[str], terms: list[str], settings: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as raised:
        compose(method("clip-ft"), texts, terms, settings)
    assert "\n" not in str(raised.value)


def test_texts_that_no_term_reads_are_noted(capsys: pytest.CaptureFixture[str]) -> None:
    compose(method("fsc-clip"), ["+hard-positives"])
    assert "no loss term reads the positive texts (synonym, and-swap)" in capsys.readouterr().err
    compose(method("fsc-clip"), ["+hard-positives"], ["+hard-positives.positive"])
    assert capsys.readouterr().err == ""


def test_added_terms_see_their_own_texts() -> None:
    made = compose(method("negclip"), ["+ce-clip"], ["+ce-clip"])
    names = [term.name for term in made.losses]
    assert names == ["negclip", "ce-clip.negclip", "ranking", "intra_modal"]
    ranking = made.losses[2].loss
    assert isinstance(ranking, OnlyKinds)
    assert made.kinds == ("negclip", *ranking.kinds)
    # ce-clip's own ranking of a batch without the foreign kind is the same loss.
    texts = [(0, Role.CAPTION, -1), (0, Role.NEGATIVE, 0), (0, Role.NEGATIVE, 2)]
    texts += [(1, Role.CAPTION, -1), (1, Role.NEGATIVE, 4)]
    layout = layout_of(texts, made.kinds)
    features = features_for(layout)
    keep = torch.tensor([0, 2, 3, 4])
    alone = Layout(
        owner=layout.owner[keep],
        role=layout.role[keep],
        rewrite=torch.tensor([-1, 1, -1, 3]),
        images=2,
        kinds=ranking.kinds,
    )
    few = Features(features.image, features.text[keep], features.logit_scale)
    own = RankingLoss(ranking.kinds)
    for _ in range(3):
        assert ranking(features, layout).item() == pytest.approx(own(few, alone).item())
        assert ranking.state_dict() == own.state_dict()
    ranking.load_state_dict({})
    assert set(ranking.state_dict().values()) == {0.0}


def test_negatives_that_were_added_are_none_that_could_be_missing() -> None:
    own = method("fsc-clip", missing_hn="zero")
    made = compose(own, ["+crepe-swap"])
    texts = [(0, Role.CAPTION, -1), (0, Role.NEGATIVE, 0), (1, Role.CAPTION, -1)]
    layout = layout_of([*texts, (1, Role.NEGATIVE, 3)], made.kinds)
    features = features_for(layout)
    # Image 0 lacks two of the three kinds of the method, image 1 all; no fourth is looked for.
    assert made.kinds[3] == "crepe-swap"
    assert layout.indices(missing, own.kinds)[0].tolist() == [2, 3]
    for before, after in zip(own.losses, made.losses, strict=True):
        assert after.loss(features, layout) == before.loss(features, layout)


@pytest.mark.parametrize(("name", "terms"), [("ce-clip", {"ranking"}), ("dac", {"negclip", "bag"})])
def test_terms_that_name_kinds_do_not_read_foreign_texts(name: str, terms: set[str]) -> None:
    made = compose(method(name), ["+bigram-shuffle"])
    own, foreign = made.kinds[0], made.kinds[-1]
    texts = [(i, Role.CAPTION, -1) for i in range(2)]
    texts += [(0, Role.NEGATIVE, 0), (1, Role.NEGATIVE, 0)]
    layout = layout_of([*texts, (1, Role.NEGATIVE, 1)], (own, foreign))
    features = features_for(layout)
    for term in made.losses:
        value = term.loss(features, layout)
        assert torch.isfinite(value)
        (grad,) = torch.autograd.grad(value, features.text, allow_unused=True)
        assert term.name not in terms or not grad[-1].any()


def test_a_composed_run_is_recorded(world: Path, tmp_path: Path) -> None:
    words = ["--texts", "+mosaic", "+hard-positives", "--set", "terms.local_hn.weight=0.5"]
    short = "--epochs=1"
    run = tmp_path / "run"
    assert main(arguments(world, "fsc-clip", run, *words, short, "--set=stop_after=2")) == 0
    assert main(arguments(world, "fsc-clip", run, short, "--resume")) == 1  # not the same run
    assert main(arguments(world, "fsc-clip", run, *words, short, "--resume")) == 0
    provenance = load_model(run / "model").provenance
    assert provenance["method"] == "fsc-clip+mosaic+hard-positives"
    texts = ["texts +mosaic", "texts +hard-positives"]
    assert provenance["composed"] == [*texts, "set terms.local_hn.weight=0.5"]
    weights = {term["name"]: term["weight"] for term in provenance["terms"]}
    assert weights["local_hn"] == 0.5
    assert provenance["texts"]["graph"]["stages"][1]["start"] == 2


def test_images_are_cropped_as_the_method_does_or_as_asked(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[object] = []
    made = ImageTransform.__init__

    def noted(self: ImageTransform, preprocess: Preprocess, crop: object, *more: bool) -> None:
        used.append(crop)
        made(self, preprocess, crop, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(ImageTransform, "__init__", noted)
    for name, asked, crop in (
        ("clip-ft", (), True),
        ("clip-ft", ("--no-crop",), False),
        ("triplet-clip", (), False),
        ("triplet-clip", ("--crop",), True),
    ):
        used.clear()
        run = tmp_path / f"{name}{''.join(asked)}"
        assert main(arguments(world, name, run, "--epochs=0.2", *asked)) == 0
        assert used == [RandomCrop() if crop else None], (name, asked)
        assert load_model(run / "model").provenance["crop"] is crop


def test_what_stands_in_for_a_language_model_is_said_and_counted(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "`replace` takes words from a lexicon; the paper used a masked language model"
    for name in ("dac", "tsvlc-llm"):
        run = tmp_path / name
        assert main(arguments(world, name, run, "--epochs=0.4")) == 0
        output = capsys.readouterr()
        assert f"{name}: {said}" in output.err
        assert "  replace: made for" in output.out
        provenance = load_model(run / "model").provenance
        made = {name: counts["made"] for name, counts in made_of(run).items()}
        assert made["replace"] + made["tsvlc-rb-spatial"] == made["hard-negative"]
        assert provenance["texts"]["rewrites"][0]["of"] == ["tsvlc-rb-spatial", "replace"]
    bags = made_of(tmp_path / "dac")
    parts = [bags[f"bag-negative ({each})"]["made"] for each in ("tsvlc-rb-spatial", "replace")]
    assert min(parts) > 0
    assert sum(parts) == bags["bag-negative"]["made"]
    # With a file of texts that one wrote, nothing stands in.
    texts = tmp_path / "written.jsonl"
    texts.write_text('{"caption": "x", "negative": "y"}\n')
    asked = arguments(world, "dac", tmp_path / "file", "--epochs=0.2", f"--negatives={texts}")
    assert main(asked) == 0
    assert said not in capsys.readouterr().err
    assert "replace" not in made_of(tmp_path / "file")


def made_of(run: Path) -> dict[str, dict[str, int]]:
    made: dict[str, dict[str, int]] = load_model(run / "model").provenance["run"]["rewrites"]
    return made


@pytest.mark.parametrize("name", [name for name in differing() if run_of(name)["photos"]])
def test_options_take_the_place_of_columns_that_captioned_photos_lack(
    name: str, world: Path, tmp_path: Path
) -> None:
    plain = (f"--data={world / PLAIN}", "--epochs=0.6", *run_of(name)["photos"])
    assert main(arguments(world, name, tmp_path / "run", *plain)) == 0
    assert all(map(math.isfinite, losses(tmp_path / "run")))
    provenance = load_model(tmp_path / "run" / "model").provenance
    assert provenance["method"] == run_of(name)["photos_name"]
    assert (provenance["run"]["steps"], provenance["run"]["skipped"]) == (3, 0)
    assert any(rewrite["made"] for rewrite in made_of(tmp_path / "run").values())


def test_the_list_of_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "methods"]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[2 : 2 + len(method_names())]]
    assert names == method_names()
    assert "differ" not in "\n".join(lines)
    assert "0.5 contrast + 0.5 negative + uni + clip (single)" in "\n".join(lines)
    assert main(["list", "methods", "ce-clip", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["paper"] == "Zhang et al., CVPR 2024"
    assert [term["weight"] for term in record["terms"]] == [1.0, 0.2, 0.3]
    assert record["kinds"] == ["ce-swap", "ce-adj", "ce-noun", "ce-verb"]
    (imc,) = record["differences"]
    assert (imc["option"], imc["default"], imc["released"]) == ("imc", "paper", "head")
    assert record["crop"] is True
    assert main(["list", "methods", "ce-klip"]) == 2
    assert "no method 'ce-klip'; did you mean ce-clip" in capsys.readouterr().err


def test_a_method_tells_where_paper_and_released_code_differ(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["list", "methods", "fsc-clip-l14", "triplet-clip", "clip-ft", "dac"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {
        "fsc-clip-l14: where the paper and the released code differ, or one is silent",
        "  weights stated (released: effective)",
        "  hn_reduction valid (as released; paper: batch)",
        "  missing_hn mask (as in the paper; released: zero)",
        "  attention_grad off (as released)",
        "  crop off (as released)",
        "  lr 5e-06 (released: 0.0005)",
        "clip-ft: no option over which paper and released code differ",
        "  negatives none",
        "  lora_init zero (released: xavier_ab)",
    } <= {*lines}
    why = lines[lines.index("  weights stated (released: effective)") + 1]
    assert why.startswith("      These are the weights of the formula.")


OWN = METHOD.replace("Optim, recipe", "Optim, recipe, variant")


def test_a_recipe_in_a_file_of_one_s_own(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my_method.py"
    file.write_text(OWN)
    run = tmp_path / "run"
    assert main(arguments(world, str(file), run, "--weight=0.5", "--epochs=0.4")) == 0
    provenance = load_model(run / "model").provenance
    assert (provenance["method"], provenance["settings"]) == ("mine", {"weight": 0.5})
    with pytest.raises(SystemExit):
        main(["train", f"{file}:mine", "--help"])
    assert "Of its loss. (default: 1.0)" in capsys.readouterr().out
    assert main(["list", "methods", str(file)]) == 0
    assert capsys.readouterr().out.splitlines()[2].startswith("mine ")
    file.write_text(
        f"{OWN}\n@variant(mine, weight=2.0)\ndef twice(method: Method) -> Method:\n"
        '    """Twice."""\n    return method\n'
    )
    assert load_recipe(f"{file}:twice")().losses[0].weight == 2.0


def test_the_recipe_of_the_guide_trains(world: Path, tmp_path: Path) -> None:
    guide = Path(__file__).parents[1] / "docs" / "guide" / "methods.md"
    (code,) = re.findall(r"^```python\n(.*?)^```", guide.read_text(), flags=re.S | re.M)
    file = tmp_path / "my_method.py"
    file.write_text(code)
    assert main(arguments(world, str(file), tmp_path / "run", "--epochs=0.4")) == 0
    terms = load_model(tmp_path / "run" / "model").provenance["terms"]
    weights = {each["name"]: each["weight"] for each in terms}
    assert weights == {"negclip": 1.0, "own": 0.5}
