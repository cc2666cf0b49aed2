"use strict";
// Without this script the pages can be read, and their buttons work. It refreshes what changes and follows the output.
const most = 1000; // lines of output that are kept
const find = (id) => document.getElementById(id);

// refresh takes over the parts of a new version of this page. The element with the focus keeps it.
async function refresh() {
  if (document.hidden || !document.querySelector("[data-live]")) return;
  try {
    const answer = await fetch(location.href, { headers: { "Taskapi-Part": "live" }, redirect: "error" });
    const next = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!next.querySelector("main")) document.querySelector("main").textContent = next.body.textContent; // no session
    for (const part of document.querySelectorAll("[data-live]")) {
      const now = next.getElementById(part.id), chosen = getSelection();
      if (!now || now.innerHTML === part.innerHTML || !chosen.isCollapsed && chosen.containsNode(part, true)) continue;
      const focus = part.contains(document.activeElement) && document.activeElement.id;
      part.replaceChildren(...now.childNodes);
      if (focus) find(focus)?.focus({ preventScroll: true });
    }
    find("lost").hidden = true;
  } catch {
    find("lost").hidden = false;
  }
}

// follow shows the output as it is written. It scrolls only for a reader who is at the end.
const output = find("output");
let source;
function follow() {
  source?.close();
  if (!output || document.hidden) return;
  source = new EventSource(output.dataset.follow);
  let again; // the end of the output comes again
  source.onopen = () => { again = true; };
  source.onmessage = (event) => {
    const atEnd = output.scrollHeight - output.scrollTop - output.clientHeight < 40;
    const lines = JSON.parse(event.data) ?? [];
    if (again && lines.length) output.replaceChildren();
    again &&= !lines.length;
    for (const line of lines.slice(-most)) {
      const row = output.appendChild(document.createElement("p"));
      row.className = line.e ? "err" : "";
      row.appendChild(document.createElement("b")).textContent = line.t + (line.e ? " !" : " |");
      row.append(" " + line.l);
    }
    while (output.childElementCount > most) output.firstElementChild.remove();
    if (atEnd) output.scrollTop = output.scrollHeight;
  };
}
if (output) output.scrollTop = output.scrollHeight;
document.addEventListener("visibilitychange", () => { refresh(); follow(); });
setInterval(refresh, 2000); // milliseconds
follow();
