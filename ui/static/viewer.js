// One document opened beside what is shown, at a page, a heading or a quote.
(() => {
  const { on, byId, call, query, isFocusLost, finder, attempt, inOrder, onEscape } = ragstone;

  let opener = () => null;
  const documentOf = (element) => element.closest('[data-document]').dataset.document;
  // Letters and digits of a text, with where each stands: what quotes are compared by, as signs of markup and white
  // space are not the same in a document and in what was read of it.
  const isLetter = /[\p{L}\p{N}]/u;
  const lettersOf = (text) => [...text].filter((character) => isLetter.test(character)).join('').toLowerCase();
  const lettersIn = (root) => {
    const [letters, places] = [[], []];
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      let offset = 0;
      for (const character of node.data) {
        if (isLetter.test(character)) {
          for (const letter of character.toLowerCase()) {
            letters.push(letter);
            for (let unit = 0; unit < letter.length; unit += 1) places.push([node, offset, character.length]);
          }
        }
        offset += character.length;
      }
    }
    return { letters: letters.join(''), places };
  };
  // Mark the quote, whatever elements it runs through; the first mark, or null where it does not stand there.
  const markQuote = (root, quote) => {
    const wanted = lettersOf(quote);
    if (!wanted) return null;
    const { letters, places } = lettersIn(root);
    const start = letters.indexOf(wanted);
    if (start < 0) return null;
    const ranges = new Map();
    for (const [node, offset, length] of places.slice(start, start + wanted.length)) {
      ranges.set(node, [ranges.get(node)?.[0] ?? offset, offset + length]);
    }
    let first = null;
    for (const [node, [from, to]] of ranges) {
      const range = document.createRange();
      range.setStart(node, from);
      range.setEnd(node, to);
      const mark = document.createElement('mark');
      range.surroundContents(mark);
      first ??= mark;
    }
    return first;
  };
  // The heading of a path "Outer > Inner", by the inner one where the outer ones are not those of the page.
  const findHeading = (root, path) => {
    const wanted = path.split(' > ').map(lettersOf).filter(Boolean);
    const [above, found] = [[], []];
    for (const heading of wanted.length ? root.querySelectorAll('h1, h2, h3, h4, h5, h6') : []) {
      above.length = Math.min(above.length, Number(heading.tagName[1]) - 1);
      above[Number(heading.tagName[1]) - 1] = lettersOf(heading.textContent);
      if (above.at(-1) === wanted.at(-1)) found.push([heading, above.filter((name) => wanted.includes(name)).length]);
    }
    return found.sort((one, other) => other[1] - one[1])[0]?.[0] ?? null;
  };
  // To the quote with its heading above it where both fit, else to the quote; without one to the heading.
  const scrollTo = (body, mark, heading) => {
    const top = (element) => element.getBoundingClientRect().top - body.getBoundingClientRect().top + body.scrollTop;
    const fits = mark && heading && top(mark) > top(heading) && top(mark) - top(heading) < body.clientHeight * 0.6;
    if (heading && (fits || !mark)) body.scrollTop = top(heading) - 12;
    else body.scrollTop = mark ? top(mark) - body.clientHeight / 3 : 0;
  };
  // What stands in place of a picture that is not in the file: what it shows, and its address.
  const withoutPicture = ({ alt, title }) => {
    const element = Object.assign(document.createElement('span'), { className: 'no-picture', dir: 'auto' });
    element.textContent = [alt.trim(), title].filter(Boolean).join(': ');
    if (element.textContent) element.textContent = `[Picture: ${element.textContent}]`;
    return element;
  };
  const load = ({ id, page, quote }) => call('GET', `documents/${encodeURIComponent(id)}/view?${query({ page, quote })}`);
  const show = inOrder(load, (seen, { id, quote, heading }) => {
    byId('viewer-title').textContent = seen.title;
    byId('viewer-body').innerHTML = seen.html;
    byId('viewer-download').href = `page/documents/${encodeURIComponent(id)}/original`;
    byId('viewer').hidden = false;
    byId('viewer').dataset.document = id;
    byId('viewer').dataset.quote = quote ?? '';
    document.body.classList.add('viewer-open');
    const image = byId('viewer-body').querySelector('img.page');
    image?.addEventListener('error', () => image.replaceWith(Object.assign(document.createElement('p'), {
      className: 'empty', textContent: 'There is no picture of this page; its text is below.',
    })));
    const sheet = byId('viewer-body').querySelector('.sheet');
    // As it is written, else as Markdown reads.
    const mark = sheet && quote ? markQuote(sheet, quote) ?? markQuote(sheet, seen.quote) : null;
    // Nothing is loaded from elsewhere. After the quote is marked, which pictures have no part in.
    for (const picture of sheet?.querySelectorAll('img:not([src])') ?? []) picture.replaceWith(withoutPicture(picture));
    if (image) byId('viewer-body').scrollTop = 0;
    else scrollTo(byId('viewer-body'), mark, sheet && heading ? findHeading(sheet, heading) : null);
  });
  // The focus goes along, unless it has gone elsewhere while the document was on its way.
  const isFree = (button) => document.activeElement === button || isFocusLost();
  on('open-document', (button) => attempt(async () => {
    const { page, quote, heading } = button.dataset;
    const find = finder(button);
    if (!await show({ id: documentOf(button), page, quote, heading })) return;
    opener = find;
    if (isFree(find())) document.querySelector('[data-act=close-viewer]').focus();
  }));
  on('turn-page', (button) => attempt(async () => {
    const name = button.getAttribute('aria-label');
    const { quote } = byId('viewer').dataset;
    if (!await show({ id: documentOf(button), page: button.dataset.page, quote }) || !isFree(button)) return;
    const same = [...byId('viewer-body').querySelectorAll('[data-act=turn-page]')].find((other) => other.getAttribute('aria-label') === name);
    (same?.disabled ? byId('viewer-body') : same)?.focus();
  }));
  const close = () => {
    if (byId('viewer')?.hidden !== false) return false;
    show.drop(); // a page that was turned to just before does not open it again
    byId('viewer').hidden = true;
    document.body.classList.remove('viewer-open');
    opener()?.focus();
    return true;
  };
  on('close-viewer', close);
  onEscape(close);
})();
