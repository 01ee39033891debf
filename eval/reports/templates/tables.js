// Tables: they are sorted, filtered, scrolled and saved.
const textOf = (cell) => cell.dataset.value ?? cell.textContent.trim();
const numberOf = (text) =>
  Number(text.replaceAll(",", "").replace("\u2212", "-").replace(/ ?%$/, ""));
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
    const sorter = make("button", { type: "button", textContent: head.textContent });
    sorter.onclick = () => sortBy(table, column, head);
    head.replaceChildren(sorter);
  });
  const count = make("output", { className: "soft" });
  const filter = make("input", { type: "search", placeholder: "filter" });
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
  table.filter = [make("div", { className: "filter" }, filter, count)];
}
all("table").forEach((table, number) => {
  const holder = table.closest(".wide");
  if (!holder) return;
  const rows = () =>
    all("tr", table).map((row) =>
      [...row.cells].flatMap((cell) => [
        (cell.dataset.csv ?? cell.innerText).trim().replace("\n", " ").replace("\u2212", "-"),
        ...Array(cell.colSpan - 1).fill(""),
      ]),
    );
  const label = `Save this table as CSV: ${table.caption?.textContent ?? anchor(table)}`;
  const name = `${anchor(table)}-table-${number + 1}.csv`;
  const csvButton = button("CSV", label, () => save(csv(rows()), name));
  const hint = make("p", {
    className: "soft scrolls",
    textContent: "This table scrolls sideways \u2192",
  });
  holder.replaceWith((holder.around = make("div", { className: "tabled" })));
  const actions = make("div", { className: "actions" }, csvButton);
  holder.around.append(...(table.filter ?? []), hint, holder, actions);
  if (table.caption) {
    holder.setAttribute("role", "region");
    holder.setAttribute("aria-label", table.caption.textContent);
  }
  new ResizeObserver(() => {
    hint.hidden = holder.scrollWidth <= holder.clientWidth + 1;
    holder.tabIndex = hint.hidden ? -1 : 0;
  }).observe(holder);
});
