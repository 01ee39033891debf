// The gallery: who is enrolled, with every enrolment of each, and what is kept of it.
const SHOWN = 200; // subjects who are listed
const PICTURED = 48; // of them get a picture before they are asked for
let listing = 0; // the number of the list that is shown; pictures of an earlier one are dropped

const addressOf = (subject) => "gallery/" + encodeURIComponent(subject);

async function medium(subject, number) {
  const response = await request(`media/${number}/${encodeURIComponent(subject)}`);
  return URL.createObjectURL(await response.blob());
}

async function list() {
  const box = $("entries");
  const mine = ++listing;
  try {
    const gallery = await ask(`gallery?limit=${SHOWN}`);
    if (mine !== listing) return;
    state.gallery = gallery.subjects;
    const rows = gallery.entries.flatMap(subjectRows);
    const more = gallery.subjects - gallery.entries.length;
    const head = make(
      "tr",
      {},
      text("th", "", "Name"),
      text("th", "n", "Enrolments"),
      make("th", { className: "n" }, text("span", "unseen", "What can be done")),
    );
    const table = make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows));
    box.replaceChildren(
      rows.length ? table : "Nobody yet.",
      more > 0 ? text("p", "", `and ${more} more`) : "",
      text("p", "soft kept", keptSentence()),
    );
    ready();
    if (state.keeps_media && !speech()) pictureRows(gallery.entries.slice(0, PICTURED), mine);
  } catch (error) {
    box.replaceChildren(text("span", "error", error.message));
  }
}

const mediumWord = () => (speech() ? "sound" : "picture");

const keptSentence = () =>
  state.keeps_media
    ? `Of each enrolment a small ${mediumWord()} is kept until its subject is removed.`
    : `There are no ${mediumWord()}s here, because this server keeps nothing ` +
      "of an upload but its embedding. Started with --keep-media it keeps a small one of each " +
      "enrolment.";

// Two rows of a subject: the name with its buttons, and below it the enrolments, when asked for.
function subjectRows(entry) {
  const details = make("tr", { className: "details", hidden: true });
  const cell = make("td", { colSpan: 3 });
  details.append(cell);
  const open = make("button", {
    className: "button small",
    textContent: "Show",
    ariaLabel: `Show the enrolments of ${entry.subject}`,
    ariaExpanded: "false",
  });
  open.onclick = () => {
    details.hidden = !details.hidden;
    open.ariaExpanded = String(!details.hidden);
    open.textContent = details.hidden ? "Show" : "Hide";
    if (!details.hidden) showEnrolments(entry.subject, cell);
  };
  const out = make("button", {
    className: "button small remove",
    textContent: "Remove",
    ariaLabel: `Remove ${entry.subject}`,
  });
  out.onclick = () => confirm(`Erase ${entry.subject}?`) && removeSubject(entry.subject);
  const name = make("td", {}, entry.subject);
  name.dataset.subject = entry.subject;
  const acts = make("td", { className: "n" }, make("span", { className: "acts" }, open, out));
  return [make("tr", {}, name, text("td", "n soft", `${entry.enrolments} \u00d7`), acts), details];
}

const removeSubject = (subject) =>
  busy(
    "Removing \u2026",
    async () => {
      await ask(addressOf(subject), { method: "DELETE" });
      await list();
      return () => {
        show(text("p", "", `${subject} is erased.`));
        $("enrolled").focus({ preventScroll: true });
      };
    },
    true,
  );

async function showEnrolments(subject, cell) {
  const waiting = progress("Reading \u2026");
  cell.replaceChildren(waiting.line);
  try {
    const listed = await ask(addressOf(subject));
    const items = await Promise.all(
      listed.enrolments.map((enrolment) => enrolmentItem(subject, enrolment)),
    );
    cell.replaceChildren(make("ol", { className: "enrolments" }, ...items));
  } catch (error) {
    cell.replaceChildren(text("p", "error", error.message));
  }
  waiting.stop();
}

async function enrolmentItem(subject, enrolment) {
  const name = `Enrolment ${enrolment.number + 1}`;
  const known = [name, enrolment.date || "day not known"];
  if (state.norm_is_quality) known.push(`quality (norm) ${number(enrolment.norm)}`);
  const about = known.join(" \u00b7 ");
  const item = make("li", {}, text("span", "soft", about));
  if (enrolment.medium) {
    const src = await medium(subject, enrolment.number);
    const alt = `${name} of ${subject}`;
    item.prepend(
      enrolment.medium === "sound"
        ? make("audio", { controls: true, src, ariaLabel: alt })
        : make("img", { src, alt }),
    );
  }
  return item;
}

// One after the other, so that a list of many does not keep others waiting.
async function pictureRows(entries, mine) {
  for (const { subject } of entries) {
    try {
      const listed = await ask(addressOf(subject));
      const first = listed.enrolments.find((enrolment) => enrolment.medium === "image");
      if (!first) continue;
      const src = await medium(subject, first.number);
      if (mine !== listing) return;
      const cell = [...$("entries").querySelectorAll("[data-subject]")].find(
        (name) => name.dataset.subject === subject,
      );
      if (cell) cell.prepend(make("img", { className: "thumb", src, alt: "" }));
    } catch {
      return; // the list says what it knows without pictures
    }
  }
}

$("enrol").onclick = () =>
  busy(
    "Enrolling \u2026",
    async () => {
      const sent = blobs.enrolment;
      const fields = { subject: $("subject").value.trim(), files: sent };
      const enrolled = await ask("enrol", form({ ...fields, faces: chosenFace.enrolment }));
      await list();
      return () => {
        if (blobs.enrolment === sent) empty("enrolment");
        const size = `${enrolled.subjects} in the gallery`;
        show(text("p", "", `${enrolled.subject} is enrolled; ${size}.`));
      };
    },
    true,
  );
