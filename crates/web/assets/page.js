"use strict";
// The pages work without this script. It enters with the token of the address, copies commands, and follows a restore.

const form = document.getElementById("enter");
const token = document.getElementById("token");
if (form && token && /^#[0-9a-f]{64}$/.test(location.hash)) {
  token.value = location.hash.slice(1);
  // The token stays in no history.
  history.replaceState(null, "", location.pathname);
  form.submit();
}

for (const button of document.querySelectorAll("button[data-copy]")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "Copied";
  });
}

document.addEventListener("keydown", (event) => {
  const search = document.getElementById("search");
  const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement.tagName);
  if (event.key === "/" && search && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    search.focus();
  }
});

const run = document.getElementById("run-state");
if (run && run.dataset.running === "true") {
  setTimeout(() => location.reload(), 1500);
}
