// Tells the server the browser's time zone, so that it writes times in it.
(() => {
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  if (!zone || document.cookie.includes(`slicewise-zone=${encodeURIComponent(zone)}`)) return;
  document.cookie = `slicewise-zone=${encodeURIComponent(zone)}; path=/; max-age=31536000; samesite=lax`;
  // The page was written in another zone: once more, if the browser keeps cookies.
  if (document.cookie.includes("slicewise-zone=") && document.querySelector("header")) location.reload();
})();
