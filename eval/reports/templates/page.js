/* What a report does beyond reading: it draws the figures by BokehJS, moves the threshold, sorts and
   filters tables, enlarges images, saves figures and tables, and prepares for paper. */
"use strict";
{
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const made = (tag, properties = {}, ...children) => {
    const element = Object.assign(document.createElement(tag), properties);
    element.append(...children);
    return element;
  };
  const minus = (text) => text.replace("-", "\u2212");
  const counted = (number) => number.toLocaleString("en");
  const parsed = (element) => JSON.parse(element.textContent);
  document.documentElement.classList.add("scripted");

  /* ---------------------------------------------------------------- saving */

  const anchor = (element) => element.closest("section")?.id ?? "report";
  const save = (content, name) => {
    const link = made("a", { href: URL.createObjectURL(content), download: name });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  const csv = (rows) => {
    // A cell that begins like a formula would be one in a spreadsheet.
    const cell = (value) => {
      const text = String(value ?? "");
      const safe = /^[=+@]|^-[^\d.]/.test(text) ? `'${text}` : text;
      return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
    };
    return new Blob([rows.map((row) => row.map(cell).join(",") + "\n").join("")], { type: "text/csv" });
  };
  const button = (text, label, act) => {
    const element = made("button", { type: "button", textContent: text, onclick: act });
    element.setAttribute("aria-label", label);
    return element;
  };

  /* --------------------------------------------------------------- figures */

  const figures = []; // { figure, view, models }
  const softInk = () => getComputedStyle(document.documentElement).getPropertyValue("--soft").trim();
  const AXES = ["axis_label_text_color", "major_label_text_color"];
  const recolour = ({ models }, colour, names = [...AXES, "label_text_color"]) => {
    for (const model of models)
      for (const name of names)
        if (name in model.properties) model[name] = colour;
  };
  const columnsOf = (models) => {
    const rows = [];
    for (const model of models) {
      if (model.type !== "GlyphRenderer" || model.tags.includes("no csv")) continue;
      const data = model.data_source.data;
      const columns = data instanceof Map ? [...data] : Object.entries(data);
      if (!columns.length || !columns[0][1].length) continue;
      rows.push([model.name ?? "", ...columns.map(([name]) => name)]);
      for (let i = 0; i < columns[0][1].length; i++)
        rows.push(["", ...columns.map(([, values]) => values[i])]);
    }
    return rows;
  };
  const printable = ({ view }) => view.export("svg").ctx.get_serialized_svg(true);
  const draw = async (figure, number) => {
    const item = parsed(figure.querySelector("script"));
    const holder = figure.querySelector(".drawing");
    const manager = await Bokeh.embed.embed_item(item, holder);
    const view = [...manager.roots][0];
    const models = [...view.model.references()];
    const drawn = { figure, view, models, swatches: [] };
    recolour(drawn, softInk());
    figures.push(drawn);
    sight.observe(figure);
    const name = `${anchor(figure)}-${number + 1}`;
    const label = holder.getAttribute("aria-label").split(".")[0];
    figure.append(
      made(
        "div",
        { className: "actions" },
        ...["png", "svg"].map((kind) =>
          button(kind.toUpperCase(), `Save as ${kind.toUpperCase()}: ${label}`, async () =>
            save(await view.export(kind).to_blob(), `${name}.${kind}`),
          ),
        ),
        button("CSV", `Save the numbers: ${label}`, () => save(csv(columnsOf(models)), `${name}.csv`)),
      ),
    );
    for (const model of models) for (const tag of model.tags ?? []) tagged(tag, model, drawn);
    if (models.some((model) => model.type === "Legend"))
      // Legends hold small images, which paper shows only if the browser has decoded them before.
      for (const [, source] of printable(drawn).matchAll(/<image[^>]*href="([^"]+)"/g))
        drawn.swatches.push(Object.assign(new Image(), { src: source }));
  };

  /* ------------------------------------------------------------- threshold */

  const sliders = new Map(); // system -> what moves with its threshold
  const bar = document.querySelector(".bar");
  const range = bar?.querySelector("input");
  const chooser = bar?.querySelector("select");
  let chosen; // the system that the slider moves
  // The marked trials by rising score, of which a move changes those between two thresholds.
  const ranked = (rows) => {
    const trials = rows
      .map((row) => ({ row, score: Number(row.dataset.score), verdict: row.querySelector(".verdict") }))
      .sort((a, b) => a.score - b.score);
    return { trials, scores: trials.map(({ score }) => score), rejected: null };
  };
  // How many of the rising numbers lie below a bound.
  const below = (numbers, bound) => {
    let [low, high] = [0, numbers.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (numbers[middle] < bound) low = middle + 1;
      else high = middle;
    }
    return low;
  };
  const judge = (slider, threshold) => {
    const rejected = below(slider.scores, threshold);
    const [from, to] = [rejected, slider.rejected ?? 0].sort((a, b) => a - b);
    const changed = slider.rejected === null ? slider.trials : slider.trials.slice(from, to);
    slider.rejected = rejected;
    for (const { row, score, verdict } of changed) {
      const accept = score >= threshold;
      const wrong = accept !== (row.dataset.target === "1");
      row.classList.toggle("wrong", wrong);
      verdict.textContent = (wrong ? "\u2717 false " : "\u2713 ") + (accept ? "accept" : "reject");
    }
  };
  for (const points of all(".operating .points")) {
    const data = parsed(points.querySelector("script"));
    const of = (selector) => all(selector).filter((each) => each.dataset.system === data.system);
    sliders.set(data.system, {
      ...data,
      points,
      marks: [],
      buttons: all("button", points),
      cells: Object.fromEntries(all("td", of(".operating tr")[0]).map((cell) => [cell.dataset.key, cell])),
      ...ranked(of("tr[data-score]")),
      at: data.start,
    });
  }
  let speaking;
  const place = (slider) => {
    const i = slider.at;
    const accepted = slider.false_accepts[i] / slider.nontargets;
    const rejected = slider.false_rejects[i] / slider.targets;
    return { i, accepted, rejected, threshold: slider.thresholds[i] };
  };
  const moveMark = ({ mark, model }, slider) => {
    const { i, accepted, rejected, threshold } = place(slider);
    if (mark === "threshold") {
      if (model.type === "Span") model.location = threshold;
      else model.left = threshold;
    } else if (mark === "det") model.data = { x: [slider.x[i]], y: [slider.y[i]] };
    else if (mark === "roc")
      model.data = { x: [100 * Math.max(accepted, 1e-9)], y: [100 * (1 - rejected)] };
  };
  // The figures in sight follow in the next frame, the others when they come into sight.
  let framed = null;
  let movedAt = -Infinity;
  const moveMarks = (all = false) => {
    framed = null;
    for (const slider of sliders.values()) {
      if (slider.moved) for (const mark of slider.marks) mark.stale = true;
      slider.moved = false;
      for (const mark of slider.marks)
        if (mark.stale && (mark.drawn.seen || all === true)) {
          mark.stale = false;
          moveMark(mark, slider);
        }
    }
  };
  const sight = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const drawn = figures.find((each) => each.figure === target);
      if (drawn) drawn.seen = isIntersecting;
    }
    moveMarks();
  });
  const reading = (share, kind) => {
    const number = Math.max(1, Math.round(1 / share));
    if (share === 0) return `no ${kind} trial is`;
    return number === 1 ? `nearly every ${kind} trial is` : `1 in ${counted(number)} ${kind} trials is`;
  };
  const show = (slider) => {
    const { i, accepted, rejected, threshold } = place(slider);
    const cells = {
      threshold: minus(threshold.toFixed(4)),
      far: (100 * accepted).toFixed(3),
      frr: (100 * rejected).toFixed(3),
      false_accepts: `${counted(slider.false_accepts[i])} of ${counted(slider.nontargets)}`,
      false_rejects: `${counted(slider.false_rejects[i])} of ${counted(slider.targets)}`,
    };
    for (const [key, text] of Object.entries(cells)) slider.cells[key].textContent = text;
    if (slider === chosen) {
      range.value = i;
      const text = `${cells.threshold}: FAR ${cells.far} %, FRR ${cells.frr} %`;
      bar.querySelector("output").value = text;
      range.setAttribute("aria-valuetext", text);
    }
    for (const each of slider.buttons) each.setAttribute("aria-pressed", Number(each.value) === i);
    judge(slider, threshold);
    slider.moved = true;
    movedAt = performance.now();
    framed ??= requestAnimationFrame(moveMarks);
    clearTimeout(speaking);
    speaking = setTimeout(() => {
      document.querySelector(".operating .live").textContent =
        `${sliders.size > 1 ? `${slider.system}: at` : "At"} threshold ${cells.threshold}, ` +
        `${reading(accepted, "nontarget")} accepted and ${reading(rejected, "target")} rejected.`;
    }, 250);
  };
  const sameRate = (other, share) => {
    // The lowest threshold whose false accept rate is at most that share; the last accepts nothing.
    let low = 0;
    let high = other.thresholds.length - 1;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (other.false_accepts[middle] / other.nontargets <= share) high = middle;
      else low = middle + 1;
    }
    return low;
  };
  const move = (slider, position) => {
    slider.at = position;
    show(slider);
    if (document.querySelector(".together input")?.checked)
      for (const other of sliders.values())
        if (other !== slider) {
          other.at = sameRate(other, place(slider).accepted);
          show(other);
        }
  };
  const choose = (slider) => {
    chosen = slider;
    range.max = slider.thresholds.length - 1;
    for (const other of sliders.values()) other.points.hidden = other !== slider;
    show(slider);
  };
  for (const slider of sliders.values()) {
    for (const each of slider.buttons)
      each.addEventListener("click", () => move(slider, Number(each.value)));
    show(slider);
  }
  if (bar) {
    choose(sliders.values().next().value);
    range.addEventListener("input", () => move(chosen, Number(range.value)));
    chooser?.addEventListener("change", () => choose(sliders.get(chooser.value)));
  }
  const tagged = (tag, model, drawn) => {
    if (tag.mark && sliders.has(tag.system)) {
      const slider = sliders.get(tag.system);
      slider.marks.push({ mark: tag.mark, model, drawn, stale: false });
      moveMark(slider.marks.at(-1), slider);
    }
    if (tag.map) explore(tag, model, drawn);
  };

  /* ---------------------------------------------------------------- tables */

  const textOf = (cell) => cell.dataset.value ?? cell.textContent.trim();
  const numberOf = (text) => Number(text.replaceAll(",", "").replace("\u2212", "-").replace(/ ?%$/, ""));
  const sortBy = (table, column, head) => {
    const rising = head.getAttribute("aria-sort") === "descending";
    for (const each of all("th[aria-sort]", table)) each.setAttribute("aria-sort", "none");
    head.setAttribute("aria-sort", rising ? "ascending" : "descending");
    const rows = all("tbody tr", table).map((row) => [row, textOf(row.cells[column])]);
    rows.sort(([, a], [, b]) => {
      const [x, y] = [numberOf(a), numberOf(b)];
      const order = Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b) : x - y;
      return rising ? order : -order;
    });
    table.tBodies[0].append(...rows.map(([row]) => row));
  };
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head, column) => {
      head.setAttribute("aria-sort", "none");
      const text = head.textContent;
      head.replaceChildren(made("button", { type: "button", textContent: text, onclick: () => sortBy(table, column, head) }));
    });
    const count = made("output", { className: "soft" });
    const filter = made("input", { type: "search", placeholder: "filter" });
    filter.setAttribute("aria-label", `Filter the rows: ${table.caption?.textContent ?? ""}`);
    filter.addEventListener("input", () => {
      const asked = filter.value.toLowerCase().split(/\s+/);
      let left = 0;
      for (const row of all("tbody tr", table)) {
        const text = row.textContent.toLowerCase();
        row.hidden = !asked.every((word) => text.includes(word));
        left += !row.hidden;
      }
      count.textContent = filter.value ? ` ${counted(left)} rows` : "";
    });
    table.filter = [made("div", { className: "filter" }, filter, count)];
  }
  all("table").forEach((table, number) => {
    const holder = table.closest(".wide");
    if (!holder) return;
    const rows = () =>
      all("tr", table).map((row) =>
        [...row.cells].flatMap((cell) => [
          (cell.dataset.csv ?? cell.innerText).trim().replace("\u2212", "-"),
          ...Array(cell.colSpan - 1).fill(""),
        ]),
      );
    const label = `Save this table as CSV: ${table.caption?.textContent ?? anchor(table)}`;
    const csvButton = button("CSV", label, () => save(csv(rows()), `${anchor(table)}-table-${number + 1}.csv`));
    const hint = made("p", { className: "soft scrolls", textContent: "This table scrolls sideways \u2192" });
    holder.replaceWith((holder.around = made("div", { className: "tabled" })));
    holder.around.append(...(table.filter ?? []), hint, holder, made("div", { className: "actions" }, csvButton));
    if (table.caption) {
      holder.setAttribute("role", "region");
      holder.setAttribute("aria-label", table.caption.textContent);
    }
    new ResizeObserver(() => {
      hint.hidden = holder.scrollWidth <= holder.clientWidth + 1;
      holder.tabIndex = hint.hidden ? -1 : 0;
    }).observe(holder);
  });

  /* ----------------------------------------------------------------- media */

  const first = new Map(all("[data-item]").map((each) => [each.dataset.item, each]));
  for (const each of all("[data-again]")) {
    const copy = first.get(each.dataset.again);
    if (copy) each.replaceChildren(...[...copy.childNodes].map((node) => node.cloneNode(true)));
    if (copy?.dataset.seconds) each.dataset.seconds = copy.dataset.seconds;
  }
  // The recordings of a trial stand on one scale of time, one above the other.
  for (const pair of all(".pair")) {
    const sounds = all("[data-seconds]", pair);
    const shown = sounds.map((each) => Math.min(Number(each.dataset.seconds), 10));
    sounds.forEach((each, i) => {
      const width = `${Math.max(8, (100 * shown[i]) / Math.max(...shown))}%`;
      each.querySelector("img").style.width = width;
    });
  }
  const [large, caption] = [made("img"), made("p")];
  const close = made("button", { type: "button", textContent: "Close" });
  const dialog = made("dialog", {}, large, caption, close);
  close.addEventListener("click", () => dialog.close());
  dialog.setAttribute("aria-label", "Enlarged image");
  for (const image of all("img")) {
    const open = button("", `Enlarge ${image.alt}`, () => {
      large.src = image.src;
      large.alt = image.alt;
      large.className = image.className;
      caption.textContent = image.alt;
      document.body.append(dialog);
      dialog.showModal();
    });
    open.className = "enlarge";
    image.replaceWith(open);
    open.append(image);
  }
  // Only one recording is heard at a time.
  document.addEventListener("play", ({ target }) => {
    for (const each of all("audio")) if (each !== target) each.pause();
  }, true);

  /* ------------------------------------------------------------------- map */

  const explore = (tag, source, { figure }) => {
    const holder = figure.closest(".map");
    const points = parsed(holder.querySelector(":scope > script"));
    const about = holder.querySelector(".about");
    const [plane, search] = [holder.querySelector("select"), holder.querySelector("input")];
    const number = new Map(points.ids.map((id, i) => [id, i]));
    const select = (indices) => (source.selected.indices = indices);
    const jump = (id) => {
      const element = number.has(id)
        ? made("button", { type: "button", textContent: id, onclick: () => select([number.get(id)]) })
        : made("span", { textContent: id });
      return element;
    };
    const list = (title, entries) =>
      entries.length
        ? [made("h4", { textContent: title }), made("ul", {}, ...entries.map((parts) => made("li", {}, ...parts)))]
        : [];
    const tell = () => {
      const indices = [...source.selected.indices];
      if (!indices.length) return;
      if (indices.length > 1) {
        about.replaceChildren(made("p", { textContent: `${counted(indices.length)} items of ${points.classes[indices[0]]}` }));
        return;
      }
      const [i] = indices;
      const own = points.classes[i];
      const shown = first.get(points.ids[i]);
      const near = points.neighbours[i].map((k) => [
        own ? (points.classes[k] === own ? "\u2713 " : "\u2717 ") : "",
        jump(points.ids[k]),
        own ? ` ${points.classes[k]}` : "",
      ]);
      const worst = (points.worst[i] ?? []).map(([id, score, target]) => [
        `${minus(score.toFixed(4))} ${target ? "target" : "nontarget"} trial with `,
        jump(id),
      ]);
      about.replaceChildren(
        made("p", {}, made("strong", { textContent: points.ids[i] }), `${own ? `, class ${own}` : ""}, norm ${points.norms[i]}`),
        ...(shown ? [shown.cloneNode(true)] : []),
        ...list("Nearest by cosine, of those on the map", near),
        ...list("Worst trials", worst),
      );
    };
    source.selected.properties.indices.change.connect(tell);
    plane.addEventListener("change", () => {
      const [x, y] = points.planes[plane.value];
      source.data = { ...Object.fromEntries(source.data instanceof Map ? source.data : Object.entries(source.data)), x, y };
    });
    const names = made("datalist", { id: `items-${figures.length}` });
    for (const name of new Set([...points.classes, ...points.ids])) if (name) names.append(made("option", { value: name }));
    search.setAttribute("list", names.id);
    search.after(names);
    search.addEventListener("change", () => {
      if (number.has(search.value)) select([number.get(search.value)]);
      else select(points.classes.flatMap((name, i) => (name === search.value ? [i] : [])));
    });
  };

  /* ------------------------------------------------------------- the start */

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const each of figures) recolour(each, softInk());
  });
  let folded = [];
  addEventListener("beforeprint", () => {
    folded = all("details:not([open])");
    for (const each of folded) each.open = true;
    moveMarks(true);
    for (const figure of waiting.keys()) {
      const text = `Not drawn yet: ${figure.querySelector(".drawing").getAttribute("aria-label")}. Print again.`;
      figure.append(made("p", { className: "printed", textContent: text }));
    }
    for (const each of figures) {
      recolour(each, "#444", AXES); // a legend would lose its lines until the next frame
      const holder = made("div", { className: "printed", innerHTML: printable(each) });
      const drawing = holder.querySelector("svg");
      drawing?.setAttribute("viewBox", `0 0 ${drawing.getAttribute("width")} ${drawing.getAttribute("height")}`);
      each.figure.querySelector(".drawing").after(holder);
    }
  });
  addEventListener("afterprint", () => {
    all(".printed").forEach((each) => each.remove());
    for (const each of folded) each.open = false;
    for (const each of figures) recolour(each, softInk());
  });
  const waiting = new Map(all("figure.plot").map((figure, number) => [figure, number]));
  const isNear = (figure) => {
    const { top, bottom } = figure.getBoundingClientRect();
    return figure.offsetParent && bottom > -innerHeight && top < 2 * innerHeight;
  };
  const pause = (milliseconds) => new Promise((next) => setTimeout(next, milliseconds));
  const idle = async () => {
    while (performance.now() - movedAt < 300) await pause(100);
    await new Promise((next) =>
      window.requestIdleCallback ? requestIdleCallback(next, { timeout: 300 }) : setTimeout(next, 50),
    );
  };
  // What is near the window first; the rest, which paper needs, while nothing else happens.
  const start = async () => {
    if (window.Bokeh) Bokeh.logger.set_level("warn");
    else waiting.clear();
    while (waiting.size) {
      await pause(0); // the page answers in between
      let figure = [...waiting.keys()].find(isNear);
      if (!figure) {
        await idle();
        figure = [...waiting.keys()].find(isNear) ?? waiting.keys().next().value;
      }
      const number = waiting.get(figure);
      await draw(figure, number);
      waiting.delete(figure);
    }
    performance.mark("drawn");
    document.documentElement.dataset.drawn = figures.length;
  };
  for (const figure of waiting.keys())
    figure.querySelector(".drawing").style.minHeight = `${figure.dataset.height}px`;
  performance.mark("ready");
  start();
}
