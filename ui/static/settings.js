// Settings of this browser, and which collections are searched. What is not set here is left to the server.
(() => {
  const { on, byId, kept, call, attempt, inOrder, ready } = ragstone;
  const NUMBERS = ['temperature', 'top_p', 'max_tokens', 'num_passages'];

  const read = () => { try { return JSON.parse(kept.read('settings') ?? '{}') ?? {}; } catch { return {}; } };
  let settings = read();
  const write = (changed) => {
    settings = changed;
    kept.write('settings', Object.keys(settings).length ? JSON.stringify(settings) : null);
    label();
  };
  ragstone.options = () => JSON.stringify(settings);

  // ── the dialog ──
  const fields = () => byId('settings-dialog').querySelectorAll('[name]');
  let models = []; // as the server last told them
  const offerModels = () => {
    // The one that is chosen is among them, also before the server has told.
    const names = new Set([...models, settings.model].filter(Boolean));
    const select = byId('settings-dialog').querySelector('[name=model]');
    select.replaceChildren(select.options[0], ...[...names].map((name) => new Option(name, name)));
    select.value = settings.model ?? '';
  };
  const fill = () => {
    offerModels();
    for (const field of fields()) {
      if (field.type === 'checkbox') field.checked = settings.retrieval !== false;
      else field.value = settings[field.name] ?? '';
    }
  };
  const take = () => {
    const { collections } = settings;
    const changed = collections ? { collections } : {};
    for (const field of fields()) {
      if (field.type === 'checkbox') {
        if (!field.checked) changed[field.name] = false;
      } else if (field.value !== '' && field.checkValidity()) {
        changed[field.name] = NUMBERS.includes(field.name) ? Number(field.value) : field.value;
      }
    }
    write(changed);
  };
  on('settings', () => attempt(async () => {
    fill();
    byId('settings-dialog').showModal();
    const told = await call('GET', 'options');
    models = told.models;
    offerModels();
    showDefaults(told.defaults);
  }));
  // What holds for a field that is left empty.
  const showDefaults = (defaults) => {
    for (const field of fields()) {
      const value = defaults[field.name];
      if (field.tagName === 'SELECT') {
        const chosen = [...field.options].find((option) => option.value === value);
        if (chosen) field.options[0].textContent = `Default: ${chosen.dataset.short ?? chosen.textContent}`;
      } else if (field.type === 'number') {
        field.placeholder = String(value ?? '');
      }
    }
  };
  on('export-feedback', () => ragstone.save('feedback/export'));
  on('reset-settings', () => { write({}); fill(); setAppearance(''); });

  // ── light or dark: Gradio follows the system, with a class that is set right whenever it sets it ──
  const systemIsDark = matchMedia('(prefers-color-scheme: dark)');
  const paint = () => {
    const isDark = { light: false, dark: true }[kept.read('appearance')] ?? systemIsDark.matches;
    if (document.body.classList.contains('dark') !== isDark) document.body.classList.toggle('dark', isDark);
  };
  const setAppearance = (value) => {
    byId('appearance').value = value;
    kept.write('appearance', value || null);
    paint();
  };

  // ── collections ──
  const label = () => {
    const chosen = settings.collections ?? [];
    const isOff = settings.retrieval === false;
    const text = isOff ? 'No documents' : (chosen.length ? chosen.map(nameOf).join(', ') : 'All documents');
    if (byId('picked')) byId('picked').textContent = text;
    document.querySelector('[data-act=pick]')?.classList.toggle('set', isOff || chosen.length > 0);
  };
  const names = new Map();
  const nameOf = (name) => names.get(name) ?? ({ handbook: 'Sample handbook', default: 'My documents' }[name] ?? name);
  const picker = () => byId('picker');
  const toggle = (isOpen) => {
    if (!isOpen) offer.drop(); // whoever has gone on to something else wants no list
    picker().hidden = !isOpen;
    document.querySelector('[data-act=pick]').setAttribute('aria-expanded', String(isOpen));
  };
  const offer = inOrder(() => call('GET', 'collections'), (html) => {
    picker().innerHTML = html;
    for (const box of picker().querySelectorAll('input')) {
      names.set(box.value, box.nextElementSibling.textContent);
      box.checked = (settings.collections ?? []).includes(box.value);
    }
    const hint = Object.assign(document.createElement('p'), { textContent: 'None chosen: all are searched.' });
    picker().append(hint);
    toggle(true);
    picker().querySelector('input')?.focus();
  });
  on('pick', () => attempt(async () => (picker().hidden ? offer() : toggle(false))));

  ready(() => {
    label();
    setAppearance(kept.read('appearance') ?? '');
    byId('appearance').addEventListener('change', () => setAppearance(byId('appearance').value));
    new MutationObserver(paint).observe(document.body, { attributes: true, attributeFilter: ['class'] });
    byId('settings-dialog').addEventListener('input', take);
    picker().addEventListener('change', () => {
      const chosen = [...picker().querySelectorAll('input:checked')].map((box) => box.value);
      const { collections, ...rest } = settings;
      write(chosen.length ? { ...rest, collections: chosen } : rest);
    });
    document.addEventListener('click', (event) => { if (!event.target.closest('.picker')) toggle(false); });
    picker().addEventListener('keydown', (event) => {
      if (event.key !== 'Escape') return;
      event.preventDefault();
      toggle(false);
      document.querySelector('[data-act=pick]').focus();
    });
  });
})();
