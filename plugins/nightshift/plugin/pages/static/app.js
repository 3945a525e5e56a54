// What htmx does not do: Airflow's colours, dialogs, and links out of Airflow's frame.
"use strict";

// Airflow keeps its colour mode in this entry; without one it follows the system, as the style sheet does.
function colours() {
  let mode = null;
  try {
    mode = localStorage.getItem("theme");
  } catch {
    // Storage may be forbidden.
  }
  if (mode === "light" || mode === "dark") {
    document.documentElement.dataset.theme = mode;
  } else {
    delete document.documentElement.dataset.theme;
  }
}
colours();
window.addEventListener("storage", colours);

// Airflow's frame lets nothing in it open a window or another page of Airflow, so the link is followed in the page around it.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-outside]");
  if (!link || window.parent === window || event.defaultPrevented) return;
  event.preventDefault();
  const outside = window.parent.document.createElement("a");
  outside.href = link.href;
  if (link.origin !== location.origin || event.ctrlKey || event.metaKey) {
    outside.target = "_blank";
    outside.rel = "noopener";
  }
  window.parent.document.body.append(outside);
  outside.click();
  outside.remove();
});

document.addEventListener("click", (event) => {
  if (event.target.closest("[data-close]")) event.target.closest("dialog").close();
});

document.addEventListener("DOMContentLoaded", () => {
  // What a user has unfolded stays unfolded when a part of the page is put in place again.
  Idiomorph.defaults.callbacks.beforeAttributeUpdated = (name, node) => !(name === "open" && node.localName === "details");
  const dialog = document.getElementById("ask");
  const notice = document.getElementById("notice");
  document.body.addEventListener("htmx:afterSwap", (event) => {
    if (event.detail.target === dialog) dialog.showModal();
    if (event.detail.target === notice) {
      if (dialog && dialog.open) dialog.close();
      notice.focus();
    }
  });
  // A page that nobody looks at asks for nothing.
  document.body.addEventListener("htmx:beforeRequest", (event) => {
    if (document.hidden && event.detail.elt.hasAttribute("data-live")) event.preventDefault();
  });
  // What asks again and again does so anyway; a part that is asked for once is asked for again.
  const later = (event) => setTimeout(() => htmx.trigger(event.detail.elt, "again"), 5000);
  const silent = (event) => {
    document.body.dataset.silent = "yes";
    later(event);
  };
  document.body.addEventListener("htmx:sendError", silent);
  document.body.addEventListener("htmx:timeout", silent);
  document.body.addEventListener("htmx:responseError", (event) => {
    if (event.detail.xhr.status === 503) later(event);
  });
  document.body.addEventListener("htmx:afterOnLoad", () => {
    delete document.body.dataset.silent;
  });
});
