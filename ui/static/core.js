// What all parts of the page share: actions of buttons, calls to the page's own routes, dialogs, toasts, menus.
window.ragstone = (() => {
  const acts = {};
  const byId = (id) => document.getElementById(id);

  // A press on anything with `data-act` runs the action of that name.
  const on = (name, action) => { acts[name] = action; };
  document.addEventListener('click', (event) => {
    const element = event.target.closest?.('[data-act]');
    const action = element && !element.disabled && acts[element.dataset.act];
    if (!action) return;
    if (element.tagName === 'A') event.preventDefault();
    action(element, event);
  });

  // Components of Gradio that start its events hand over how.
  const triggers = {};
  const wire = (name, trigger) => { triggers[name] = trigger; };
  const send = (name, data) => triggers[name]?.('click', data);

  // Kept in this browser (or tab), or nowhere where that is forbidden.
  const storage = (place) => ({
    read: (name) => { try { return place()?.getItem(`ragstone.${name}`) ?? null; } catch { return null; } },
    write: (name, value) => {
      try {
        if (value === null) place().removeItem(`ragstone.${name}`);
        else place().setItem(`ragstone.${name}`, value);
      } catch { /* it then lasts until the page is reloaded */ }
    },
  });
  const kept = storage(() => localStorage);
  const keptInTab = storage(() => sessionStorage);

  // A call to a route of the page: JSON or text. Throws an Error with a sentence, and says when a key is asked for.
  const call = async (method, path, body) => {
    let response;
    try {
      response = await fetch(`page/${path}`, {
        method,
        headers: { 'X-Ragstone-Page': '1', ...(body === undefined ? {} : { 'Content-Type': 'application/json' }) },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
    } catch {
      throw Object.assign(new Error('The page has no connection to its server.'), { status: 0 });
    }
    const isJson = response.headers.get('content-type')?.startsWith('application/json');
    const answer = isJson ? await response.json() : await response.text();
    if (response.ok) return answer;
    if (response.status === 401) document.dispatchEvent(new CustomEvent('ragstone:login'));
    throw Object.assign(new Error(answer?.error ?? `The server refused (${response.status}).`), { status: response.status });
  };
  const query = (values) => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== '' && value != null)).toString();

  // Have the browser save what a route of the page gives.
  const save = (path) => Object.assign(document.createElement('a'), { href: `page/${path}`, download: '' }).click();

  const TOAST_MS = 5000;
  const TOAST_WITH_ACTION_MS = 10000;
  // A line that goes by itself, and with the view that it was said in unless it is `ofPage`. Its action can be pressed
  // until then.
  const toast = (text, { label, action, isError = false, ofPage = false } = {}) => {
    const element = Object.assign(document.createElement('div'), { className: isError ? 'toast bad' : 'toast' });
    element.append(Object.assign(document.createElement('span'), { textContent: text }));
    const remove = () => element.remove();
    if (label) {
      const button = Object.assign(document.createElement('button'), { type: 'button', textContent: label });
      button.addEventListener('click', () => { remove(); action(); });
      element.append(button);
    }
    byId('toasts').replaceChildren(element);
    if (!ofPage) document.addEventListener('ragstone:view', remove, { once: true });
    // Not while somebody is at it.
    const end = () => (element.matches(':hover, :focus-within') ? setTimeout(end, 1000) : remove());
    setTimeout(end, label ? TOAST_WITH_ACTION_MS : TOAST_MS);
    return element;
  };
  // What is hidden or disabled has the focus for a moment more, until the browser draws.
  const isFocusLost = () => {
    const element = document.activeElement;
    return !element || element === document.body || !element.getClientRects().length || element.matches(':disabled');
  };
  // Give the focus to another element where the one that had it is gone: who uses the keyboard would start from the top.
  const keepFocus = (find, pause_ms = 0) => {
    if (!matchMedia('(hover: hover)').matches) return; // on a phone the box for the question would bring up its keyboard
    setTimeout(() => { if (isFocusLost()) find()?.focus({ preventScroll: true }); }, pause_ms);
  };
  // How to find an element again once its place was drawn anew: as the control of the same name there.
  const nameOf = (element) => element.getAttribute('aria-label') || element.textContent.trim();
  const finder = (element) => {
    const place = element?.closest('[id]');
    if (!place) return () => null;
    const name = nameOf(element);
    return () => {
      if (element.isConnected) return element;
      const now = byId(place.id);
      return place === element ? now : [...now?.querySelectorAll(element.tagName) ?? []].find((one) => nameOf(one) === name);
    };
  };
  // New content in place of old. What had the focus in it has it again, or all of it where that is gone.
  const replaceContent = (element, html) => {
    const find = element.contains(document.activeElement) ? finder(document.activeElement) : null;
    element.innerHTML = html;
    if (find) (find() ?? element).focus({ preventScroll: true });
  };
  // Run it, and say what went wrong if something did.
  const attempt = async (work) => {
    try {
      return await work();
    } catch (error) {
      if (error.status !== 401) toast(error.message, { isError: true });
      return undefined;
    }
  };

  // `draw` what `load` gives, but nothing that was asked for before what is drawn: answers may come in another order.
  // `drop()` keeps out all that is on its way.
  const inOrder = (load, draw) => {
    let [asked, drawn] = [0, 0];
    const run = async (...given) => {
      asked += 1;
      const turn = asked;
      try {
        const answer = await load(...given);
        if (turn < drawn) return false;
        drawn = turn;
        draw(answer, ...given);
        return true;
      } catch (error) {
        if (turn < drawn) return false;
        throw error;
      }
    };
    return Object.assign(run, { drop: () => { asked += 1; drawn = asked; } });
  };

  // A question to the person. Gives the text ("" without a field) or null; `check` may refuse with an error. Who leaves
  // while that is asked still gets what has been sent, as it then holds.
  let settle = () => {}; // for the newest question
  const ask = ({ title, text = '', field = '', value = '', isLong = false, isSecret = false, ok = 'OK', isDanger = false, check }) =>
    new Promise((resolve) => {
      // A dialog's `close` comes a while after it was closed: by then the next question may be in it.
      settle();
      const dialog = byId('ask-dialog');
      const [input, area] = [dialog.querySelector('input'), dialog.querySelector('textarea')];
      const box = isLong ? area : input;
      const error = dialog.querySelector('.error');
      dialog.querySelector('h2').textContent = title;
      dialog.querySelector('p').textContent = text;
      dialog.querySelector('.field').hidden = !field;
      dialog.querySelector('.field span').textContent = field;
      box.setAttribute('aria-label', field);
      (isLong ? input : area).removeAttribute('aria-label');
      input.hidden = isLong;
      area.hidden = !isLong;
      input.type = isSecret ? 'password' : 'text';
      input.autocomplete = isSecret ? 'current-password' : 'off';
      box.value = value;
      error.hidden = true;
      const submit = dialog.querySelector('[type=submit]');
      submit.textContent = ok;
      submit.classList.toggle('danger', isDanger);
      let given = null;
      let sending = null;
      const end = async () => {
        await sending;
        resolve(given);
      };
      settle = end;
      const give = async (text) => {
        try {
          await check?.(text);
          given = field ? text : '';
          if (settle === end) dialog.close();
        } catch (problem) {
          if (settle !== end) return;
          error.textContent = problem.message;
          error.hidden = false;
        }
      };
      dialog.querySelector('form').onsubmit = (event) => {
        event.preventDefault();
        sending ??= give(box.value).finally(() => { sending = null; });
      };
      // Where what had the focus was drawn anew below the dialog, the browser cannot give it back.
      const find = finder(document.activeElement);
      dialog.onclose = () => {
        if (dialog.open) return;
        settle();
        keepFocus(find);
      };
      dialog.showModal();
      // Who pressed Enter twice has not said yes to what cannot be undone.
      (field ? box : isDanger ? dialog.querySelector('[data-act=dialog-cancel]') : submit).focus();
      if (field) box.select();
    });
  on('dialog-cancel', (button) => button.closest('dialog').close());

  // A menu at a button: [{ label, action, isDanger }]. `find` gives the button, also once its place was drawn anew.
  let opener = () => null;
  const closeMenu = (returns = false) => {
    const menu = byId('menu');
    if (!menu || menu.hidden) return;
    menu.hidden = true;
    opener()?.setAttribute('aria-expanded', 'false');
    if (returns) opener()?.focus();
  };
  const menu = (find, items) => {
    const element = byId('menu');
    const button = find();
    const wasOpen = !element.hidden && opener() === button;
    closeMenu();
    if (wasOpen) return;
    opener = find;
    button.setAttribute('aria-expanded', 'true');
    element.replaceChildren(...items.map(({ label, action, isDanger }) => {
      const item = Object.assign(document.createElement('button'), { type: 'button', textContent: label });
      item.setAttribute('role', 'menuitem');
      if (isDanger) item.className = 'danger';
      item.addEventListener('click', () => { closeMenu(true); action(); });
      return item;
    }));
    element.hidden = false;
    const [at, size] = [button.getBoundingClientRect(), element.getBoundingClientRect()];
    element.style.left = `${Math.max(8, Math.min(at.left, innerWidth - size.width - 8))}px`;
    element.style.top = `${at.bottom + size.height + 8 < innerHeight ? at.bottom + 4 : at.top - size.height - 4}px`;
    element.firstChild.focus();
  };
  document.addEventListener('keydown', (event) => {
    const element = byId('menu');
    if (!element || element.hidden) return;
    const items = [...element.children];
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step) {
      items[(items.indexOf(document.activeElement) + step + items.length) % items.length].focus();
      event.preventDefault();
    } else if (event.key === 'Escape' || event.key === 'Tab') {
      closeMenu(true);
      event.preventDefault();
    }
  });
  document.addEventListener('click', (event) => {
    if (!event.target.closest('#menu') && event.target.closest('[data-act]') !== opener()) closeMenu();
  }, true);

  // Escape closes one thing: what is nearer to the focus, or the first of these that says that it was open.
  const closing = [];
  const onEscape = (close) => closing.push(close);
  document.addEventListener('keydown', (event) => {
    if (event.key !== 'Escape' || event.defaultPrevented || document.querySelector('dialog[open]')) return;
    if (closing.some((close) => close(event))) event.preventDefault();
  });

  // Run when Gradio has put the page together.
  const ready = (start) => {
    if (byId('transcript') && byId('dialogs') && byId('conversation-list')) start();
    else setTimeout(() => ready(start), 40);
  };
  const after = (pause_ms, work) => {
    let timer = 0;
    return () => { clearTimeout(timer); timer = setTimeout(work, pause_ms); };
  };

  return { acts, on, byId, wire, send, kept, keptInTab, call, query, save, toast, isFocusLost, keepFocus, finder, replaceContent, attempt, inOrder, ask, menu, onEscape, ready, after };
})();
