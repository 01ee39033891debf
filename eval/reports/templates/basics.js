// Basics: elements, numbers in words, and what is saved to files.
//
// The files of a report's script are one script, in the order in which eval/reports/page.py names
// them. Each may use the names of the files before it, and within functions those of all.
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const minus = (text) => text.replace("-", "\u2212");
const counted = (number) => number.toLocaleString("en");
const parsed = (element) => JSON.parse(element.textContent);
document.documentElement.classList.add("scripted");

// Saving.
const anchor = (element) => element.closest("section")?.id ?? "report";
const save = (content, name) => {
  const link = make("a", { href: URL.createObjectURL(content), download: name });
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
  const lines = rows.map((row) => row.map(cell).join(",") + "\n");
  return new Blob([lines.join("")], { type: "text/csv" });
};
const button = (text, label, act) => {
  const element = make("button", { type: "button", textContent: text, onclick: act });
  element.setAttribute("aria-label", label);
  return element;
};
