// Tells the server the browser's time zone, so that it writes times in it.
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone || document.cookie.includes(`slicewise-zone=${encodeURIComponent(zone)}`)) return;
  document.cookie = `slicewise-zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=lax`;
  // The page was written in another zone: once more, if the browser keeps cookies.
  if (document.cookie.includes("slicewise-zone=") && document.querySelector("header")) location.reload();
})();
// Says when a live page is no longer one: its server is gone, or the login has ended.
(() => {
  const notices = { lost: document.getElementById("lost"), ended: document.getElementById("ended") };
  let seen = new Date();
  const show = (which) => {
    for (const [name, notice] of Object.entries(notices)) {
      if (!notice || notice.hidden === (name !== which)) continue;
      notice.querySelector("time").textContent = seen.toLocaleTimeString();
      notice.hidden = name !== which;
    }
  };
  document.addEventListener("htmx:sse:after:connection", () => show(""));
  document.addEventListener("htmx:sse:after:message", () => { seen = new Date(); show(""); });
  document.addEventListener("htmx:error", () => show("lost"));
  document.addEventListener("htmx:sse:error", (event) => show(event.detail.status === 401 ? "ended" : "lost"));
})();
// Copies what is shown once; without a clipboard it is selected by a click.
for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
    button.textContent = "Copied";
  });
}
