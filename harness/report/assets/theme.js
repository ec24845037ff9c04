/* Runs before the first paint: marks that scripts work, and takes the reader's chosen colours. */
(() => {
  const root = document.documentElement;
  root.classList.add("js");
  try {
    const theme = localStorage.getItem("harness-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch { /* storage may be closed for files: then the system's colours hold */ }
})();
