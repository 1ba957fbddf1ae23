"use strict";
// Text from anywhere enters the page as text (textContent), never as markup.
const at = (id) => document.getElementById(id);
const make = (tag, kind, text) => {
  const node = document.createElement(tag);
  if (kind) node.className = kind;
  if (text !== undefined) node.textContent = text;
  return node;
};

let limits = { image_bytes: 8000000 };
let image = "";    // data URI of what is asked about
let photo = "";    // address of the image that the answer on the page is about
let maps = null;   // what /api/maps answered, or its promise, for the question on the page
let asked = null;  // the question whose answer is on the page
let pinned = null; // the place of the word that was clicked
let looked = null; // the place of the word whose maps are shown, or on their way

const say = (text, bad) => {
  at("status").textContent = text;
  at("status").classList.toggle("bad", Boolean(bad));
};

async function call(path, body) {
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
  const answer = await fetch(path, body ? options : {});
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error);
  return data;
}

function take(blob) {
  if (!blob) return Promise.resolve();
  if (blob.size > limits.image_bytes) {
    say(`The image is larger than the ${limits.image_bytes / 1e6} MB allowed.`, true);
    return Promise.resolve();
  }
  return new Promise((done) => {
    const reader = new FileReader();
    reader.onload = () => {
      // the kind that a system guesses for a file is not needed: the server looks at the bytes
      image = String(reader.result).replace(/^data:[^,]*,/, "data:image/any;base64,");
      at("photo").src = URL.createObjectURL(blob);
      at("photo").hidden = false;
      at("hint").hidden = true;
      done();
    };
    reader.readAsDataURL(blob);
  });
}

function marked(text, changed) {
  const line = make("span");
  const letters = Array.from(text);  // ranges count characters, not UTF-16 units
  let end = 0;
  for (const [from, to] of changed) {
    line.append(letters.slice(end, from).join(""), make("mark", "", letters.slice(from, to).join("")));
    end = to;
  }
  line.append(letters.slice(end).join(""));
  return line;
}

function row(each) {
  const item = make("li", `text ${each.kind}`);
  item.append(marked(each.text, each.changed), make("span", "score", each.cosine.toFixed(4)));
  const note = make("small", "", each.kind === "caption" ? "your caption" : `${each.kind}: ${each.made_by.join(", ")}`);
  if (each.flip) {
    const why = { negative: "flip: scores at least as high as the caption", positive: "flip: below a negative",
      caption: "below a negative" };
    note.append(" · ", make("b", "flip", why[each.kind]));
  }
  item.append(note);
  return item;
}

function verdict(model) {
  if (!model.negatives) return make("p", "verdict soft", "No rewrite changes the meaning of this caption.");
  const good = model.flips === 0;
  const beaten = good ? `all ${model.negatives}` : `${model.negatives - model.flips} of ${model.negatives}`;
  return make("p", `verdict ${good ? "good" : "bad"}`, `The caption beats ${beaten} negatives.`);
}

function show(answer) {
  at("answer").hidden = at("parsed").hidden = false;
  pinned = null;
  at("models").replaceChildren(...answer.models.map((model) => {
    const column = make("div", "model");
    const map = make("img", "map");
    const list = make("ol");
    list.append(...model.candidates.map(row));
    column.append(make("h2", "", model.name), verdict(model), map, make("p", "looks soft"), list);
    if (model.truncated) column.append(make("p", "soft", `${model.truncated} of the texts are cut to the context.`));
    return column;
  }));
  at("between").hidden = answer.models.length < 2;
  at("between").textContent = answer.models.length < 2 ? "" : between(...answer.models);
  at("graph").replaceChildren(answer.graph.objects.length
    ? drawGraph(answer.graph) : make("p", "soft", "The parser finds no object in this caption."));
  const refused = Object.entries(answer.refused);
  at("refusals").textContent = `${refused.length} rewrites do not apply to this caption`;
  at("refused").replaceChildren(...refused.map(([name, why]) => make("li", "", `${name}: ${why}`)));
  at("words").replaceChildren(...answer.caption.split(" ").map((word, place) => {
    const button = make("button", "", word);
    button.type = "button";
    button.setAttribute("aria-pressed", "false");
    button.onclick = () => pin(place);
    // a finger does not point: there a tap is the click
    button.onpointerenter = (event) => { if (event.pointerType !== "touch") look(place); };
    button.onpointerleave = () => look(pinned);
    button.onfocus = () => look(place);
    button.onblur = () => look(pinned);
    return button;
  }));
  look(null);
}

