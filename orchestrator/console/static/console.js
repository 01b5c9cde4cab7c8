// Keys, focus, live pause, relative times, copying. The pages work without it.
(() => {
  const one = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const base = document.body.dataset.base;
  const go = (path) => { location.href = base + path; };
  const say = (text) => { one('#said').textContent = text; };

  // Relative times
  const units = [[86400, 'd'], [3600, 'h'], [60, 'min'], [1, 's']];
  const span = (seconds) => {
    const [size, unit] = units.find(([size]) => seconds >= 2 * size) ?? [1, 's'];
    return `${Math.round(seconds / size)} ${unit}`;
  };
  const show = (time) => {
    const passed = (Date.now() - Date.parse(time.dateTime)) / 1000;
    const text = Math.abs(passed) < 2 ? 'now' : passed > 0 ? `${span(passed)} ago` : `in ${span(-passed)}`;
    if (time.textContent !== text) time.textContent = text;
  };
  const showTimes = (within = document) => all('time', within).forEach(show);
  showTimes();
  setInterval(() => { if (!document.hidden) showTimes(); }, 1000);

  // Rows: one is chosen, by keys or by focus
  const rows = () => all('[data-row]').filter((row) => row.getClientRects().length);
  const chosen = () => one('[data-row][data-chosen]') ?? document.activeElement?.closest?.('[data-row]');
  const choose = (row) => {
    all('[data-chosen]').forEach((other) => other.removeAttribute('data-chosen'));
    if (!row) return;
    row.setAttribute('data-chosen', '');
    const focus = one(':scope > details > summary, :scope > a, [data-open], a, button', row) ?? row;
    (row.tabIndex === -1 && row.matches('.card') ? row : focus).focus({preventScroll: true});
    row.scrollIntoView({block: 'nearest'});
  };
  const move = (by) => {
    const list = rows(), at = list.indexOf(chosen());
    choose(list[Math.max(0, Math.min(list.length - 1, at < 0 ? (by > 0 ? 0 : list.length - 1) : at + by))]);
  };
  const open = () => {
    const row = chosen();
    if (!row) return;
    const fold = one(':scope > details', row), link = one('[data-open]', row);
    if (fold) fold.open = !fold.open; else if (link) link.click();
  };
  const linked = /^#step-\d+$/.test(location.hash) && document.getElementById(location.hash.slice(1));
  if (linked) { linked.closest('details').open = true; choose(linked.closest('[data-row]')); }
  if (one('[data-focus-first]') && one('.notice')) choose(rows()[0]);
  one('nav [aria-current]')?.scrollIntoView({block: 'nearest', inline: 'center'});

  // Live: pausing takes the stream away, so nothing is asked for; going on loads the page anew
  const live = () => one('#live');
  const toggle = one('#live-toggle');
  if (live()) {
    toggle.hidden = false;
    toggle.addEventListener('click', () => {
      if (!live()) { location.reload(); return; }
      window.htmx?.trigger(live(), 'htmx:abort');
      stop();
      say('Live updates are off');
    });
  }
  const stop = () => {
    const stream = live();
    if (stream?._htmx?.sse) { stream._htmx.sse.reader?.cancel(); stream._htmx.sse.abortController?.abort(); }
    stream?.remove();
    toggle.setAttribute('aria-pressed', 'false');
    toggle.textContent = 'paused';
  };
  document.addEventListener('over', () => { toggle.hidden = true; say('It is done'); });
  document.addEventListener('htmx:sse:error', () => toggle.classList.add('lost'));
  document.addEventListener('htmx:sse:after:connection', () => toggle.classList.remove('lost'));
  // A form that a person fills in stays as it is while others are added around it. What takes the place of a row is
  // unfolded, selected and chosen as the row was, and has the focus if the row had it.
  let refocus = null;
  const targets = (within) => all('a, button, summary, input:not([type=hidden])', within);
  const keep = (old, part) => {
    one(':scope > details', part)?.toggleAttribute('open', !!one(':scope > details', old)?.open);
    const pick = one('[data-pick]', part);
    if (pick) pick.checked = !!one('[data-pick]', old)?.checked;
    const row = old.matches('[data-row]') ? old : one('[data-row][data-chosen]', old);
    if (row?.hasAttribute('data-chosen')) {
      const href = one('[data-open]', row)?.getAttribute('href');
      (row === old ? part : one(`[data-open][href="${CSS.escape(href ?? '')}"]`, part)?.closest('[data-row]'))?.setAttribute('data-chosen', '');
    }
    for (const field of all('[id^="action-"]', old)) {
      const now = one(`#${field.id}`, part);
      if (now?.matches('details')) now.open = field.open;
      else if (now && field.value !== field.defaultValue) now.value = field.value;
    }
    for (const card of all('.card', part)) document.getElementById(card.id) && card.replaceWith(document.getElementById(card.id));
    const at = targets(old).indexOf(document.activeElement);
    if (at >= 0) refocus = () => targets(part)[at]?.focus({preventScroll: true});
  };
  document.addEventListener('htmx:before:swap', ({detail}) => {
    for (const task of detail.tasks ?? [])
      if (task.swapSpec?.style === 'upsert')
        for (const part of [...task.fragment.children]) {
          const old = document.getElementById(part.id);
          if (old?.matches('.card')) part.remove();
          else if (old) keep(old, part);
        }
  });
  document.addEventListener('htmx:after:swap', () => { showTimes(); refocus?.(); refocus = null; });

  // Copying, also where the page has no right to the clipboard
  const copy = async (text) => {
    try { await navigator.clipboard.writeText(text); } catch {
      const field = document.createElement('textarea');
      field.value = text;
      document.body.append(field);
      field.select();
      document.execCommand('copy');
      field.remove();
    }
    say('Copied');
  };
  document.addEventListener('click', (event) => {
    const button = event.target.closest('[data-copy]');
    if (!button) return;
    event.preventDefault();
    copy(button.dataset.copy);
    button.classList.add('done');
    setTimeout(() => button.classList.remove('done'), 1200);
  });

  // Theme: light, dark, the system's
  const themes = ['', 'light', 'dark'];
  const turnTheme = () => {
    const root = document.documentElement;
    const next = themes[(themes.indexOf(root.dataset.theme ?? '') + 1) % themes.length];
    if (next) root.dataset.theme = next; else delete root.dataset.theme;
    try { if (next) localStorage.setItem('chordage-theme', next); else localStorage.removeItem('chordage-theme'); } catch {}
    say(`Theme: ${next || 'as the system'}`);
  };
  one('#theme-toggle').addEventListener('click', turnTheme);
  one('#help-open').addEventListener('click', () => one('#keys').showModal());

  // Keys
  const press = (key) => {
    const place = chosen() ?? document;
    const target = one(`[data-key="${key}"]`, place) ?? one(`[data-key="${key}"]`);
    if (!target) return;
    if (!target.getClientRects().length) { say('Select lines first, with x'); return; }
    if (target.matches('details')) {
      target.open = true;
      one('input:not([type=hidden]), textarea, button', target)?.focus();
    } else if (key === 'd') one('[name=reason]', target.form)?.focus();
    else target.focus();
  };
  const folds = (state) => all('.steps > li > details, .tree details').forEach((fold) => { fold.open = state; });
  const places = {o: '/', r: '/runs', t: '/threads', i: '/inbox', a: '/agents', p: '/pulse'};
  const actions = {
    '/': () => one('#find').focus(),
    '?': () => one('#keys').showModal(),
    j: () => move(1), k: () => move(-1), Enter: open, x: () => one('[data-pick]', chosen() ?? document)?.click(),
    e: () => folds(true), w: () => folds(false), l: () => toggle.click(), t: turnTheme, z: () => one('#idle')?.click(),
    a: () => press('a'), d: () => press('d'), c: () => press('c'), r: () => press('r'), s: () => press('s'),
    f: () => {  // of a call: the step that asked for it
      let row = chosen();
      while (row && !one('[data-key="f"]', row)) row = row.previousElementSibling;
      (row ? one('[data-key="f"]', row) : one('.actions [data-key="f"]'))?.click();
    },
    E: () => {
      const fold = one('.edit', chosen() ?? document);
      if (fold) { fold.open = true; one('textarea', fold).focus(); }
    },
    y: () => { const why = one('.why'); why?.scrollIntoView({block: 'center'}); if (why) say(why.textContent); },
    Escape: () => { if (chosen()) choose(null); else if (history.length > 1) history.back(); },
  };
  let leader = 0;
  document.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || one('dialog[open]')) return;
    const field = event.target.closest('input:not([type=checkbox]):not([type=radio]), textarea, select');
    if (field) { if (event.key === 'Escape') field.blur(); return; }
    if (event.key === 'Enter' && event.target.closest('a, button, summary')) return;
    if (Date.now() - leader < 1500 && places[event.key]) { leader = 0; event.preventDefault(); go(places[event.key]); return; }
    leader = event.key === 'g' ? Date.now() : 0;
    const action = actions[event.key];
    if (action) { event.preventDefault(); action(); }
  });
})();
