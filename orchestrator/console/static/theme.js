// Before the page is drawn: the theme that was chosen here. Without one, the system's.
try {
  const theme = localStorage.getItem('chordage-theme');
  if (theme) document.documentElement.dataset.theme = theme;
} catch {}
document.documentElement.classList.add('script');