// Which negatives fool one of two models only.
function between(one, other) {
  const fooled = (model) => new Set(model.candidates.filter((c) => c.flip && c.kind === "negative").map((c) => c.text));
  const [before, after] = [fooled(one), fooled(other)];
  const fixed = [...before].filter((text) => !after.has(text)).length;
  const broken = [...after].filter((text) => !before.has(text)).length;
  const fool = (number) => number === 1 ? "1 negative fools" : `${number} negatives fool`;
  if (fixed || broken) return `${fool(fixed)} only ${one.name}, ${fool(broken)} only ${other.name}.`;
  return before.size ? `The same ${fool(before.size)} both models.` : "No negative fools either model.";
}

function pin(place) {
  pinned = pinned === place ? null : place;
  [...at("words").children].forEach((each, number) => each.setAttribute("aria-pressed", String(number === pinned)));
  look(pinned ?? place);
}

// Shows the maps of a word, or the plain image for null.
async function look(place) {
  looked = place;
  const columns = [...document.querySelectorAll(".model")];
  if (place === null) {
    for (const column of columns) {
      Object.assign(column.querySelector(".map"), { src: photo, alt: "the image" });
      column.querySelector(".looks").textContent = "";
    }
    return;
  }
  const question = asked;
  maps ??= call("api/maps", question);
  let answer;
  try {
    answer = await maps;
  } catch (error) {
    maps = null;
    say(error.message, true);
    return;
  }
  if (question !== asked || looked !== place) return;
  answer.models.forEach((model, number) => {
    const picture = columns[number].querySelector(".map");
    const all = model.words ? model.words.length + model.left_out.length : 0;
    const same = all === at("words").children.length;  // a tokenizer may see other words
    const found = same && model.words[place];
    picture.src = found ? found.overlay : photo;
    picture.alt = found ? `patches that "${found.word}" aligns with, by ${model.name}` : "the image";
    columns[number].querySelector(".looks").textContent = found
      ? `“${found.word}”: yellow patches align most, cosine ${found.cosine.toFixed(2)}`
      : model.error || (same ? "no map: the word is beyond the model's context"
        : "no map: the tokenizer splits the caption differently");
  });
}

// A choice of the models to see, when there are two.
function offer(names) {
  if (names.length < 2) return;
  const choices = [["both", null], ...names.map((name, number) => [name, number])];
  choices.forEach(([name, number]) => {
    const label = make("label");
    const button = make("input");
    Object.assign(button, { type: "radio", name: "which", checked: number === null });
    button.onchange = () => { at("models").dataset.only = number === null ? "" : String(number + 1); };
    label.append(button, name);
    at("which").append(label);
  });
  at("which").hidden = false;
}

async function ask() {
  if (!image) return say("Choose an image first.", true);
  if (!at("caption").value.trim()) return say("Type a caption first.", true);
  const question = { image, caption: at("caption").value };
  const address = at("photo").src;
  say("Scoring …");
  at("go").disabled = true;
  try {
    const answer = await call("api/score", question);
    [asked, maps, photo] = [question, null, address];
    show(answer);
    say("");
  } catch (error) {
    say(error.message, true);
  } finally {
    at("go").disabled = false;
  }
}

// Scores what somebody asked for; on a narrow page the answer is below all that.
async function follow(scored) {
  await scored;
  if (matchMedia("(max-width: 760px)").matches) at("answer").scrollIntoView({ behavior: "smooth" });
}

async function score(address, caption) {
  const picture = await fetch(address);
  if (!picture.ok) return say((await picture.json()).error, true);
  await take(await picture.blob());
  at("caption").value = caption;
  await ask();
}

async function start() {
  const info = await call("api/info");
  limits = info.limits;
  offer(info.models.map((each) => each.name));
  const buttons = info.examples.map((caption, number) => {
    const button = make("button");
    const picture = make("img");
    Object.assign(picture, { src: `examples/${number}.png`, alt: caption, title: caption });
    button.append(picture);
    button.onclick = () => follow(score(picture.src, caption));
    return button;
  });
  at("examples").replaceChildren(...buttons);
  // #photo=7&caption=...: a photo of the index; #2: the second example; #2.3: and its third word
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.has("photo")) return score(`photos/${Number(wanted.get("photo"))}.jpg`, wanted.get("caption") || "");
  const [, number, word] = /^#(\d+)(?:\.(\d+))?$/.exec(location.hash) || [null, 1];
  if (!buttons[number - 1]) return;
  await score(`examples/${number - 1}.png`, info.examples[number - 1]);
  if (word) at("words").children[word - 1]?.click();
}

at("form").onsubmit = (event) => { event.preventDefault(); follow(ask()); };
at("caption").onkeydown = (event) => {
  if (event.key === "Enter" && !event.shiftKey) { event.preventDefault(); follow(ask()); }
};
at("file").onchange = () => take(at("file").files[0]);
for (const kind of ["dragover", "dragleave", "drop"]) {
  at("drop").addEventListener(kind, (event) => {
    event.preventDefault();
    at("drop").classList.toggle("over", kind === "dragover");
    if (kind === "drop") take(event.dataTransfer.files[0]);
  });
}
start().catch((error) => say(error.message, true));
