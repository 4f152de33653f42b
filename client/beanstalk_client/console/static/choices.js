// Stores the user's choices (theme, keyboard shortcuts) in the browser, and applies them before a page is shown.
"use strict";
(() => {
  const root = document.documentElement;
  const CHOICES = ["theme", "keys"];
  const name = (choice) => `beanstalk-console-${choice}`;
  let kept = null;
  try { kept = localStorage; } catch { /* The browser forbids it: a choice lasts as long as its page. */ }

  const apply = () => {
    for (const choice of CHOICES) root.dataset[choice] = kept?.getItem(name(choice)) ?? "";
    for (const field of document.querySelectorAll("[data-choice]")) field.value = root.dataset[field.dataset.choice];
  };

  apply();
  document.addEventListener("DOMContentLoaded", apply);
  addEventListener("storage", apply);  // another page has changed it
  document.addEventListener("change", (event) => {
    const choice = event.target.dataset.choice;
    if (!choice) return;
    root.dataset[choice] = event.target.value;
    kept?.setItem(name(choice), event.target.value);
  });
})();
